"""The hardware's packed conversions to and from fp8 (e4m3), bf8 (e5m2) and fp4 (E2M1), with and without a scale.

A scale is a float32 of which only the exponent counts: to the narrow format values are divided by it, from it they are
multiplied. In float32 that is exact wherever the narrow format can tell, so that each value is rounded once, to
nearest even.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from k3lab.formats import FP16, bf16_bits, bf16_values
from k3lab.lowering.ir import Op
from k3lab.sim.semantics.casts import to_f16
from k3lab.sim.semantics.narrow import decode_bytes, encode, power_of_two
from k3lab.sim.semantics.registry import Compute, pure
from k3lab.sim.semantics.values import Array, align_axes

Convert = Callable[[Array], Array]

FROM_F32: dict[str, Convert] = {"f32": lambda x: x, "f16": to_f16, "bf16": bf16_bits}
TO_F32: dict[str, Convert] = {"f32": lambda x: x, "f16": lambda x: x.astype(np.float32), "bf16": bf16_values}

SCALED = "rocdl.cvt.scalef32."
EIGHT_BITS = ("fp8", "bf8")
NARROW = (*EIGHT_BITS, "fp4")
WIDE = tuple(FROM_F32)


# -- packing -----------------------------------------------------------------------------------------------------------


@pure(*(f"rocdl.cvt.pk.{narrow}.f32" for narrow in EIGHT_BITS))
def pack_two(op: Op) -> Compute:
    """Two float32 values into one 16-bit half of a word; the other half is the old word's."""
    narrow = op.name.split(".")[3]
    place = int(op.attrs["wordSel"])

    def run(first: Array, second: Array, old: Array) -> Array:
        return _with_bytes(old, [encode(narrow, first), encode(narrow, second)], 2 * place)

    return run


@pure(*(f"{SCALED}pk.{narrow}.{wide}" for narrow in NARROW for wide in WIDE))
def pack_two_scaled(op: Op) -> Compute:
    """Two values over a scale into a part of the old word: a byte of two E2M1 codes, or a 16-bit half of two bytes."""
    narrow, wide = op.name.split(".")[4:]
    widen = TO_F32[wide]
    place = int(op.attrs["dstSelIndex"]) if narrow == "fp4" else 2 * int(op.attrs["dstLoHiSel"])

    def run(old: Array, *values_and_scale: Array) -> Array:
        *values, scale = values_and_scale
        first, second = values if len(values) == 2 else (values[0][..., 0], values[0][..., 1])
        divisor = power_of_two(scale)
        codes = [encode(narrow, widen(value) / divisor) for value in (first, second)]
        if narrow == "fp4":
            codes = [codes[0] | codes[1] << np.uint8(4)]
        return _with_bytes(old, codes, place)

    return run


def _with_bytes(old: Array, octets: list[Array], place: int) -> Array:
    """`old` (a 32-bit word, or two 16-bit ones) with some of its four bytes replaced."""
    lanes = np.broadcast_shapes(old.shape[:2], *(octet.shape for octet in octets))
    held = np.empty((*lanes, 4), np.uint8)
    held[...] = np.ascontiguousarray(align_axes(old, 3)).view(np.uint8)
    for i, octet in enumerate(octets):
        held[..., place + i] = octet
    words = held.view(old.dtype)
    return words if old.ndim == 3 else words[..., 0]


@pure("rocdl.cvt.pkrtz")
def pack_toward_zero(op: Op) -> Compute:
    """Two float32 values as float16, rounded toward zero."""

    def run(first: Array, second: Array) -> Array:
        pair = np.stack(np.broadcast_arrays(first, second), axis=-1)
        return FP16.encode(pair, "zero").view(np.float16)

    return run


# -- unpacking ---------------------------------------------------------------------------------------------------------


@pure(*(f"rocdl.cvt.f32.{narrow}" for narrow in EIGHT_BITS))
def unpack_one(op: Op) -> Compute:
    """One byte of a word as float32."""
    narrow, place = op.name.split(".")[3], op.attrs["byteSel"]
    return lambda word: decode_bytes(narrow, _byte(word, place))


@pure(*(f"rocdl.cvt.pk.f32.{narrow}" for narrow in EIGHT_BITS))
def unpack_two(op: Op) -> Compute:
    """Both bytes of a word's 16-bit half as float32."""
    narrow, half = op.name.split(".")[4], int(op.attrs["wordSel"])
    return lambda word: decode_bytes(narrow, _half(word, half))


@pure(*(f"{SCALED}f32.{narrow}" for narrow in EIGHT_BITS))
def unpack_one_scaled(op: Op) -> Compute:
    """One byte of a word times a scale."""
    narrow, place = op.name.split(".")[4], op.attrs["srcSelIndex"]
    return lambda word, scale: decode_bytes(narrow, _byte(word, place)) * power_of_two(scale)


@pure(*(f"{SCALED}pk.{wide}.{narrow}" for narrow in NARROW for wide in WIDE))
def unpack_two_scaled(op: Op) -> Compute:
    """Two values of a word's part times a scale: a byte's nibbles, or both bytes of a 16-bit half."""
    wide, narrow = op.name.split(".")[4:]
    round_to_wide = FROM_F32[wide]
    if narrow == "fp4":
        place = int(op.attrs["srcSelIndex"])
        read: Convert = lambda word: _byte(word, place)[..., None]  # noqa: E731
    else:
        half = int(op.attrs["srcLoHiSel"])
        read = lambda word: _half(word, half)  # noqa: E731
    return lambda word, scale: round_to_wide(decode_bytes(narrow, read(word)) * power_of_two(scale)[..., None])


def _byte(word: Array, place: int) -> Array:
    return (word >> (8 * place) & 0xFF).astype(np.uint8)


def _half(word: Array, half: int) -> Array:
    """The two bytes [..., 2] of a word's low or high half."""
    return np.stack([_byte(word, 2 * half), _byte(word, 2 * half + 1)], axis=-1)
