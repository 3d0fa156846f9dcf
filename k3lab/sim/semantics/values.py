"""How SSA values are held: an array [waves, lanes], or [waves, lanes, elements] for a vector.

The first two axes are 1 or n waves and 1 or 64 lanes: what is the same for all is held once, and broadcasting spreads
it where it meets what is not. Integers are signed and wrap around, an i1 is a bool, a bf16 is its bits (uint16), any
pointer is its byte address (int64), an i128 is two int64 elements that can be moved but not computed on. A struct is a
tuple of values, a buffer resource the pair (base, num_records).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3lab.lowering.ir import Type
from k3lab.sim.semantics.registry import Unsupported

Array = NDArray[Any]

BUFFER = 8
"""The address space of buffer resources."""

INTEGERS = {1: np.bool_, 8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOATS = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64}
UNSIGNED = {np.dtype(f"i{width}"): np.dtype(f"u{width}") for width in (1, 2, 4, 8)} | {np.dtype("?"): np.dtype("?")}


def dtype_of(scalar: Type) -> np.dtype[Any]:
    """The dtype that holds a scalar type on which operations compute."""
    held = None
    match scalar.kind:
        case "int":
            held = INTEGERS.get(scalar.bits)
        case "float":
            held = FLOATS.get(scalar.name)
        case "ptr" if scalar.space != BUFFER:
            held = np.int64
    if held is None:
        raise Unsupported(f"no values of type {spelled(scalar)}")
    return np.dtype(held)


def held_as(kind: Type) -> tuple[np.dtype[Any], int | None]:
    """The dtype and the length of the element axis (None: there is none) of a scalar or a vector."""
    if kind.kind == "int" and kind.bits == 128:
        return np.dtype(np.int64), 2
    if kind.kind == "vector":
        return dtype_of(kind.scalar), kind.count
    return dtype_of(kind), None


def spelled(kind: Type) -> str:
    """A type's name for a message."""
    match kind.kind:
        case "vector" | "array":
            assert kind.element
            return f"{kind.kind}<{kind.count} x {spelled(kind.element)}>"
        case "ptr":
            return f"ptr<{kind.space}>"
        case "struct":
            return f"struct<({', '.join(map(spelled, kind.elements))})>"
    return kind.name or f"{kind.kind}{kind.bits}"


def full(kind: Type, value: Any = 0) -> Any:
    """`value` as the one value of that type that all lanes of all waves share; structs are filled throughout."""
    if kind.kind == "struct":
        return tuple(full(element, value) for element in kind.elements)
    if kind.kind == "array":
        assert kind.element
        return tuple(full(kind.element, value) for _ in range(kind.count))
    if kind.kind == "ptr" and kind.space == BUFFER:
        return full(Type("ptr"), value), full(Type("int", 64, "i64"), value)
    dtype, count = held_as(kind)
    return np.full((1, 1) if count is None else (1, 1, count), value, dtype)


def unsigned(value: Array) -> Array:
    """Signed integers seen as unsigned ones."""
    return value.view(UNSIGNED[value.dtype])


def signed(value: Array) -> Array:
    """Unsigned integers seen as signed ones."""
    return value.view(value.dtype.str.replace("u", "i"))


def raw(value: Array) -> Array:
    """A value's bits as integers of its own width, to compare and combine without a float operation."""
    return value if value.dtype.kind in "iub" else value.view(f"i{value.dtype.itemsize}")


def align_axes(value: Array, axes: int) -> Array:
    """A scalar per lane given an element axis of 1 where it meets a vector."""
    return value[..., None] if value.ndim < axes else value
