"""Models of gfx9's `exp2`, `rsq` and `rcp` instructions: correctly rounded float32, subnormals flushed.

The instructions are approximations of about 1 ulp whose bits are not documented; twin and simulator share these models
of them, and a probe can perturb a model by an ulp.

No result depends on the C library: a function is computed in float64, and where that lies within a few ulps of a
float32 rounding midpoint, exact arithmetic decides the side. No float32 input maps onto a midpoint itself: 2^x is a
power of two or irrational, and 1/sqrt(x) with an odd 25-bit significand would need a fraction that x cannot hold.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from k3lab.errors import expect

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

SMALLEST_NORMAL = 2.0**-126
TAIL = (1 << 29) - 1  # the float64 significand bits that a float32 drops
MIDPOINT = 1 << 28
SLACK = 16  # float64 ulps; every float64 exp2 and 1 / sqrt in use is off by 4 at most
DIGITS = Context(prec=50)  # a 2^x of float32 x comes no closer to a midpoint than about 1 part in 2^60


def exp2(x: F32) -> F32:
    """2^x: 1 for a subnormal x, +0 for a result below 2^-126, infinity from x = 128 on."""
    _check(x)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        wide = np.exp2(x, dtype=np.float64, out=np.empty(x.shape))
        wide[wide < SMALLEST_NORMAL] = 0.0
        return _round(x, wide, _exp2_above)


def rsq(x: F32) -> F32:
    """1 / sqrt(x): infinity with x's sign for a zero or subnormal x, NaN for other negatives, +0 for +infinity.

    The sign of a flushed negative subnormal (it acts as -0: -infinity) is assumed.
    """
    _check(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        wide = _flushed(x)
        np.sqrt(wide, out=wide)
        np.divide(1.0, wide, out=wide)
        return _round(x, wide, _rsq_above)


def rcp(x: F32) -> F32:
    """1 / x: infinity with x's sign for a zero or subnormal x, zero with x's sign for a result below 2^-126.

    No launch uses it, and both flushes are assumed. A float64 quotient of float32 values never misleads the second
    rounding (53 >= 2 x 24 + 2 bits), so no midpoint needs a closer look.
    """
    _check(x)
    with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
        wide = np.divide(1.0, _flushed(x), out=np.empty(x.shape))
        np.copyto(wide, np.copysign(0.0, wide), where=np.abs(wide) < SMALLEST_NORMAL)
        return wide.astype(np.float32)


def _check(x: F32) -> None:
    expect(x.dtype == np.float32, "hardware function input", "float32", x.dtype)


def _flushed(x: F32) -> F64:
    """x as float64, subnormals turned into zeros of their sign."""
    wide = x.astype(np.float64)
    np.copyto(wide, np.copysign(0.0, wide), where=np.abs(wide) < SMALLEST_NORMAL)
    return wide


def _round(x: F32, wide: F64, above: Callable[[float, float], bool]) -> F32:
    """float32 of the positive function values `wide`, right even if these are `SLACK` float64 ulps off.

    `above(x, midpoint)` says exactly whether the function of x exceeds a midpoint.
    """
    bits = wide.view(np.int64)
    undecided = np.abs((bits & TAIL) - MIDPOINT) <= SLACK
    if undecided.any():
        midpoints = bits[undecided] & ~TAIL | MIDPOINT
        sides = [above(*pair) for pair in zip(x[undecided].tolist(), midpoints.view(np.float64).tolist(), strict=True)]
        bits[undecided] = midpoints + np.where(sides, 1, -1)
    return wide.astype(np.float32)


def _exp2_above(x: float, midpoint: float) -> bool:
    return DIGITS.power(Decimal(2), Decimal(x)) > Decimal(midpoint)


def _rsq_above(x: float, midpoint: float) -> bool:
    return Fraction(midpoint) ** 2 * Fraction(x) < 1
