"""bf16 as what it is: the upper 16 bits of a float32.

No tables. `bf16_bits` rounds; `bf16_values` and `bf16_pack` only move bits, so that a raw copy keeps
every NaN payload, signalling ones included (a float conversion would set the quiet bit).
"""

from __future__ import annotations

import numpy as np

from k3lab.errors import expect
from k3lab.formats.rounding import Array

_QUIET_NAN = np.uint16(0x7FC0)
_SIGN = np.uint16(0x8000)


def _words(x: Array) -> Array:
    """The bits of a float32 array as uint32, at least 1-D, without a copy where x is contiguous."""
    expect(x.dtype == np.float32, "bf16 source", "a float32 array", x.dtype)
    return np.ascontiguousarray(x).view(np.uint32)


def bf16_bits(x: Array) -> Array:
    """Round float32 `x` to bf16 bits (uint16, same shape): nearest, ties to even, overflow to infinity.

    Every NaN becomes the quiet NaN 0x7FC0 with its sign.
    """
    words = _words(x)
    # Adding just under half a bf16 step, plus one if the kept half is odd, carries exactly when rounding goes up.
    rounded = words >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += words
    rounded >>= np.uint32(16)
    bits = rounded.astype(np.uint16)
    nan = np.isnan(np.atleast_1d(x))
    if nan.any():
        kept_sign = (words >> np.uint32(16)).astype(np.uint16) & _SIGN
        bits = np.where(nan, kept_sign | _QUIET_NAN, bits)
    return bits.reshape(x.shape)


def bf16_odd(x: Array) -> Array:
    """Round float32 `x` to odd: its upper halves (uint16, same shape), the last bit set if any lower bit was.

    That last bit remembers on which side of a tie x lies, so whoever rounds on to at most 6 significant bits, in any
    direction, gets what rounding x itself would give.
    """
    words = _words(x)
    upper = (words >> np.uint32(16)).astype(np.uint16)
    upper |= (words & np.uint32(0xFFFF)) != 0
    return upper.reshape(x.shape)


def bf16_values(bits: Array) -> Array:
    """The float32 values (same shape) of bf16 `bits` (uint16): a shift, every payload preserved."""
    bits = np.asarray(bits)
    expect(bits.dtype == np.uint16, "bf16 bits", "a uint16 array", bits.dtype)
    return (np.asarray(bits.astype(np.uint32)) << np.uint32(16)).view(np.float32)


def bf16_pack(x: Array) -> Array:
    """The bf16 bits (uint16) of float32 values that are bf16 already: a shift, every payload preserved.

    Raises:
        BadInput: when a value needs rounding, which this function refuses to do.
    """
    words = _words(np.asarray(x))
    inexact = (words & np.uint32(0xFFFF)) != 0
    expect(
        not inexact.any(),
        "values to pack as bf16",
        "float32 values with 16 zero low bits",
        f"{int(inexact.sum())} of {inexact.size} that need rounding",
        "round them first",
    )
    return (words >> np.uint32(16)).astype(np.uint16).reshape(np.shape(x))
