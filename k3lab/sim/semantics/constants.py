"""Constants, zeros, poison and the operations that pass a value on unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np

from k3lab.formats import BF16
from k3lab.lowering.ir import Op, Type
from k3lab.sim.semantics.registry import Compute, Unsupported, pure
from k3lab.sim.semantics.values import dtype_of, full, held_as, spelled

LOW_HALF = (1 << 64) - 1


@pure("llvm.mlir.constant")
def constant(op: Op) -> Compute:
    """A number, or a vector's flat list of them; `("bits", pattern)` is a float by its bits."""
    kind, value = op.result_types[0], op.attrs["value"]
    if isinstance(value, str | dict):
        raise Unsupported(f"a constant {value!r} of type {spelled(kind)}")
    dtype, count = held_as(kind)
    if kind.kind == "int" and kind.bits == 128:
        bits = [value & LOW_HALF, value >> 64 & LOW_HALF]
    else:
        bits = [_bits(item, kind.scalar) for item in (value if isinstance(value, list) else [value])]
    held = np.empty((1, 1) if count is None else (1, 1, count), dtype)
    held[...] = np.array(bits, f"u{dtype.itemsize}").view(dtype)
    return _always(held)


@pure("llvm.mlir.zero", "llvm.mlir.poison", "llvm.mlir.undef")
def zero(op: Op) -> Compute:
    """Zero everywhere; what LLVM leaves undefined is zero too."""
    return _always(full(op.result_types[0]))


@pure("llvm.freeze", "llvm.intr.ssa.copy", "llvm.intr.arithmetic.fence", "llvm.intr.expect")
def same(op: Op) -> Compute:
    """The first operand."""
    return lambda value, *_: value


@pure("rocdl.wavefrontsize")
def wavefront_size(op: Op) -> Compute:
    """64 lanes."""
    return _always(full(op.result_types[0], 64))


def _always(value: Any) -> Compute:
    for part in value if isinstance(value, tuple) else (value,):
        if isinstance(part, np.ndarray):
            part.setflags(write=False)
    return lambda: value


def _bits(value: Any, scalar: Type) -> int:
    """One number's bits: no float conversion touches the payload of a NaN."""
    dtype = dtype_of(scalar)
    if isinstance(value, tuple):
        return int(value[1])
    if scalar.kind == "float":
        held = BF16.encode(np.float64(value)) if scalar.name == "bf16" else np.array(value, dtype)
        return int(held.view(f"u{dtype.itemsize}"))
    return int(value) & ((1 << scalar.bits) - 1)
