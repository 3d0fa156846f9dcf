"""Matrix instructions."""

from typing import Any

from flydsl.expr import rocdl

from k3lab.device.dsl import F32, T, Vector, located


@located
def mma_bf16(a: Any, b: Any, c: Any) -> Any:
    """D = C + A B, 16 x 16 x 32 in bf16.

    Lane l holds A's row l % 16 and B's column l % 16, both k = 8 (l / 16) .. + 7, and of C and D column l % 16, rows
    4 (l / 16) .. + 3.
    """
    return Vector(rocdl.mfma_f32_16x16x32_bf16(T.f32x4, [a, b, c, 0, 0, 0]), dtype=F32)


@located
def zero_tile() -> Any:
    """An accumulator of 0.0."""
    return Vector.filled(4, 0.0, F32)


FP4 = 4
"""E2M1 as a scaled matrix instruction numbers its operands' formats."""


@located
def mma_scaled(a: Any, b: Any, c: Any, scale_a: Any, scale_b: Any) -> Any:
    """D = C + A B, 16 x 16 x 128 in MXFP4.

    Lane l holds A's row l % 16 and B's column l % 16, both k = 32 (l / 16) .. + 31 in 4 dwords, low nibble first, and
    that block's E8M0 code; C and D as `mma_bf16`.
    """
    operands = [a, b, c, FP4, FP4, 0, scale_a, 0, scale_b]
    return Vector(rocdl.mfma_scale_f32_16x16x128_f8f6f4(T.f32x4, operands), dtype=F32)
