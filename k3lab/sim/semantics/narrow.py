"""Codes of the 8-bit and 4-bit formats as the hardware reads and writes them.

The hardware's conversions to fp8 do not clamp: with FP16_OVFL = 0 what exceeds e4m3 after rounding becomes NaN (e5m2
has infinities and uses them). E2M1 has neither, so it saturates; its rules for NaN (+0) and infinity (6) are assumed.
"""

from __future__ import annotations

import numpy as np

from k3lab.formats import E2M1, E8M0, FP8_E4M3, FP8_E5M2, bf16_values
from k3lab.formats.bf16 import bf16_odd
from k3lab.sim.semantics.registry import Unsupported
from k3lab.sim.semantics.values import Array

FORMATS = {"fp8": FP8_E4M3, "bf8": FP8_E5M2, "fp4": E2M1}
"""By the name that operations use."""

E4M3_LIMIT = 464.0  # halfway to the value above 448; the tie itself goes down, to the even code
E4M3_NAN = np.uint8(0x7F)

MATRIX_FORMATS: dict[int | str, str] = {0: "fp8", 1: "bf8", 4: "fp4", "e4m3": "fp8", "e5m2": "bf8", "e2m1": "fp4"}
"""A scaled MFMA's operand format, by number or by how `#rocdl<matrix_format ...>` ends."""

LOW_FIRST = E2M1.decode(np.stack([np.arange(256) & 15, np.arange(256) >> 4], axis=-1))
PAIR_WORDS = LOW_FIRST.view(np.uint64)[:, 0]
BYTE_VALUES = {"fp8": FP8_E4M3.decode(np.arange(256)), "bf8": FP8_E5M2.decode(np.arange(256))}


def _codes_of_upper_halves(name: str) -> Array:
    """The code for each upper half of a float32 that `bf16_odd` can give."""
    values = bf16_values(np.arange(1 << 16).astype(np.uint16))
    codes = FORMATS[name].encode(values)
    return np.where(np.abs(values) > E4M3_LIMIT, codes | E4M3_NAN, codes) if name == "fp8" else codes


CODES = {name: _codes_of_upper_halves(name) for name in FORMATS}


def encode(name: str, x: Array) -> Array:
    """Codes (uint8) of float32 values, rounded to nearest even as the hardware does."""
    return np.take(CODES[name], bf16_odd(x))


def decode_bytes(name: str, octets: Array) -> Array:
    """The float32 values of bytes [..., k]: one each, or two from E2M1 [..., 2 k], low nibble first."""
    if name == "fp4":
        return np.take(PAIR_WORDS, octets).view(np.float32)
    return np.take(BYTE_VALUES[name], octets)


def power_of_two(scale: Array) -> Array:
    """The scale that a conversion takes from a float32: its exponent field alone, 255 standing for NaN."""
    return E8M0.decode(scale.view(np.int32) >> 23 & 0xFF)


def matrix_format(attribute: int | str) -> str:
    """The name of a scaled MFMA's operand format.

    Raises:
        Unsupported: for one of the 6-bit formats.
    """
    key = attribute if isinstance(attribute, int) else attribute.rstrip("> ").rpartition("_")[2]
    if key not in MATRIX_FORMATS:
        raise Unsupported(f"matrix format {attribute}")
    return MATRIX_FORMATS[key]
