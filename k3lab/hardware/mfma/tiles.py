"""The `fused` model for whole tiles at once: one float64 matmul each, where a tile's exponents prove that to be exact.

Of a tile, let all numbers be finite and let h and l be the largest and the smallest biased exponent of its non-zero
values, by operand (see `bounds` for what exponents and significand widths w say of a float32). Then

    each product is a multiple of 2^(l_a + l_b - 254 - (w_a - 1) - (w_b - 1)), and C of
    2^(l_c - 127 - (w_c - 1));
    any sum of the K products is below 2^(h_a + h_b - 254 + 2 + ceil(log2 K)), and C is below 2^(h_c - 127 + 1).

With 2^q the smaller of the multiples and 2^t twice the larger of the bounds, every partial sum of products and C, in
any order, is a multiple of 2^q below 2^t. If t - q <= 53, float64 holds them all: the matmul and the addition of C are
exact, fused or not, and the conversion to float32 is the one rounding. That holds for subnormal results, and for sums
beyond float32's range, which become infinities.

A zero needs care of its own. An exact sum of +0 or non-zero terms that vanishes is +0 in float64, too. Only a C of -0
can give -0, and a matmul does not tell whether all products are -0; so a tile with such a C is not proven.

A tile with exponents too far apart for this is cut into parts by exponent (`_windowed`).
"""

from __future__ import annotations

from functools import reduce

import numpy as np
from numpy.typing import NDArray

from k3lab.hardware.mfma.bounds import BIAS, FLOAT64_BITS, NON_FINITE, Spread, exponents
from k3lab.hardware.mfma.exact import round_to_odd
from k3lab.hardware.mfma.model import F32, F64

Bools = NDArray[np.bool_]

MOST_PARTS = 4  # of an operand: 68 binades of bf16 values
MINUS_ZERO = np.iinfo(np.int32).min  # the bits of -0.0: the smallest int32


def proven_tiles(a: F32, b: F32, c: F32) -> tuple[F32, Bools]:
    """round(C + sum_k a_k b_k) of tiles, and for which tiles [W] it is exact but for that rounding; others are garbage.

    Args:
        a: [W, ..., M, K].
        b: [W, ..., N, K].
        c: [W, ..., M, N]; leading dimensions broadcast, also a W of 1.
    """
    spreads = Spread.of_tiles(a), Spread.of_tiles(b), Spread.of_tiles(c)
    fit = _settled(c, *spreads)
    proven = fit & _proven(*spreads, a.shape[-1])
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        total = _matmul(a.astype(np.float64), b.astype(np.float64)) + c
        rest = np.flatnonzero(fit & ~proven)
        if rest.size:
            total[rest], proven[rest] = _windowed(*(x if len(x) == 1 else x[rest] for x in (a, b, c)))
        return total.astype(np.float32), proven


def _matmul(a: F64, b: F64) -> F64:
    return np.matmul(a, b.swapaxes(-1, -2))


def _settled(c: F32, *spreads: Spread) -> Bools:
    """The tiles [W] that are finite, and have no -0 in C."""
    fit: Bools = c.reshape(len(c), -1).view(np.int32).min(axis=1) != MINUS_ZERO
    for spread in spreads:
        fit = fit & (spread.high < NON_FINITE)
    return fit


def _proven(a: Spread, b: Spread, c: Spread, slots: int) -> Bools:
    """Where 53 bits hold all partial sums of finite tiles with these spreads [W]; see above for the terms."""
    product_unit = a.low + b.low - (2 * BIAS + a.width - 1 + b.width - 1)
    unit = np.minimum(product_unit, c.low - (BIAS + c.width - 1))
    product_top = a.high + b.high - (2 * BIAS - 2 - (slots - 1).bit_length())
    top = np.maximum(product_top, c.high - (BIAS - 1)) + 1
    return top - unit <= FLOAT64_BITS


def _windowed(a: F32, b: F32, c: F32) -> tuple[F64, Bools]:
    """C + sum_k a_k b_k of finite tiles, rounded to odd, and for which tiles [W] that holds.

    An operand is cut by exponent into parts: part i of A has the values with h_a - (i + 1) n < e <= h_a - i n, and so
    has B. A slot's product comes from one part of A and one of B; those with i + j = s have exponents above
    h_a + h_b - (s + 2) n + 1 and up to h_a + h_b - s n. So of each such level the K products at most are multiples of

        2^(h_a + h_b - (s + 2) n + 2 - 254 - (w_a - 1) - (w_b - 1)), and their sums are below
        2^(h_a + h_b - s n - 254 + 2 + ceil(log2 K)),

    2 n + ceil(log2 K) + (w_a - 1) + (w_b - 1) bits apart: with n so that these are 53 at most, the levels' sums are
    exact in float64. They and C, a few terms instead of K + 1, are added exactly.
    """
    of_a, of_b = Spread.of_tiles(a), Spread.of_tiles(b)
    window = (FLOAT64_BITS - (a.shape[-1] - 1).bit_length() - (of_a.width - 1) - (of_b.width - 1)) // 2
    needed = np.maximum(_parts_needed(of_a, window), _parts_needed(of_b, window))
    held = int(np.minimum(needed, MOST_PARTS).max())
    parts_a, parts_b = _cut(a, of_a, window, held), _cut(b, of_b, window, held)
    levels = [
        reduce(np.add, [_matmul(parts_a[i], parts_b[s - i]) for i in range(held) if 0 <= s - i < held])
        for s in range(2 * held - 1)
    ]
    shape = np.broadcast_shapes(levels[0].shape, c.shape)
    terms = (np.broadcast_to(term, shape) for term in (c.astype(np.float64), *levels))
    return round_to_odd(list(terms)) + 0.0, needed <= held  # + 0.0: a sum that vanishes is +0


def _parts_needed(spread: Spread, window: int) -> NDArray[np.intp]:
    if window <= 0:
        return np.full(spread.high.shape, MOST_PARTS + 1)
    return np.maximum(spread.high - spread.low, 0) // window + 1


def _cut(values: F32, spread: Spread, window: int, parts: int) -> list[F64]:
    """The parts of tiles [W, ...] by exponent, the largest first, with zeros elsewhere."""
    high = spread.high.reshape(-1, *(1,) * (values.ndim - 1))
    part = (high - exponents(values)) // max(window, 1)
    return [np.where(part == i, values, np.float64(0.0)) for i in range(parts)]
