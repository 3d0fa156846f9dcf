"""Pointers: addresses in bytes, element addressing, casts, buffer resources."""

from __future__ import annotations

from typing import Any

import numpy as np

from k3lab.lowering.ir import Op, Type
from k3lab.lowering.types import parse_type
from k3lab.sim.semantics.registry import Compute, Unsupported, pure
from k3lab.sim.semantics.values import BUFFER, Array, dtype_of, spelled, unsigned

GENERIC = 0
APERTURES = {3: 1 << 56, 5: 1 << 57}
"""What generic pointers into LDS and private memory have added."""

U32 = 0xFFFFFFFF
SHORT_NULL = np.int64(-1)

DYNAMIC = -(2**31)
"""Stands in `rawConstantIndices` for the next operand."""


@pure("llvm.getelementptr")
def getelementptr(op: Op) -> Compute:
    """The base plus every index times its stride; the constant indices are summed at decode time."""
    _plain(op.operand_types[0])
    constant, strides = _offsets(op)
    fixed = np.int64(constant)
    if not strides:
        return (lambda base: base + fixed) if constant else (lambda base: base)

    def run(base: Array, *indices: Array) -> Array:
        address = base + fixed if constant else base
        for index, stride in zip(indices, strides, strict=True):
            address = address + index.astype(np.int64) * stride
        return address

    return run


def _offsets(op: Op) -> tuple[int, list[np.int64]]:
    """The sum of the constant offsets, and the strides of the indices that are operands."""
    element = op.attrs["elem_type"]
    current = element if isinstance(element, Type) else parse_type(str(element))
    constant, strides = 0, []
    for depth, index in enumerate(op.attrs["rawConstantIndices"]):
        if depth and current.kind == "struct":
            constant += field_offset(current, index)
            current = current.elements[index]
            continue
        if depth:
            if current.element is None:
                raise Unsupported(f"an index into {spelled(current)}")
            current = current.element
        stride = allocated(current)
        if index == DYNAMIC:
            strides.append(np.int64(stride))
        else:
            constant += index * stride
    return constant, strides


def allocated(kind: Type) -> int:
    """Bytes from one element of that type to the next."""
    match kind.kind:
        case "array":
            assert kind.element
            return kind.count * allocated(kind.element)
        case "struct":
            return field_offset(kind, len(kind.elements))
    return _round_up(kind.nbytes, alignment(kind))


def alignment(kind: Type) -> int:
    """Natural alignment in bytes: a vector's is its size rounded up to a power of two."""
    match kind.kind:
        case "array":
            assert kind.element
            return alignment(kind.element)
        case "struct":
            return max(map(alignment, kind.elements), default=1)
    return 1 << max(kind.nbytes - 1, 0).bit_length()


def field_offset(struct: Type, place: int) -> int:
    """Where a struct's field starts; one past the last field is the struct's whole size."""
    offset = 0
    for field in struct.elements[:place]:
        offset = _round_up(offset, alignment(field)) + allocated(field)
    following = alignment(struct) if place == len(struct.elements) else alignment(struct.elements[place])
    return _round_up(offset, following)


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


@pure("llvm.inttoptr")
def inttoptr(op: Op) -> Compute:
    """An integer as an address, zero-extended."""
    _plain(op.result_types[0])
    if dtype_of(op.operand_types[0]) == np.int64:
        return lambda value: value
    return lambda value: unsigned(value).astype(np.int64)


@pure("llvm.ptrtoint", "llvm.ptrtoaddr")
def ptrtoint(op: Op) -> Compute:
    """An address as an integer, cut to its width; a buffer resource as its 128 bits: base, num_records, flags 0."""
    if op.operand_types[0].space == BUFFER and op.result_types[0].bits == 128:
        return lambda resource: np.stack(np.broadcast_arrays(resource[0], resource[1] & U32), axis=-1)
    _plain(op.operand_types[0])
    target = dtype_of(op.result_types[0])
    return (lambda address: address) if target == np.int64 else lambda address: address.astype(target)


@pure("llvm.addrspacecast")
def addrspacecast(op: Op) -> Compute:
    """The same place seen from another space: generic pointers tell spaces apart by an aperture's base.

    A null pointer of LDS or private memory (all ones) becomes the generic null and back.
    """
    _plain(op.operand_types[0])
    _plain(op.result_types[0])
    source, target = op.operand_types[0].space, op.result_types[0].space
    if source in APERTURES and target == GENERIC:
        base = np.int64(APERTURES[source])
        return lambda address: np.where(address == SHORT_NULL, np.int64(0), address + base)
    if source == GENERIC and target in APERTURES:
        base = np.int64(APERTURES[target])
        return lambda address: np.where(address == 0, SHORT_NULL, address - base)
    if {source, target} & set(APERTURES):
        raise Unsupported(f"from {spelled(op.operand_types[0])} to {spelled(op.result_types[0])}")
    return lambda address: address


@pure("rocdl.make.buffer.rsrc")
def make_buffer_rsrc(op: Op) -> Compute:
    """(base, num_records in bytes); stride and flags are those of raw buffers throughout."""
    _plain(op.operand_types[0])

    def run(base: Array, stride: Array, num_records: Array, flags: Array) -> tuple[Any, Any]:
        return base, unsigned(num_records).astype(np.int64)

    return run


def _plain(kind: Type) -> None:
    if kind.kind == "ptr" and kind.space in (7, BUFFER, 9):
        raise Unsupported(f"a {spelled(kind)}")
