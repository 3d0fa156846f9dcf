"""Between float formats, and between floats and integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from k3lab.formats import BF16, bf16_bits, bf16_values
from k3lab.lowering.ir import Op, Type
from k3lab.sim.semantics.registry import Compute, Unsupported, pure
from k3lab.sim.semantics.values import Array, dtype_of, spelled, unsigned

QUIET_F16 = np.uint16(0x0200)


@pure("llvm.fptrunc")
def fptrunc(op: Op) -> Compute:
    """Rounded to nearest even; overflow is infinity, a NaN stays one and is quiet."""
    source, target = (kind.scalar.name for kind in (op.operand_types[0], op.result_types[0]))
    match source, target:
        case "f32", "bf16":
            return bf16_bits
        case "f64", "bf16":
            return BF16.encode
        case _, "f16" if source in ("f32", "f64"):
            return to_f16
        case "f64", "f32":
            return lambda x: x.astype(np.float32)
    raise Unsupported(f"from {source} to {target}")


@pure("llvm.fpext")
def fpext(op: Op) -> Compute:
    """The same value in a wider format."""
    source, target = op.operand_types[0].scalar, dtype_of(op.result_types[0].scalar)
    if source.name != "bf16":
        dtype_of(source)
        return lambda x: x.astype(target)
    return bf16_values if target == np.float32 else lambda x: bf16_values(x).astype(target)


@pure("llvm.sitofp", "llvm.uitofp")
def from_integer(op: Op) -> Compute:
    """The nearest float of a signed or unsigned integer; a set single bit is -1 or 1."""
    source, target = dtype_of(op.operand_types[0].scalar), op.result_types[0].scalar
    read = _reader(source, op.name == "llvm.sitofp")
    if target.name in ("f32", "f64"):
        dtype = dtype_of(target)
        return lambda x: read(x).astype(dtype)
    if source.itemsize > 4:
        raise Unsupported(f"from {spelled(op.operand_types[0])} to {target.name}")
    narrow = BF16.encode if target.name == "bf16" else to_f16
    return lambda x: narrow(read(x).astype(np.float64))


@pure("llvm.fptosi", "llvm.fptoui")
def to_integer(op: Op) -> Compute:
    """Truncated toward zero; out of range the nearest end of it, 0 for NaN, as the hardware does."""
    target = dtype_of(op.result_types[0].scalar)
    if target == np.bool_:
        raise Unsupported("to i1")
    widen = widener(op.operand_types[0].scalar)
    wanted = target if op.name == "llvm.fptosi" else unsigned(np.zeros(1, target)).dtype
    return lambda x: clamped(widen(x), wanted).view(target)


def to_f16(x: Array) -> Array:
    """float32 or float64 rounded to float16, NaNs made quiet."""
    half = x.astype(np.float16)
    nan = np.isnan(half)
    if nan.any():
        half.view(np.uint16)[nan] |= QUIET_F16
    return half


def widener(scalar: Type) -> Compute:
    """A function to float64, exactly."""
    dtype_of(scalar)
    if scalar.name == "bf16":
        return lambda x: bf16_values(x).astype(np.float64)
    return lambda x: x.astype(np.float64)


def _reader(source: np.dtype[Any], is_signed: bool) -> Compute:
    if source == np.bool_:
        return (lambda x: -x.astype(np.int8)) if is_signed else (lambda x: x.astype(np.int8))
    return (lambda x: x) if is_signed else unsigned


def clamped(x: Array, target: np.dtype[Any]) -> Array:
    """float64 `x` truncated to the integers of `target`; the range's upper end itself may not be a float64."""
    limits = np.iinfo(target)
    below, above = float(limits.min), float(limits.max + 1)
    inside = (x > below - 1.0) & (x < above) if target.itemsize < 8 else (x >= below) & (x < above)
    whole = np.where(inside, x, 0.0).astype(target)
    whole[x >= above] = limits.max
    whole[x <= below] = limits.min
    return whole
