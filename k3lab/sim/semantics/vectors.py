"""Vectors and structs: taking apart, putting together, reinterpreting, reducing."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from k3lab.lowering.ir import Op, Type
from k3lab.sim.semantics.floats import computed
from k3lab.sim.semantics.minmax import maximum, maxnum, minimum, minnum
from k3lab.sim.semantics.registry import Compute, Unsupported, pure
from k3lab.sim.semantics.values import BUFFER, Array, align_axes, held_as, signed, spelled, unsigned

Binary = Callable[[Array, Array], Array]


@pure("llvm.extractelement")
def extractelement(op: Op) -> Compute:
    """One element; a view where all lanes take the same."""
    held_as(op.operand_types[0])
    count = op.operand_types[0].count
    return lambda vector, place: _extract(vector, _clipped(place, count))


def _extract(vector: Array, place: Array) -> Array:
    if place.size == 1:
        return vector[..., place.item()]
    vector = np.broadcast_to(vector, (*np.broadcast_shapes(vector.shape[:2], place.shape), vector.shape[2]))
    return np.take_along_axis(vector, np.broadcast_to(place, vector.shape[:2])[..., None], axis=2)[..., 0]


@pure("llvm.insertelement")
def insertelement(op: Op) -> Compute:
    """A copy with one element replaced; the simulator runs a chain of them as one `insert_elements`."""
    held_as(op.result_types[0])
    count = op.result_types[0].count
    return lambda vector, value, place: _insert(vector, value, _clipped(place, count))


def insert_elements(places: tuple[int, ...]) -> Compute:
    """A chain of `llvm.insertelement` at constant places as one function of (vector, *values)."""

    def run(vector: Array, *values: Array) -> Array:
        result = np.empty((*_lanes(vector, *values), vector.shape[2]), vector.dtype)
        if len(set(places)) < vector.shape[2]:
            result[...] = vector
        for place, value in zip(places, values, strict=True):
            result[..., place] = value
        return result

    return run


def _insert(vector: Array, value: Array, place: Array) -> Array:
    result = np.empty((*_lanes(vector, value, place), vector.shape[2]), vector.dtype)
    result[...] = vector
    if place.size == 1:
        result[..., place.item()] = value
    else:
        places = np.broadcast_to(place, result.shape[:2])[..., None]
        np.put_along_axis(result, places, np.broadcast_to(value, result.shape[:2])[..., None], axis=2)
    return result


def _lanes(*values: Array) -> tuple[int, ...]:
    return np.broadcast_shapes(*(value.shape[:2] for value in values))


def _clipped(place: Array, count: int) -> Array:
    """Places within the vector: those beyond it are poison, or belong to lanes that are not active."""
    return np.clip(place, 0, count - 1).astype(np.int64)


@pure("llvm.shufflevector")
def shufflevector(op: Op) -> Compute:
    """Elements of two vectors side by side, by constant places; -1 is poison. A view where they are a run of one."""
    held_as(op.operand_types[0])
    count = op.operand_types[0].count
    places = [max(place, 0) for place in op.attrs["mask"]]
    first_place, length = places[0], len(places)
    if places == list(range(first_place, first_place + length)) and first_place // count == places[-1] // count:
        part = slice(first_place % count, first_place % count + length)
        return lambda *pair: pair[first_place // count][..., part]
    sources = [divmod(place, count) for place in places]

    def run(*pair: Array) -> Array:
        result = np.empty((*_lanes(*pair), length), pair[0].dtype)
        for place, (which, source) in enumerate(sources):
            result[..., place] = pair[which][..., source]
        return result

    return run


@pure("llvm.intr.vector.extract")
def vector_extract(op: Op) -> Compute:
    """Consecutive elements."""
    first = op.attrs["pos"]
    part = slice(first, first + op.result_types[0].count)
    return lambda vector: vector[..., part]


@pure("llvm.intr.vector.insert")
def vector_insert(op: Op) -> Compute:
    """Consecutive elements replaced."""
    first = op.attrs["pos"]
    return insert_range(slice(first, first + op.operand_types[1].count))


def insert_range(part: slice) -> Compute:
    """A function of (vector, shorter vector) that puts the second at `part` of the first."""

    def run(vector: Array, inserted: Array) -> Array:
        result = np.empty((*_lanes(vector, inserted), vector.shape[2]), vector.dtype)
        result[...] = vector
        result[..., part] = inserted
        return result

    return run


# -- reinterpreting ----------------------------------------------------------------------------------------------------


@pure("llvm.bitcast")
def bitcast(op: Op) -> Compute:
    """The same bytes, little endian, as another type; nothing passes through a float operation."""
    source, target = op.operand_types[0], op.result_types[0]
    if source.kind == target.kind == "ptr" or source == target:
        return lambda value: value
    from_bits, to_bits = _is_bits(source), _is_bits(target)
    if from_bits or to_bits:
        return _bit_vectors(source, target)
    (from_dtype, from_count), (to_dtype, to_count) = held_as(source), held_as(target)
    if from_dtype.itemsize == to_dtype.itemsize and from_count == to_count:
        return lambda value: value.view(to_dtype)
    if to_count is None:
        return lambda value: _bytes_as(value, to_dtype)[..., 0]
    return lambda value: _bytes_as(align_axes(value, 3), to_dtype)


def _bytes_as(value: Array, dtype: np.dtype[Any]) -> Array:
    return np.ascontiguousarray(value).view(dtype)


def _is_bits(kind: Type) -> bool:
    return kind.scalar.kind == "int" and kind.scalar.bits == 1


def _bit_vectors(source: Type, target: Type) -> Compute:
    """To or from a vector of i1, whose first element is the lowest bit."""
    if _is_bits(target):
        held_as(source)
        return lambda value: np.unpackbits(
            _bytes_as(align_axes(value, 3), np.dtype(np.uint8)), axis=2, count=target.count, bitorder="little"
        ).astype(np.bool_)
    dtype, count = held_as(target)
    if source.count != 8 * dtype.itemsize * (count or 1):
        raise Unsupported(f"from {spelled(source)} to {spelled(target)}")

    def run(value: Array) -> Array:
        packed = _bytes_as(np.packbits(value, axis=2, bitorder="little"), dtype)
        return packed[..., 0] if count is None else packed

    return run


# -- structs -----------------------------------------------------------------------------------------------------------


@pure("llvm.extractvalue")
def extractvalue(op: Op) -> Compute:
    """A struct's (nested) field."""
    places = op.attrs["position"]
    _refuse_buffer(op)
    return lambda struct: reduce(lambda value, place: value[place], places, struct)


