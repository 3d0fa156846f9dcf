"""Narrow formats: fp32 to e4m3 with saturation, bf16 to MXFP4 with the `even` scale rule."""

from functools import reduce
from typing import Any

import flydsl._mlir.dialects.rocdl as raw
from flydsl.expr import rocdl

from k3lab.device.dsl import BF16, F32, Int32, T, Vector, fx, located, raw_value

E4M3_MAX = 448.0
MAGNITUDE = 0x7FFF
"""A bf16 without its sign."""
EVEN_HALF = 0x20
"""0x200000, half of E2M1's mantissa step, as the upper half of an fp32 has it."""
E2M1_EXPONENT = 2
"""Of 4, E2M1's largest power of two."""


@located
def saturated(x: Any) -> Any:
    """`x` within e4m3's range, by compare and select: minimum and maximum instructions may lose a NaN."""
    x = (x > F32(E4M3_MAX)).select(F32(E4M3_MAX), x)
    return (x < F32(-E4M3_MAX)).select(F32(-E4M3_MAX), x)


@located
def fp8_word(values: Any) -> Any:
    """Four fp32 to four e4m3, the first in the low byte."""
    a, b, c, d = (saturated(value) for value in values)
    low = Int32(rocdl.cvt_pk_fp8_f32(T.i32, a, b, Int32(0), False))
    return Int32(rocdl.cvt_pk_fp8_f32(T.i32, c, d, low, True))


@located
def even_code(pairs: Any) -> Any:
    """E8M0 code, at least 1, of a block of bf16 pairs by the `even` rule; magnitudes are compared as integers."""
    halves = [half for pair in pairs for half in (pair & MAGNITUDE, (pair >> 16) & MAGNITUDE)]
    exponent = ((reduce(fx.max, halves) + EVEN_HALF) >> 7) & 0xFF
    return fx.max(exponent - E2M1_EXPONENT, Int32(1))


@located
def fp4_words(pairs: Any, code: Any) -> Any:
    """A block of 16 bf16 pairs over the scale `code` stands for, as 4 dwords of E2M1, the first in the low nibble."""
    scale = (code << 23).bitcast(F32)
    return Vector.from_elements([_eight(pairs[4 * i : 4 * i + 4], scale) for i in range(4)], Int32)


def _eight(pairs: Any, scale: Any) -> Any:
    word = Int32(0)
    for place, pair in enumerate(pairs):
        two = Vector.from_elements([pair], Int32).bitcast(BF16)
        word = Int32(raw.cvt_scalef32_pk_fp4_bf16(T.i32, raw_value(word), raw_value(two), raw_value(scale), place))
    return word
