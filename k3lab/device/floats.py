"""fp32 arithmetic under the twin's names, and bf16 by bits."""

import math
from typing import Any

from flydsl.expr import rocdl

from k3lab.device.dsl import BF16, F32, Int32, T, Vector, located, raw_value

LOG2E = math.log2(math.e)


@located
def exp2(x: Any) -> Any:
    """2^x, the hardware's approximation."""
    return F32(rocdl.exp2(T.f32, raw_value(x)))


@located
def rsq(x: Any) -> Any:
    """1 / sqrt(x), the hardware's approximation."""
    return F32(rocdl.rsq(T.f32, raw_value(x)))


@located
def exp(x: Any) -> Any:
    """e^x = exp2(x log2e)."""
    return exp2(x * F32(LOG2E))


@located
def sigmoid(z: Any) -> Any:
    """1 / (1 + exp2(-z log2e)), with a true division."""
    return F32(1.0) / (F32(1.0) + exp2(z * F32(-LOG2E)))


@located
def rms_scale(sumsq: Any, width: int, eps: float) -> Any:
    """rsq(sumsq (1 / width) + eps): the reciprocal width is a constant that multiplies."""
    return rsq(sumsq * F32(1.0 / width) + F32(eps))


@located
def sum4(values: Any) -> Any:
    """A thread's 4 columns: ((a0 + a1) + a2) + a3."""
    return ((values[0] + values[1]) + values[2]) + values[3]


@located
def in_order(values: Any) -> Any:
    """Summed in order from the first value."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


@located
def from_zero(values: Any) -> Any:
    """Summed in order from 0.0, so that -0.0 becomes +0.0."""
    return in_order([F32(0.0), *values])


@located
def rnd(x: Any) -> Any:
    """fp32 to the nearest bf16, ties to even, held as fp32."""
    return x.to(BF16).to(F32)


@located
def bf16_words(values: Any) -> Any:
    """An even number of fp32 to dwords of two bf16 each, the even value in the low half."""
    return Vector.from_elements(list(values), F32).to(BF16).bitcast(Int32)


@located
def from_words(words: Any, count: int) -> list[Any]:
    """`count` dwords of two bf16 each to fp32 values, by bits: NaN payloads survive."""
    pairs = [(words[i] << 16, words[i] & Int32(-0x10000)) for i in range(count)]
    return [half.bitcast(F32) for pair in pairs for half in pair]


@located
def low_bf16(bits: Any) -> Any:
    """The bf16 in an Int32's low half, as fp32."""
    return (bits << 16).bitcast(F32)