@pure("llvm.insertvalue")
def insertvalue(op: Op) -> Compute:
    """A struct with a (nested) field replaced."""
    places = op.attrs["position"]
    _refuse_buffer(op)
    return lambda struct, value: _with_field(struct, value, places)


def _with_field(struct: tuple[Any, ...], value: Any, places: list[int]) -> Any:
    if not places:
        return value
    place, *inner = places
    return (*struct[:place], _with_field(struct[place], value, inner), *struct[place + 1 :])


def _refuse_buffer(op: Op) -> None:
    if op.operand_types[0].kind == "ptr" and op.operand_types[0].space == BUFFER:
        raise Unsupported("fields of a buffer resource")


# -- reductions --------------------------------------------------------------------------------------------------------


def _unsigned_extreme(pick: Binary) -> Binary:
    return lambda a, b: signed(pick(unsigned(a), unsigned(b)))


INTEGER_REDUCTIONS: dict[str, Binary] = {
    "add": np.add,
    "mul": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "smin": np.minimum,
    "smax": np.maximum,
    "umin": _unsigned_extreme(np.minimum),
    "umax": _unsigned_extreme(np.maximum),
}
FLOAT_REDUCTIONS: dict[str, Binary] = {
    "fadd": np.add,
    "fmul": np.multiply,
    "fmin": minnum,
    "fmax": maxnum,
    "fminimum": minimum,
    "fmaximum": maximum,
}
REDUCTION = "llvm.intr.vector.reduce."


@pure(*(REDUCTION + name for name in INTEGER_REDUCTIONS))
def reduce_integers(op: Op) -> Compute:
    """All elements combined."""
    combine = INTEGER_REDUCTIONS[op.name.removeprefix(REDUCTION)]
    vector = op.operand_types[0]
    held_as(vector)
    if _is_bits(vector) and not op.name.endswith((".and", ".or", ".xor")):
        raise Unsupported(spelled(vector))
    return lambda vector: reduce(combine, _elements(vector))


@pure(*(REDUCTION + name for name in FLOAT_REDUCTIONS))
def reduce_floats(op: Op) -> Compute:
    """All elements combined in order, from the start value where there is one; every step is rounded."""
    combine = computed(op.result_types[0].scalar, FLOAT_REDUCTIONS[op.name.removeprefix(REDUCTION)])
    if len(op.operand_types) == 2:
        return lambda start, vector: reduce(combine, _elements(vector), start)
    return lambda vector: reduce(combine, _elements(vector))


def _elements(vector: Array) -> list[Array]:
    return [vector[..., place] for place in range(vector.shape[2])]
