"""When is a float64 matmul exact? Exponents of the operands that bound every partial sum of an output's products.

A finite float32 with biased exponent e (subnormals count as e = 1) and w significand bits is a multiple of
2^(e - 127 - (w - 1)) and is below 2^(e - 127 + 1); w is 24 - t where the last t of the 23 fraction bits are zero. So K
products a_k b_k are all multiples of 2^(low - 254 - (w_a - 1) - (w_b - 1)) and any partial sum is below
2^(high - 254 + 2) K, with low and high the extremes of e(a_k) + e(b_k). When the two lie at most 53 bits apart, float64
holds every partial sum: the matmul is exact in whatever order it adds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3lab.hardware.mfma.model import F32

Exponents = NDArray[np.int16]
Where = tuple[NDArray[np.intp], ...]  # indices of outputs [..., M, N]

ABSENT = 4096  # the low exponent of a zero: it makes no product, so it bounds nothing
NON_FINITE = 255
BIAS = 127
SMALLEST_F32 = -149  # log2 of the smallest float32 subnormal
FLOAT64_BITS = 53
FRACTION_BITS = 23
FRACTION = (1 << FRACTION_BITS) - 1
GROUP = 64  # columns that share one cheap bound: wide enough to cost little, narrow enough to prove nearly all


def significand_bits(values: F32) -> int:
    """Bits from the leading one to the last that any value uses: at most 8 of bf16 values, 11 of fp16, 24 at all."""
    fraction = int(np.bitwise_or.reduce(values.view(np.uint32), axis=None)) & FRACTION
    return FRACTION_BITS + 1 - _trailing_zeros(fraction) if fraction else 1


def exponents(values: F32) -> Exponents:
    """Biased exponents, those of zeros and subnormals counted as 1."""
    return _exponent(values.view(np.uint32) << np.uint32(1))


@dataclass(frozen=True)
class Spread:
    """Biased exponents of one MFMA operand, and its significand width.

    They are kept per row, or per group of rows, and slot; or per tile.
    """

    high: Exponents  # [..., rows, K] (or [tiles]) largest exponent of the group
    low: Exponents  # [..., rows, K] (or [tiles]) smallest exponent of its non-zero values, `ABSENT` without one
    width: int

    @classmethod
    def of(cls, values: F32, group: int = 1) -> Spread:
        """The spread of [..., rows, K] values, every `group` rows (the last group may be short) taken together."""
        high = values.view(np.uint32) << np.uint32(1)
        low = high - np.uint32(1)  # a zero wraps to the largest integer
        if group > 1:
            starts = np.arange(0, values.shape[-2], group)
            high = np.maximum.reduceat(high, starts, axis=-2)
            low = np.minimum.reduceat(low, starts, axis=-2)
        return cls(_exponent(high), _lowest_exponent(low), significand_bits(values))

    @classmethod
    def of_tiles(cls, values: F32) -> Spread:
        """The spread [tiles] of whole tiles [tiles, ...]."""
        magnitude = values.reshape(len(values), -1).view(np.uint32) << np.uint32(1)
        high = magnitude.max(axis=1)
        magnitude -= np.uint32(1)
        return cls(_exponent(high), _lowest_exponent(magnitude.min(axis=1)), significand_bits(values))


@dataclass(frozen=True)
class ProductSpread:
    """Exponents e(a_k) + e(b_k) of the products of outputs [..., M, rows], extremes over the slots."""

    high: Exponents
    low: Exponents
    slots: int
    fraction_bits: int  # of a product: w_a - 1 + w_b - 1

    @classmethod
    def of(cls, a: Spread, b: Spread) -> ProductSpread:
        """Pairs every row of a [..., M, K] with every row of b [..., rows, K]."""
        high = (a.high[..., :, None, :] + b.high[..., None, :, :]).max(axis=-1)
        low = (a.low[..., :, None, :] + b.low[..., None, :, :]).min(axis=-1)
        return cls(high, low, a.high.shape[-1], a.width + b.width - 2)

    def unproven(self) -> NDArray[np.bool_]:
        """Where some partial sum may need more than 53 bits."""
        sum_bits = 2 + (self.slots - 1).bit_length()
        return self.high - self.low > FLOAT64_BITS - sum_bits - self.fraction_bits

    def may_underflow(self) -> bool:
        """Whether a sum may hold bits below the smallest subnormal; if not, every subnormal result is exact."""
        return int(self.low.min()) - 2 * BIAS - self.fraction_bits < SMALLEST_F32


def unproven_outputs(a: F32, b: F32, groups: NDArray[np.bool_]) -> Where:
    """Outputs whose matmul may be inexact, by their own exponents, within `groups` [..., M, groups of N].

    Outputs with an infinity or a NaN among their operands are not listed: any arithmetic gives the IEEE result.
    """
    *lead, m, group = np.nonzero(groups)
    columns = group[:, None] * GROUP + np.arange(GROUP)
    held = columns < b.shape[-2]
    columns = np.minimum(columns, b.shape[-2] - 1)
    a_rows = np.broadcast_to(a, (*groups.shape[:-2], *a.shape[-2:]))[(*lead, m)][:, None]
    b_rows = np.broadcast_to(b, (*groups.shape[:-2], *b.shape[-2:]))[(*(i[:, None] for i in lead), columns)]
    x, y = Spread.of(a_rows), Spread.of(b_rows)
    finite = (x.high < NON_FINITE).all(axis=-1) & (y.high < NON_FINITE).all(axis=-1)
    which, column = np.nonzero(ProductSpread.of(x, y).unproven()[:, 0] & finite & held)
    return (*(i[which] for i in lead), m[which], columns[which, column])


def _exponent(magnitude: NDArray[np.uint32]) -> Exponents:
    return np.maximum(magnitude >> np.uint32(24), 1).astype(np.int16)


def _lowest_exponent(magnitude_less_one: NDArray[np.uint32]) -> Exponents:
    """From the least of (magnitude << 1) - 1, in which a zero is the largest integer."""
    absent = magnitude_less_one == np.uint32(0xFFFFFFFF)
    return np.where(absent, np.int16(ABSENT), _exponent(magnitude_less_one + np.uint32(1)))


def _trailing_zeros(positive: int) -> int:
    return (positive & -positive).bit_length() - 1
