"""An access to global memory as the detectors see it: which bytes, by which waves and lanes, with what reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from k3lab.lowering.ir import Loc, Op
from k3lab.sim.memory.spaces import Buffer

if TYPE_CHECKING:
    from k3lab.sim.step import Step

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
What = Literal["load", "store", "atomic"]
Found = Callable[[str, str, tuple[int, int]], None]  # reports a kind, a sentence, and (row, lane) of a step

WORD = 4
DEVICE, SYSTEM = 16, 17  # cache policy bits: SC1, and SC0 | SC1
DEVICE_WIDE, EVERYWHERE = 1, 2  # how far an operation goes
NARROW = ("workgroup", "wavefront", "singlethread")  # synchronisation scopes within a CU
_WIDEST = ("", "one-as")
_MONOTONIC, _ACQUIRES, _RELEASES = 2, (4, 6, 7), (5, 6, 7)  # atomic orderings, as LLVM's dialect numbers them


@dataclass(frozen=True)
class Touch:
    """One operation's elements in one buffer.

    Attributes:
        offset: bytes from the buffer's start, one an element; `wave`, `row` (of the step) and `lane` broadcast with it.
        policy: cache policy bits, as the compiler sets them for an atomic access of some scope.
        loc: the operation's line.
    """

    what: What
    buffer: Buffer
    offset: I64
    size: int
    row: I64
    lane: I64
    wave: I64
    policy: int
    loc: Loc | None

    def only(self, chosen: Bools) -> Touch:
        """The elements where `chosen` holds, flat."""
        chosen = np.broadcast_to(chosen, self.offset.shape)
        row, lane, wave = (np.broadcast_to(v, chosen.shape)[chosen] for v in (self.row, self.lane, self.wave))
        offset = self.offset[chosen]
        return Touch(self.what, self.buffer, offset, self.size, row, lane, wave, self.policy, self.loc)

    def element(self, index: tuple[int, ...]) -> tuple[int, int]:
        """(row, lane) of the element at `index`; further axes of the index are ignored."""
        at = index[: self.offset.ndim]
        row, lane = (np.broadcast_to(v, self.offset.shape)[at] for v in (self.row, self.lane))
        return int(row), int(lane)

    def describe(self, index: tuple[int, ...]) -> str:
        """`load of 8 bytes at x + 128`."""
        return f"{self.what} of {self.size} bytes at {self.buffer.name} + {int(self.offset[index[: self.offset.ndim]])}"


def touches(step: Step, what: What, address: I64, size: int, use: Bools | None) -> Iterator[tuple[Touch, Any]]:
    """What the running operation touches, by buffer, and which of its elements each touch holds.

    Args:
        address: `[n or 1, 64 or 1]`; or flat, one for each lane of `use`.
        use: the lanes that take part; None: all.
    """
    op = step.ops[step.at]
    address, row, lane = _elements(step, address, use)
    if address.size == 0:
        return
    for buffer, chosen, offset in step.globals.parts(address, size, what):
        offset = offset[chosen]
        mine, its_lane = (
            (row, lane) if chosen is ... else (np.broadcast_to(v, address.shape)[chosen] for v in (row, lane))
        )
        yield Touch(what, buffer, offset, size, mine, its_lane, step.waves[mine], policy_of(op), op.loc), chosen


def one_lane(step: Step, what: What, address: I64, size: int, row: int, lane: int) -> Touch:
    """What a single lane touches."""
    [(buffer, _, offset)] = step.globals.parts(address.reshape(1), size, what)
    op, at, its_lane = step.ops[step.at], np.array([row]), np.array([lane])
    return Touch(what, buffer, offset, size, at, its_lane, step.waves[at], policy_of(op), op.loc)


def _elements(step: Step, address: I64, use: Bools | None) -> tuple[I64, I64, I64]:
    """Addresses, rows and lanes that broadcast together, without the lanes that take no part."""
    if use is None:
        shape = (step.n, address.shape[1])
        return np.broadcast_to(address, shape), np.arange(step.n)[:, None], np.arange(shape[1])[None, :]
    if address.ndim == 1:
        row, lane = np.nonzero(_every_row(step, use))
        return np.tile(address, len(row) // len(address)), row, lane
    use = _every_row(step, use)
    if address.shape[1] == 1:  # the same for all lanes: one element a wave
        row = np.flatnonzero(use.any(1))
        return np.broadcast_to(address[:, 0], (step.n,))[row], row, use.argmax(1)[row]
    row, lane = np.nonzero(use)
    return np.broadcast_to(address, use.shape)[row, lane], row, lane


def _every_row(step: Step, use: Bools) -> Bools:
    return np.broadcast_to(use, (step.n, use.shape[1]))


def stored_elements(step: Step, data: NDArray[np.uint8], use: Bools | None) -> NDArray[np.uint8]:
    """The bytes of a store in the order of its elements."""
    if use is None:
        return np.broadcast_to(data, (step.n, *data.shape[-2:]))
    return np.tile(data, (step.n if use.shape[0] == 1 else 1, 1))


def words_of(offset: I64, size: int) -> I64:
    """Numbers of the 4-byte words that an access of `size` bytes covers, `[..., words]`."""
    slack = int((offset & (WORD - 1)).max())
    words: I64 = offset[..., None] // WORD + np.arange((slack + size + WORD - 1) // WORD)
    return words


def policy_of(op: Op) -> int:
    """Cache policy bits of a memory operation; an atomic one works at the scope it names, a volatile one at any."""
    if "aux" in op.attrs:
        return int(op.attrs["aux"])
    if op.attrs.get("volatile_"):
        return SYSTEM
    if op.name in ("llvm.atomicrmw", "llvm.cmpxchg") or int(op.attrs.get("ordering", 0)) >= _MONOTONIC:
        scope = _scope(op.attrs)
        return 0 if scope.startswith(NARROW) else SYSTEM if scope in _WIDEST else DEVICE
    return 0


def reaches(op: Op) -> bool:
    """Whether the operation goes past the caches of a die: by its cache policy, or as a device-wide atomic access."""
    ordered = int(op.attrs.get("ordering", 0)) >= _MONOTONIC and not _scope(op.attrs).startswith(NARROW)
    return bool(policy_of(op) & DEVICE) or ordered


def reach_of(op: Op) -> int:
    """How far the operation goes past caches: 0 (not even past its die's), `DEVICE_WIDE`, or `EVERYWHERE`."""
    if not reaches(op):
        return 0
    ordered = int(op.attrs.get("ordering", 0)) >= _MONOTONIC and _scope(op.attrs) in _WIDEST
    return EVERYWHERE if policy_of(op) & SYSTEM == SYSTEM or ordered else DEVICE_WIDE


def acquires(op: Op) -> bool:
    """Whether the operation drops what the die's caches hold."""
    return reaches(op) and _ordering(op) in _ACQUIRES


def releases(op: Op) -> bool:
    """Whether the operation waits for the wave's stores."""
    return reaches(op) and _ordering(op) in _RELEASES


def drains(bitfield: int) -> bool:
    """Whether an s_waitcnt waits for all global accesses: vmcnt, in bits 3:0 and 15:14 on gfx9, is 0."""
    return (bitfield & 0xF) | (bitfield >> 14 & 0x3) << 4 == 0


def _ordering(op: Op) -> int:
    return int(op.attrs.get("ordering", op.attrs.get("success_ordering", 0)))


def _scope(attrs: Any) -> str:
    return str(attrs.get("syncscope") or "").strip('"')
