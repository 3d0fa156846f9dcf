"""Float constants of the generic text, to the bit: decimals rounded as their format does, and bit patterns."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

HEX = re.compile(r"0x[0-9A-Fa-f]+$")

Float = float | tuple[str, int]
"""A value, or ("bits", pattern) for a NaN, whose payload a Python float may lose."""


@dataclass(frozen=True)
class Format:
    """A binary float format: bits of exponent, and of the fraction without the leading one."""

    exponent: int
    fraction: int

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1


FORMATS = {"f64": Format(11, 52), "f32": Format(8, 23), "f16": Format(5, 10), "bf16": Format(8, 7)}


def parse_float(text: str, name: str) -> Float:
    """The constant that `text` spells in the format `name`; a format not known here keeps the decimal or the bits."""
    made = FORMATS.get(name)
    if HEX.match(text):
        bits = int(text, 16)
        return from_bits(bits, made) if made else ("bits", bits)
    return rounded(float(text), made) if made else float(text)


def from_bits(bits: int, made: Format) -> Float:
    """The value of a bit pattern."""
    exponent = (bits >> made.fraction) & ((1 << made.exponent) - 1)
    fraction = bits & ((1 << made.fraction) - 1)
    sign = -1.0 if bits >> (made.exponent + made.fraction) else 1.0
    if exponent == (1 << made.exponent) - 1:
        return ("bits", bits) if fraction else sign * math.inf
    if exponent:
        fraction |= 1 << made.fraction
    return sign * math.ldexp(fraction, max(exponent, 1) - made.bias - made.fraction)


def rounded(value: float, made: Format) -> float:
    """`value` to the nearest of the format, ties to even, subnormals included."""
    if value == 0 or not math.isfinite(value):
        return value
    _, exponent = math.frexp(value)
    last = max(exponent - 1, 1 - made.bias) - made.fraction
    near = math.ldexp(round(math.ldexp(value, -last)), last)
    largest = math.ldexp(2.0 - math.ldexp(1.0, -made.fraction), made.bias)
    if abs(near) > largest:
        return math.copysign(math.inf, value)
    return math.copysign(near, value)
