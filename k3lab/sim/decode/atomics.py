"""Atomic memory operations: the lanes of a wave go one after the other, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from k3lab.lowering.ir import Op, Type
from k3lab.sim.decode.makers import Access, access
from k3lab.sim.memory.reach import PRIVATE, U32, check_aligned, inside, load_one, space_of, store_one
from k3lab.sim.memory.values import from_bytes, to_bytes
from k3lab.sim.semantics.floats import computed
from k3lab.sim.semantics.minmax import maximum, maxnum, minimum, minnum
from k3lab.sim.semantics.pointers import APERTURES, GENERIC
from k3lab.sim.semantics.registry import Unsupported

if TYPE_CHECKING:
    from k3lab.sim.step import Step

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
Combine = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
Cell = tuple[slice, slice]


def _unsigned(x: NDArray[Any]) -> NDArray[Any]:
    return x.view(f"u{x.dtype.itemsize}")


def _counted_up(old: NDArray[Any], top: NDArray[Any]) -> NDArray[Any]:
    return np.where(_unsigned(old) >= _unsigned(top), np.zeros_like(old), old + 1)


def _counted_down(old: NDArray[Any], top: NDArray[Any]) -> NDArray[Any]:
    return np.where((old == 0) | (_unsigned(old) > _unsigned(top)), top, old - 1)


_COMBINE: dict[str, Combine] = {
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
    "fmax": maxnum,
    "fmin": minnum,
    "uinc_wrap": _counted_up,
    "udec_wrap": _counted_down,
    "usub_cond": lambda old, new: np.where(_unsigned(old) >= _unsigned(new), old - new, old),
    "usub_sat": lambda old, new: np.where(_unsigned(old) >= _unsigned(new), old - new, 0),
    "fmaximum": maximum,
    "fminimum": minimum,
}
_BIN_OPS = tuple(_COMBINE)
"""Operations in the order MLIR numbers them."""

_BUFFER_OPS = {name: name for name in ("add", "sub", "and", "or", "xor", "umin", "umax", "fadd", "fmin", "fmax")}
_BUFFER_OPS |= {"smin": "min", "smax": "max", "swap": "xchg"}
BUFFER_ATOMIC = "rocdl.raw.ptr.buffer.atomic."


@access("llvm.atomicrmw")
def atomic(op: Op) -> Access:
    """A read-modify-write through a pointer; gives what was there."""
    kind, space = op.operand_types[1], op.operand_types[0].space
    align = int(op.attrs.get("alignment", 1) or 1)
    combine = _combining(_BIN_OPS[int(op.attrs["bin_op"])], kind)

    def run(step: Step, address: I64, value: NDArray[Any]) -> NDArray[Any]:
        check_aligned(step, step.safe(address), max(align, kind.nbytes))
        return _each_lane(step, space, address, value, kind, combine)

    return run


@access(*(BUFFER_ATOMIC + name for name in _BUFFER_OPS))
def buffer_atomic(op: Op) -> Access:
    """A read-modify-write in a buffer; lanes past num_records are dropped."""
    kind = op.operand_types[0]
    combine = _combining(_BUFFER_OPS[op.name.removeprefix(BUFFER_ATOMIC)], kind)

    def run(step: Step, value: NDArray[Any], resource: tuple[I64, I64], voffset: I64, soffset: I64, *_: Any) -> Any:
        address, use = _in_buffer(step, resource, voffset, soffset, kind)
        old = _each_lane(step, 1, address, value, kind, combine, use)
        return old if op.results else None

    return run


@access(BUFFER_ATOMIC + "cmpswap")
def buffer_compare_exchange(op: Op) -> Access:
    """Compare and exchange in a buffer; gives what was there."""
    kind = op.operand_types[0]

    def run(
        step: Step,
        new: NDArray[Any],
        expected: NDArray[Any],
        resource: tuple[I64, I64],
        voffset: I64,
        soffset: I64,
        *_: Any,
    ) -> NDArray[Any]:
        address, use = _in_buffer(step, resource, voffset, soffset, kind)
        return _exchange(step, 1, address, expected, new, kind, use)[0]

    return run


@access("llvm.cmpxchg")
def compare_exchange(op: Op) -> Access:
    """Compare and exchange: (old, whether it was exchanged)."""
    kind, space = op.operand_types[1], op.operand_types[0].space

    def run(step: Step, address: I64, expected: NDArray[Any], new: NDArray[Any]) -> tuple[NDArray[Any], Bools]:
        check_aligned(step, step.safe(address), kind.nbytes)
        return _exchange(step, space, address, expected, new, kind)

    return run


def _combining(name: str, kind: Type) -> Combine:
    return computed(kind.scalar, _COMBINE[name]) if name.startswith("f") else _COMBINE[name]


def _in_buffer(
    step: Step, resource: tuple[I64, I64], voffset: I64, soffset: I64, kind: Type
) -> tuple[I64, Bools | None]:
    """Addresses, and which lanes are below num_records (None: all)."""
    base, records = resource
    offset = (voffset.astype(np.int64) + soffset) & U32
    within = inside(step, records, offset, kind.nbytes).all(-1)
    if within.all():
        return base + offset, None
    step.count("buffer atomic past num_records")
    return base + offset, np.broadcast_to(within, (step.n, 64))


def _each_lane(
    step: Step,
    space: int,
    address: I64,
    value: NDArray[Any],
    kind: Type,
    combine: Combine,
    use: Bools | None = None,
) -> NDArray[Any]:
    address, value = step.spread(address), step.spread(value)
    old = np.zeros_like(value)
    for at, here, where, row in _cells(step, space, address, use):
        now = load_one(step, where, here, kind.nbytes, row)
        if now is None:
            continue
        old[at] = from_bytes(now, kind)
        new = to_bytes(combine(old[at], value[at]).astype(value.dtype), kind)
        if (new != now).any():  # one that changes nothing wakes nobody
            store_one(step, where, here, new, row[0])
    return old


def _exchange(
    step: Step,
    space: int,
    address: I64,
    expected: NDArray[Any],
    new: NDArray[Any],
    kind: Type,
    use: Bools | None = None,
) -> tuple[NDArray[Any], Bools]:
    address, expected, new = step.spread(address), step.spread(expected), step.spread(new)
    old, done = np.zeros_like(new), np.zeros(new.shape, bool)
    for at, here, where, row in _cells(step, space, address, use):
        now = load_one(step, where, here, kind.nbytes, row)
        if now is None:
            continue
        old[at] = from_bytes(now, kind)
        done[at] = old[at] == expected[at]
        if done[at].all():
            store_one(step, where, here, to_bytes(new[at], kind), row[0])
    return old, done


def _cells(step: Step, space: int, address: I64, use: Bools | None) -> Any:
    """Of every lane that takes part: where it stands in arrays, its address and address space, (row, lane)."""
    for row, lane in step.active():
        if use is not None and not use[row, lane]:
            continue
        at: Cell = (slice(row, row + 1), slice(lane, lane + 1))
        here, where = address[at], space
        if space == GENERIC:
            where = space_of(int(here.flat[0]))
            here = here - APERTURES.get(where, 0)
        if where == PRIVATE:
            raise Unsupported("atomic operations on private memory")
        yield at, here, where, (row, lane)
