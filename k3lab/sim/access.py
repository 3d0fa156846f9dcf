"""Memory operations: from an IR operation to a function of (step, operands), made once when a kernel is decoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from k3lab.lowering.ir import Op
from k3lab.sim.memory import OutOfBounds
from k3lab.sim.semantics.floats import computed
from k3lab.sim.values import from_bytes, to_bytes

if TYPE_CHECKING:
    from k3lab.sim.step import Step

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
Access = Callable[..., Any]

LDS = 3
DWORD = 4
U32 = 0xFFFFFFFF
_MAKERS: dict[str, Callable[[Op], Access]] = {}


def access(*names: str) -> Callable[[Callable[[Op], Access]], Callable[[Op], Access]]:
    """Register a maker for the operations called `names`."""

    def register(maker: Callable[[Op], Access]) -> Callable[[Op], Access]:
        _MAKERS.update(dict.fromkeys(names, maker))
        return maker

    return register


def lookup(name: str) -> Callable[[Op], Access] | None:
    """The maker of the memory operation `name`."""
    return _MAKERS.get(name)


def is_store(op: Op) -> bool:
    """Whether `op` changes memory, whatever it finds there."""
    return op.name in _STORES


def looks(op: Op) -> bool:
    """Whether `op` gives what memory holds."""
    return op.name in ("llvm.load", "rocdl.raw.ptr.buffer.load", "llvm.atomicrmw", "llvm.cmpxchg")


_STORES = frozenset(
    {
        "llvm.store",
        "rocdl.raw.ptr.buffer.store",
        "rocdl.raw.ptr.buffer.load.lds",
        "rocdl.raw.ptr.buffer.atomic.fadd",
    }
)


@access("llvm.load")
def load(op: Op) -> Access:
    """A load through a pointer, LDS or global."""
    kind, align = op.result_types[0], int(op.attrs.get("alignment", 1))
    read = _read_lds if op.operand_types[0].space == LDS else _read_global

    def run(step: Step, address: I64) -> NDArray[Any]:
        address = step.safe(address)
        _check_aligned(step, address, align)
        return from_bytes(read(step, address, kind.nbytes), kind)

    return run


@access("llvm.store")
def store(op: Op) -> Access:
    """A store through a pointer, LDS or global."""
    kind, align = op.operand_types[0], int(op.attrs.get("alignment", 1))
    write = _write_lds if op.operand_types[1].space == LDS else _write_global

    def run(step: Step, value: NDArray[Any], address: I64) -> None:
        _check_aligned(step, step.safe(address), align)
        write(step, address, to_bytes(value, kind), None)

    return run


@access("rocdl.raw.ptr.buffer.load")
def buffer_load(op: Op) -> Access:
    """A buffer load: dwords past num_records read as 0."""
    kind = op.result_types[0]

    def run(step: Step, resource: tuple[I64, I64], voffset: I64, soffset: I64, *_: Any) -> NDArray[Any]:
        base, records = resource
        offset = (voffset.astype(np.int64) + soffset) & U32
        return from_bytes(_read_buffer(step, base, records, offset, kind.nbytes), kind)

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
        if _all_inside(records, offset, kind.nbytes):
            _write_global(step, base + offset, data, None)
            return
        inside = _inside(step, records, offset, kind.nbytes)
        if inside.all():
            _write_global(step, base + offset, data, None)
            return
        step.count("buffer store past num_records")
        for i in range(kind.nbytes // grain):
            part = data[..., grain * i : grain * (i + 1)]
            _write_global(step, base + offset + grain * i, part, inside[..., i])

    return run


@access("llvm.atomicrmw")
def atomic(op: Op) -> Access:
    """A read-modify-write; lanes go one after the other, in order."""
    kind = op.operand_types[1]
    name = _BIN_OPS[int(op.attrs["bin_op"])]
    combine = computed(kind, _COMBINE[name]) if name.startswith("f") else _COMBINE[name]
    lds = op.operand_types[0].space == LDS

    def run(step: Step, address: I64, value: NDArray[Any]) -> NDArray[Any]:
        address, value = step.spread(address), step.spread(value)
        old = np.zeros_like(value)
        for row, lane in step.active():
            at = (slice(row, row + 1), slice(lane, lane + 1))
            now = _load_one(step, address[at], kind.nbytes, lds, (row, lane))
            old[at] = from_bytes(now, kind)
            new = to_bytes(combine(old[at], value[at]).astype(value.dtype), kind)
            if (new != now).any():  # one that changes nothing wakes nobody
                _store_one(step, address[at], new, lds, row)
        return old

    return run


@access("llvm.cmpxchg")
def compare_exchange(op: Op) -> Access:
    """Compare and exchange: (old, whether it was exchanged); lanes go one after the other, in order."""
    kind = op.operand_types[1]
    lds = op.operand_types[0].space == LDS

    def run(step: Step, address: I64, expected: NDArray[Any], new: NDArray[Any]) -> tuple[NDArray[Any], Bools]:
        address, expected, new = step.spread(address), step.spread(expected), step.spread(new)
        old, done = np.zeros_like(new), np.zeros(new.shape, bool)
        for row, lane in step.active():
            at = (slice(row, row + 1), slice(lane, lane + 1))
            old[at] = from_bytes(_load_one(step, address[at], kind.nbytes, lds, (row, lane)), kind)
            done[at] = old[at] == expected[at]
            if done[at].all():
                _store_one(step, address[at], to_bytes(new[at], kind), lds, row)
        return old, done

    return run


_BIN_OPS = (
    "xchg",
    "add",
    "sub",
    "and",
    "nand",
    "or",
    "xor",
    "max",
    "min",
    "umax",
    "umin",
    "fadd",
    "fsub",
    "fmax",
    "fmin",
)
_COMBINE: dict[str, Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]] = {
    "xchg": lambda old, new: new,
    "add": np.add,
    "sub": np.subtract,
    "and": np.bitwise_and,
    "nand": lambda old, new: ~(old & new),
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "max": np.maximum,
    "min": np.minimum,
    "umax": lambda old, new: np.where(_unsigned(old) > _unsigned(new), old, new),
    "umin": lambda old, new: np.where(_unsigned(old) < _unsigned(new), old, new),
    "fadd": np.add,
    "fsub": np.subtract,
    "fmax": np.fmax,
    "fmin": np.fmin,
}


def _unsigned(x: NDArray[Any]) -> NDArray[Any]:
    return x.view(f"u{x.dtype.itemsize}")


def _check_aligned(step: Step, address: I64, align: int) -> None:
    """The compiler picks the instruction by the alignment that the operation promises."""
    off = address & (align - 1)
    if off.any():
        index = tuple(int(i) for i in np.argwhere(off)[0])
        raise step.fault("misaligned", f"address is {int(off[index])} past a multiple of the promised {align}", index)


def _read_global(step: Step, address: I64, size: int, only: Bools | None = None) -> NDArray[np.uint8]:
    """Load for all lanes; those in `only` (None: all) take part in earnest."""
    try:
        data = step.globals.load(address, size)
    except OutOfBounds as error:
        raise step.fault("out-of-bounds", error.what, error.index) from None
    return data if step.watch is None else step.watch.load(step, address, data, only)


def _read_lds(step: Step, address: I64, size: int) -> NDArray[np.uint8]:
    try:
        offset = step.lds.place(step.workgroup, address, size, "load")
    except OutOfBounds as error:
        raise step.fault("out-of-bounds", error.what, error.index) from None
    step.watch_lds("load", offset, size)
    data, written = step.lds.load(offset, size)
    if not written.all():
        index = tuple(int(i) for i in np.argwhere(~written)[0])
        at = int(np.broadcast_to(address, offset.shape)[index])
        step.found("uninitialised", f"load of {size} bytes at LDS + {at}, which nothing has written", index)
    return data


def _read_buffer(step: Step, base: I64, records: I64, offset: I64, size: int) -> NDArray[np.uint8]:
    if _all_inside(records, offset, size):
        return _read_global(step, step.safe(base + offset), size)
    inside = _inside(step, records, offset, size)
    if inside.all():
        return _read_global(step, step.safe(base + offset), size)
    step.count("buffer load past num_records")
    grain = min(DWORD, size)
    shape = np.broadcast_shapes(base.shape, offset.shape, inside.shape[:-1])
    out = np.zeros((*shape, size), np.uint8)
    for i in range(size // grain):
        use = np.broadcast_to(inside[..., i], shape)
        if use.any():
            address = np.broadcast_to(base + offset + grain * i, shape)
            fine = address.flat[int(np.flatnonzero(use)[0])]
            part = _read_global(step, step.safe(np.where(use, address, fine)), grain, use)
            out[..., grain * i : grain * (i + 1)] = np.where(use[..., None], part, 0)
    return out


def _all_inside(records: I64, offset: I64, size: int) -> bool:
    """Whether every lane, active or not, is below num_records: the common case, told by two extremes."""
    return int(offset.max()) + size <= int((records & U32).min())


def _inside(step: Step, records: I64, offset: I64, size: int) -> Bools:
    """By dword (or smaller element), whether it is below num_records, `[W, L, parts]`; inactive lanes count too."""
    grain = min(DWORD, size)
    ends = offset[..., None] + np.arange(grain, size + 1, grain)
    inside = ends <= (records[..., None] & U32)
    return inside if step.mask is None else inside | ~step.mask[..., None]


def _write_global(step: Step, address: I64, data: NDArray[np.uint8], only: Bools | None) -> None:
    rows = step.chosen(address, data, only)
    if rows is None:
        return
    where, address, data = rows
    try:
        if step.watch is None:
            step.globals.store(address, data)
        else:
            step.watch.store(step, where, address, data)
    except OutOfBounds as error:
        raise step.fault("out-of-bounds", error.what, step.back(where, error.index)) from None
    step.stored()


def _write_lds(step: Step, address: I64, data: NDArray[np.uint8], only: Bools | None) -> None:
    size = data.shape[-1]
    try:
        offset = step.lds.place(step.workgroup, step.safe(address), size, "store")
    except OutOfBounds as error:
        raise step.fault("out-of-bounds", error.what, error.index) from None
    rows = step.chosen(offset, data, only)
    if rows is not None:
        step.watch_lds("store", rows[1], size, rows[0])
        step.lds.store(rows[1], rows[2])
        step.stored()


def _load_one(step: Step, address: I64, size: int, lds: bool, at: tuple[int, int]) -> NDArray[np.uint8]:
    if lds:
        data, _ = step.lds.load(step.lds.place(step.workgroup[at[0] : at[0] + 1], address, size, "atomic"), size)
        return data
    try:
        if step.watch is not None:
            step.watch.atomic(step, address, size, *at)
        return step.globals.load(address, size)
    except OutOfBounds as error:
        raise step.fault("out-of-bounds", error.what, at) from None


def _store_one(step: Step, address: I64, data: NDArray[np.uint8], lds: bool, row: int) -> None:
    if lds:
        step.lds.store(step.lds.place(step.workgroup[row : row + 1], address, data.shape[-1], "atomic"), data)
    else:
        step.globals.store(address, data)
    step.stored()
