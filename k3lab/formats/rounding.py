"""Correct rounding by integers: the one algorithm behind every narrow format.

A float's bits below the sign are a ladder: adding one to them is one step up, across binades and out of the
subnormals alike. Rounding to a narrower format is therefore a shift of the significand, and the carry of a
round-up walks into the exponent by itself. Nothing here calls a floating-point rounding, so a float64 is
rounded straight to its target, once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from k3lab.errors import expect

Array = npt.NDArray[Any]

MODES = ("nearest", "zero", "stochastic")

# Source dtype: (signed integer of its width, mantissa bits, exponent bias).
_LAYOUTS: dict[np.dtype[Any], tuple[type[np.signedinteger[Any]], int, int]] = {
    np.dtype(np.float32): (np.int32, 23, 127),
    np.dtype(np.float64): (np.int64, 52, 1023),
}
_RANDOM_BITS = 62  # a 53-bit significand plus this many random bits still fits an int64


def check_mode(mode: str) -> None:
    """Raise `BadInput` unless `mode` is one of `MODES`."""
    expect(mode in MODES, "rounding mode", f"one of {', '.join(MODES)}", repr(mode))


def as_floats(x: npt.ArrayLike) -> Array:
    """`x` as a float32 or float64 array, without a copy where it already is one.

    Raises:
        BadInput: for any other dtype; widening silently would hide which values were rounded.
    """
    x = np.asarray(x)
    expect(x.dtype in _LAYOUTS, "values to round", "a float32 or float64 array", x.dtype, "convert it first")
    return x


def widen(x: npt.ArrayLike) -> Array:
    """`x` as float64, exactly; a signalling NaN turns quiet without a warning."""
    with np.errstate(invalid="ignore"):
        return np.asarray(x, np.float64)


def magnitude_bits(x: Array) -> Array:
    """The bits of |x| as signed integers of x's own width (int32 or int64); NaN sorts above infinity."""
    integer, _, _ = _LAYOUTS[x.dtype]
    bits: Array = np.ascontiguousarray(x).view(integer).reshape(x.shape)
    return np.bitwise_and(bits, integer(np.iinfo(integer).max))


def magnitude_codes(x: Array, man_bits: int, bias: int, mode: str, seed: int) -> Array:
    """Round |x| to `man_bits` mantissa bits and a smallest normal of 2^(1 - bias), exponents unbounded above.

    Args:
        x: float32 or float64, any shape. Infinities and NaNs come out as some huge code: the caller replaces them.
        man_bits: explicit mantissa bits of the target, fewer than the source's.
        bias: exponent bias of the target, at most the source's: a source's subnormal is not normalised first.
        mode: `nearest` (ties to the even code), `zero` (drop the rest) or `stochastic`.
        seed: seed of `stochastic`.

    Returns:
        Integer codes, `exponent field << man_bits | mantissa`, in x's shape; the caller saturates them.
    """
    check_mode(mode)
    if mode == "stochastic":  # always from 64 bits, so that float32 and float64 draw the same decisions
        x = widen(x)
    _, source_man, source_bias = _LAYOUTS[x.dtype]
    bits = magnitude_bits(x)
    field = np.maximum(bits >> source_man, 1)  # a subnormal has the exponent of the smallest normal...
    significand = bits - ((field - 1) << source_man)  # ...and no hidden one
    above = field - (source_bias + 1 - bias)  # binades above the target's smallest normal; negative: subnormal there
    dropped = (source_man - man_bits) - np.minimum(above, 0)
    # `kept` below includes the hidden one, which is what lifts a normal's exponent field from `above` to `above + 1`.
    binades = np.maximum(above, 0) << man_bits
    if mode == "zero":
        kept = significand >> np.minimum(dropped, source_man + 1)
    elif mode == "nearest":
        kept = _shift_to_nearest(significand, np.minimum(dropped, source_man + 2), binades)
    else:
        kept = _shift_stochastic(significand, dropped, seed)
    codes: Array = kept + binades
    return codes


def _shift_to_nearest(significand: Array, dropped: Array, binades: Array) -> Array:
    """significand / 2^dropped to the nearest integer; ties to where `binades` plus it, the code, is even.

    `dropped` is at least 1. Only without mantissa bits (E8M0) do the binades decide whether a code is even.
    """
    odd = ((significand >> dropped) + binades) & 1
    almost_half = (np.ones_like(dropped) << (dropped - 1)) - 1
    kept: Array = (significand + almost_half + odd) >> dropped
    return kept


def _shift_stochastic(significand: Array, dropped: Array, seed: int) -> Array:
    """significand / 2^dropped rounded up with the probability of its fraction: unbiased.

    Beyond 62 dropped bits the fraction is first cut to 62 bits, a bias below 2^-62 of a step.
    """
    excess = np.maximum(dropped - _RANDOM_BITS, 0)
    dropped = dropped - excess
    dither = random_bits(significand.shape, seed) >> (_RANDOM_BITS - dropped)
    kept: Array = ((significand >> np.minimum(excess, 63)) + dither) >> dropped
    return kept


def random_bits(shape: tuple[int, ...], seed: int) -> Array:
    """Uniform int64 integers in [0, 2^62), the same for the same shape and seed on every machine (Philox 4x64).

    Raises:
        BadInput: when `seed` is negative.
    """
    expect(seed >= 0, "seed", "an integer >= 0", seed)
    raw = np.random.Philox(seed).random_raw(int(np.prod(shape, dtype=np.int64)))
    return (np.asarray(raw, np.uint64) >> np.uint64(64 - _RANDOM_BITS)).astype(np.int64).reshape(shape)
