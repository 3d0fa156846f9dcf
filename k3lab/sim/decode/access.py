"""Memory operations: from an IR operation to a function of (step, operands), made once when a kernel is decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from k3lab.lowering.ir import Op, Type
from k3lab.lowering.types import parse_type
from k3lab.sim.decode import atomics
from k3lab.sim.decode.makers import Access, access, lookup, memory_operations
from k3lab.sim.memory.reach import (
    LDS,
    all_inside,
    check_aligned,
    inside,
    read,
    read_buffer,
    write,
    write_global,
    write_lds,
)
from k3lab.sim.memory.values import from_bytes, to_bytes
from k3lab.sim.semantics.lanes import readfirst
from k3lab.sim.semantics.pointers import allocated

if TYPE_CHECKING:
    from k3lab.sim.step import Step

__all__ = ["LDS", "is_store", "looks", "lookup", "memory_operations"]

I64 = NDArray[np.int64]

TO_LDS = ("rocdl.raw.ptr.buffer.load.lds", "rocdl.global.load.lds", "rocdl.load.to.lds")
DWORD = 4
U32, U48 = 0xFFFFFFFF, (1 << 48) - 1


def is_store(op: Op) -> bool:
    """Whether `op` changes memory, whatever it finds there."""
    return op.name in ("llvm.store", "rocdl.raw.ptr.buffer.store", *TO_LDS)


def looks(op: Op) -> bool:
    """Whether `op` gives what memory holds."""
    atomic = op.name in ("llvm.atomicrmw", "llvm.cmpxchg") or op.name.startswith(atomics.BUFFER_ATOMIC)
    return atomic or op.name in ("llvm.load", "rocdl.raw.ptr.buffer.load", "rocdl.s.buffer.load")


@access("llvm.load")
def load(op: Op) -> Access:
    """A load through a pointer of any address space."""
    kind, align = op.result_types[0], int(op.attrs.get("alignment", 1))
    space = op.operand_types[0].space

    def run(step: Step, address: I64) -> NDArray[Any]:
        address = step.safe(address)
        check_aligned(step, address, align)
        return from_bytes(read(step, space, address, kind.nbytes), kind)

    return run


@access("llvm.store")
def store(op: Op) -> Access:
    """A store through a pointer of any address space."""
    kind, align = op.operand_types[0], int(op.attrs.get("alignment", 1))
    space = op.operand_types[1].space

    def run(step: Step, value: NDArray[Any], address: I64) -> None:
        check_aligned(step, step.safe(address), align)
        write(step, space, address, to_bytes(value, kind))

    return run


@access("llvm.alloca")
def alloca(op: Op) -> Access:
    """Private memory of every lane, the same bytes each time the operation runs, and then new."""
    element = op.attrs["elem_type"]
    size = allocated(element if isinstance(element, Type) else parse_type(str(element)))

    def run(step: Step, count: NDArray[Any]) -> I64:
        place = step.private.allocate(op, size * int(count.max()), step.waves, step.mask)
        return np.array([[place]], np.int64)

    return run


@access("rocdl.raw.ptr.buffer.load")
def buffer_load(op: Op) -> Access:
    """A buffer load: dwords past num_records read as 0."""
    kind = op.result_types[0]

    def run(step: Step, resource: tuple[I64, I64], voffset: I64, soffset: I64, *_: Any) -> NDArray[Any]:
        base, records = resource
        offset = (voffset.astype(np.int64) + soffset) & U32
        return from_bytes(read_buffer(step, base, records, offset, kind.nbytes), kind)

    return run


@access("rocdl.raw.ptr.buffer.store")
def buffer_store(op: Op) -> Access:
    """A buffer store: dwords past num_records are dropped."""
    kind = op.operand_types[0]

    def run(step: Step, value: NDArray[Any], resource: tuple[I64, I64], voffset: I64, soffset: I64, *_: Any) -> None:
        base, records = resource
        offset = (voffset.astype(np.int64) + soffset) & U32
        data = to_bytes(value, kind)
        grain = min(DWORD, kind.nbytes)
        if all_inside(records, offset, kind.nbytes):
            write_global(step, base + offset, data)
            return
        within = inside(step, records, offset, kind.nbytes)
        if within.all():
            write_global(step, base + offset, data)
            return
        step.count("buffer store past num_records")
        for i in range(kind.nbytes // grain):
            part = data[..., grain * i : grain * (i + 1)]
            write_global(step, base + offset + grain * i, part, within[..., i])

    return run


@access("rocdl.s.buffer.load")
def scalar_buffer_load(op: Op) -> Access:
    """A scalar load by a buffer resource of four words; one offset for the wave, dwords past num_records are 0."""
    kind = op.result_types[0]

    def run(step: Step, resource: NDArray[Any], offset: NDArray[Any], *_: Any) -> NDArray[Any]:
        base, records = np.moveaxis(np.ascontiguousarray(resource).view(np.int64), -1, 0)
        place = _same_in_wave(step, offset.astype(np.int64) & U32, "scalar load whose offset")
        base, records = (_same_in_wave(step, x, "scalar load whose resource") for x in (base & U48, records & U32))
        return from_bytes(read_buffer(step, base, records, place, kind.nbytes), kind)

    return run


def _same_in_wave(step: Step, value: I64, what: str) -> I64:
    """The first active lane's value; a strict run reports one that differs between the active lanes."""
    first = readfirst(step, value)
    if step.strict and (differ := value != first).any():
        differ = differ if step.mask is None else differ & step.mask
        if differ.any():
            step.report("not-uniform", f"{what} differs between the wave's active lanes", differ)
    return first


@access("rocdl.raw.ptr.buffer.load.lds")
def buffer_load_to_lds(op: Op) -> Access:
    """A buffer load that goes to LDS: to one base for the wave, plus the size for every lane before this one.

    Dwords past num_records arrive as 0. The data is there at once; on hardware, once the wave has waited for vmcnt.
    """

    def run(
        step: Step,
        resource: tuple[I64, I64],
        target: I64,
        size: NDArray[Any],
        voffset: I64,
        soffset: I64,
        fixed: NDArray[Any],
        *_: Any,
    ) -> None:
        base, records = resource
        nbytes, more = int(size.flat[0]), int(fixed.flat[0])
        offset = (voffset.astype(np.int64) + soffset + more) & U32
        _to_lds(step, target + more, read_buffer(step, base, records, offset, nbytes))

    return run


@access("rocdl.global.load.lds", "rocdl.load.to.lds")
def global_load_to_lds(op: Op) -> Access:
    """The same from global memory, through a pointer."""
    nbytes, more = int(op.attrs["size"]), int(op.attrs["offset"])

    def run(step: Step, source: I64, target: I64) -> None:
        address = step.safe(source + more)
        check_aligned(step, address, min(nbytes, DWORD))
        _to_lds(step, target + more, read(step, 1, address, nbytes))

    return run


def _to_lds(step: Step, target: I64, data: NDArray[np.uint8]) -> None:
    nbytes = data.shape[-1]
    first = _same_in_wave(step, target, "load to LDS whose base")
    check_aligned(step, first, min(nbytes, DWORD))
    write_lds(step, first + nbytes * np.arange(64), data)
