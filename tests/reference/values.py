"""Stored tensors as float32 arrays, the elementary functions, and the trace of a launch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from k3lab.formats import E2M1, E8M0, FP8_E4M3, bf16_bits, bf16_values, mx
from k3lab.hardware import approx

F32 = NDArray[np.float32]
LOG2E = np.float32(np.log2(np.e))


@dataclass
class Trace:
    """What one rank's arithmetic left behind.

    Attributes:
        exposed: tensors by name.
        points: by name without the launch's, the values before and after a rounding point.
        copies: where an exposed tensor holds raw copies, whose every bit counts (masks by name).
    """

    exposed: dict[str, F32] = field(default_factory=dict)
    points: dict[str, tuple[F32, F32]] = field(default_factory=dict)
    copies: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    def _passed(self, point: str, before: F32, after: F32) -> F32:
        assert before.dtype == np.float32, point
        self.points[point] = (before, after)
        return after

    def bf16(self, point: str, value: F32) -> F32:
        """`value` rounded to bf16, nearest even."""
        return self._passed(point, value, rounded_to_bf16(value))

    def fp8(self, point: str, value: F32) -> F32:
        """`value` compared with and clamped to +-448, then rounded to fp8 e4m3; a NaN passes both comparisons."""
        clamped = np.where(value > 448, np.float32(448), np.where(value < -448, np.float32(-448), value))
        after = FP8_E4M3.decode(FP8_E4M3.encode(clamped.astype(np.float32))).astype(np.float32)
        return self._passed(point, value, after)

    def mxfp4(self, point: str, value: F32) -> F32:
        """`value` in blocks of 32 E2M1 values with an E8M0 scale by the `even` rule."""
        codes, scales = mx.quantise(np.ascontiguousarray(value), "even")
        return self._passed(point, value, from_mxfp4(codes, scales))


def rounded_to_bf16(value: F32) -> F32:
    return bf16_values(bf16_bits(np.ascontiguousarray(value))).reshape(value.shape)


def from_mxfp4(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> F32:
    """E2M1 codes `[..., n]` times the scale of their block, `scales: [..., n / 32]`."""
    spread = np.repeat(E8M0.decode(scales).astype(np.float64), 32, axis=-1)
    return (E2M1.decode(codes).astype(np.float64) * spread).astype(np.float32)


def raw_bits(tensor: torch.Tensor) -> NDArray[np.uint16]:
    """A bf16 tensor's words."""
    return tensor.contiguous().view(torch.int16).numpy().view(np.uint16).copy()


def stored(tensor: torch.Tensor) -> F32:
    """A bf16 or fp32 tensor's values."""
    return bf16_values(raw_bits(tensor)) if tensor.dtype == torch.bfloat16 else tensor.contiguous().numpy().copy()


def exp2(x: F32) -> F32:
    return approx.exp2(np.ascontiguousarray(x))


def rsq(x: F32) -> F32:
    return approx.rsq(np.ascontiguousarray(x))


def exp(x: F32) -> F32:
    """exp2 of x times log2 e."""
    return exp2(x * LOG2E)


def sigmoid(z: F32) -> F32:
    """1 / (1 + exp2(-z log2 e)), a true division."""
    return np.float32(1) / (np.float32(1) + exp2(-z * LOG2E))


def rms_factor(squares: F32, width: int, eps: float) -> F32:
    """rsq of the sum of squares times fp32(1 / width), plus eps: the width's reciprocal is a constant that
    multiplies."""
    return rsq(squares * np.float32(1 / width) + np.float32(eps))
