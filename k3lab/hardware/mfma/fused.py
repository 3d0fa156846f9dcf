"""The `fused` model: the exact sum of the K products and C, rounded once to float32, nearest even.

Nearly every output takes the cheap way: the operands' exponents prove that a float64 matmul is exact (`bounds`), one
float64 addition joins the accumulator, and only a sum that lands on a float32 midpoint (or below the normal float32
range) needs the addition's own error to be rounded right. The few outputs without a proof are summed exactly.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from k3lab.hardware.mfma.bounds import GROUP, ProductSpread, Spread, Where, significand_bits, unproven_outputs
from k3lab.hardware.mfma.exact import round_to_odd, to_odd, two_sum
from k3lab.hardware.mfma.model import F32, F64, Steps

TAIL = (1 << 29) - 1  # the float64 significand bits that a float32 drops
MIDPOINT = 1 << 28
NARROW = 12  # significand bits (bf16 has 8, fp16 11) that leave an exponent range to prove a float64 sum exact in
SMALLEST_NORMAL = 2.0**-126
MINUS_ZERO = np.iinfo(np.int64).min  # the bits of -0.0


def fused(a: Steps, b: Steps, c: F32) -> F32:
    """acc = round(acc + sum_k a_k b_k), exact but for the one rounding; see `MfmaModel.chain` for the shapes."""
    acc = c.astype(np.float64)
    for a_step, b_step in zip(a, b, strict=True):
        total = _exact_total(acc, np.ascontiguousarray(a_step), np.ascontiguousarray(b_step))
        acc = total.astype(np.float32).astype(np.float64)
    return acc.astype(np.float32)


def _exact_total(acc: F64, a: F32, b: F32) -> F64:
    """acc + sum_k a_k b_k [..., M, N], inexact only in ways that rounding it to float32 does not show."""
    dot = _matmul(a, b)
    total = acc + dot
    a_parts, b_parts = _narrow_parts(a), _narrow_parts(b)
    pairs = list(product(a_parts, b_parts))
    spreads = [
        ProductSpread.of(x, y)
        for x, y in product(map(Spread.of, a_parts), [Spread.of(part, GROUP) for part in b_parts])
    ]
    if len(pairs) == 1:
        _mend_midpoints(total, acc, dot, tiny_too=spreads[0].may_underflow())
    else:
        _add_parts(total, acc, [_matmul(x, y) for x, y in pairs])
    for (x, y), spread in zip(pairs, spreads, strict=True):
        groups = spread.unproven()
        if groups.any():
            groups = np.broadcast_to(groups, (*acc.shape[:-1], groups.shape[-1]))
            _sum_exactly(total, acc, a, b, unproven_outputs(x, y, groups))
    _sign_zeros(total, acc, a, b)
    return total


def _matmul(a: F32, b: F32) -> F64:
    return np.matmul(a.astype(np.float64), b.astype(np.float64).swapaxes(-1, -2))


def _narrow_parts(values: F32) -> list[F32]:
    """Values as they are when their significands are narrow; else as a sum of three arrays, two of them of bf16 values.

    Narrow parts keep the exactness proof within reach; in the subnormal range the last part can be wider.
    """
    if significand_bits(values) <= NARROW:
        return [values]
    rest = np.where(np.isfinite(values), values, np.float32(0.0))
    parts = []
    for _ in range(2):
        head = (rest.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        rest = rest - head
        parts.append(head)
    return [*parts, rest]


def _mend_midpoints(total: F64, acc: F64, dot: F64, tiny_too: bool) -> None:
    """Round to odd, in place, the sums acc + dot whose float64 rounding could mislead the one to float32."""
    suspect = (total.view(np.int64) & TAIL) == MIDPOINT
    if tiny_too:
        suspect |= np.abs(total) < SMALLEST_NORMAL
    if suspect.any():
        total[suspect] = to_odd(*two_sum(acc[suspect], np.broadcast_to(dot, acc.shape)[suspect]))


def _add_parts(total: F64, acc: F64, dots: list[F64]) -> None:
    """Sum acc and the exact dots of the operands' parts; the plain total stays where it is an infinity or a NaN.

    A part can be zero beside an infinity, so only the undivided operands follow IEEE there.
    """
    exact = round_to_odd([acc, *(np.broadcast_to(dot, acc.shape) for dot in dots)])
    np.copyto(total, exact, where=np.isfinite(total))


def _sum_exactly(total: F64, acc: F64, a: F32, b: F32, where: Where) -> None:
    """Replace the finite totals at `where` by sums of all K products and the accumulator as one expansion."""
    if where[0].size == 0:
        return
    plain = total[where]
    exact = round_to_odd([acc[where], *_products(acc.shape, a, b, where).T])
    total[where] = np.where(np.isfinite(plain), exact + 0.0, plain)  # + 0.0: exact cancellation gives +0


def _products(shape: tuple[int, ...], a: F32, b: F32, where: Where) -> F64:
    """The exact products [outputs, K] of the outputs [..., M, N] of that `shape` at `where`."""
    *lead, m, n = where
    a_rows = np.broadcast_to(a, (*shape[:-2], *a.shape[-2:]))[(*lead, m)]
    b_rows = np.broadcast_to(b, (*shape[:-2], *b.shape[-2:]))[(*lead, n)]
    return a_rows.astype(np.float64) * b_rows


def _sign_zeros(total: F64, acc: F64, a: F32, b: F32) -> None:
    """A sum is -0 only if the accumulator and all products are -0; the matmul does not keep a zero's sign."""
    suspect = acc.view(np.int64) == MINUS_ZERO
    if not suspect.any():
        return
    where = np.nonzero(suspect & (total == 0))
    all_minus_zero = (_products(acc.shape, a, b, where).view(np.int64) == MINUS_ZERO).all(axis=-1)
    total[where] = np.where(all_minus_zero, -0.0, 0.0)
