"""Bytes and matrix operations of a simulation, counted from what it ran: by launch, stage and buffer.

Bytes are those that active lanes ask for: *issued* ones each time, *unique* ones once for each stage, buffer and kind
of access, to the byte. An address that is computed once for a whole wave counts once a wave.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from k3lab.lowering.ir import Op
from k3lab.sim.checks.touch import Touch
from k3lab.sim.memory.spaces import CONTAINERS
from k3lab.sim.semantics.matrix import NAME as MATRIX_NAME

if TYPE_CHECKING:
    from k3lab.sim.decode.program import Code
    from k3lab.sim.schedule.fleet import Fleet
    from k3lab.sim.step import Step

Marks = NDArray[np.uint8]
Place = tuple[int, int, str, str, str]  # device, launch, stage, buffer, what
Product = tuple[int, int, str, str, int]  # device, launch, stage, operation, its flops
UNKNOWN = "unknown"


@dataclass(frozen=True, order=True)
class Access:
    """Accesses to one buffer of global memory by one stage of one launch of a device.

    Attributes:
        stage: the source line's stage, as `stage_of` tells it.
        buffer: its name in reports.
        what: `load`, `store` or `atomic`.
        count: elements accessed, one a lane.
        issued_bytes, unique_bytes: of all accesses, and of the bytes that any of them touched.
    """

    device: int
    launch: int
    stage: str
    buffer: str
    what: str
    count: int
    issued_bytes: int
    unique_bytes: int

    @property
    def argument(self) -> str:
        """The buffer's name without rank and launch."""
        return self.buffer.partition(" of rank ")[0]


@dataclass(frozen=True, order=True)
class Lds:
    """Bytes that one stage of one launch of a device loaded from LDS and stored there; atomics are both."""

    device: int
    launch: int
    stage: str
    loaded_bytes: int
    stored_bytes: int


@dataclass(frozen=True, order=True)
class Matrix:
    """Matrix instructions of one kind in one stage: `count` of them, and `flops`, 2 M N K each."""

    device: int
    launch: int
    stage: str
    operation: str
    count: int
    flops: int


@dataclass(frozen=True)
class Traffic:
    """What a simulation moved and multiplied; rows are sorted."""

    accesses: tuple[Access, ...]
    lds: tuple[Lds, ...]
    matrix: tuple[Matrix, ...]


@cache
def stage_of(file: str) -> str:
    """The stage that a source file belongs to: its folder below `k3lab/stages`, as in `kda/conv`.

    Elsewhere in k3lab it is the module (`device/context`); of any other file its name without suffix.
    """
    parts = PurePath(file).parts
    if "k3lab" not in parts[:-1]:
        return PurePath(file).stem
    below = parts[len(parts) - parts[::-1].index("k3lab") :]
    if below[0] == "stages" and len(below) > 2:
        return "/".join(below[1:-1])
    return "/".join((*below[:-1], PurePath(below[-1]).stem))


def stage_of_op(op: Op) -> str:
    """The stage of an operation's line."""
    return stage_of(op.loc.file) if op.loc else UNKNOWN


def matrix_flops(op: Op) -> int:
    """2 M N K of a matrix instruction; 0 of anything else."""
    found = MATRIX_NAME.match(op.name)
    return 2 * int(found[1]) ** 2 * int(found[2]) if found else 0


class TrafficCounter:
    """Counts while a simulation runs."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._issued: Counter[Place] = Counter()
        self._counts: Counter[Place] = Counter()
        self._marks: dict[Place, Marks] = {}  # by byte, whether it was touched
        self._lds: Counter[tuple[int, int, str, str]] = Counter()
        self._matrix: Counter[Product] = Counter()
        self._in_block: dict[int, Counter[tuple[str, str, int]]] = {}

    def access(self, device: int, touch: Touch, op: Op) -> None:
        """An access to global memory by waves of `device`."""
        key = (device, int(self._fleet.launch[device]), stage_of_op(op), touch.buffer.name, touch.what)
        self._counts[key] += touch.offset.size
        self._issued[key] += touch.offset.size * touch.size
        if key not in self._marks:
            self._marks[key] = np.zeros(touch.buffer.data.size, np.uint8)
        _mark(self._marks[key], touch.offset, touch.size)

    def lds(self, step: Step, what: str, nbytes: Any) -> None:
        """An access of `nbytes` (of every wave: a number, or [n]) to LDS."""
        stage = stage_of_op(step.ops[step.at])
        for device, mine in self._by_device(step):
            total = int(np.broadcast_to(nbytes, (step.n,))[mine].sum())
            for kind in ("load", "store") if what == "atomic" else (what,):
                self._lds[device, int(self._fleet.launch[device]), stage, kind] += total

    def block(self, step: Step, code: Code) -> None:
        """Waves run a block."""
        if id(code) not in self._in_block:
            found = ((op, matrix_flops(op)) for op in code.block.ops)
            self._in_block[id(code)] = Counter((stage_of_op(op), op.name, flops) for op, flops in found if flops)
        if operations := self._in_block[id(code)]:
            for device, mine in self._by_device(step):
                launch, waves = int(self._fleet.launch[device]), int(np.count_nonzero(mine))
                for operation, count in operations.items():
                    self._matrix[device, launch, *operation] += count * waves

    def traffic(self) -> Traffic:
        """What was counted so far."""
        accesses = (
            Access(*key, self._counts[key], self._issued[key], int(np.count_nonzero(marks)))
            for key, marks in self._marks.items()
        )
        places = sorted({key[:3] for key in self._lds})
        lds = (Lds(*place, *(self._lds[*place, kind] for kind in ("load", "store"))) for place in places)
        matrix = (Matrix(*key[:4], count, count * key[4]) for key, count in self._matrix.items())
        return Traffic(tuple(sorted(accesses)), tuple(lds), tuple(sorted(matrix)))

    def _by_device(self, step: Step) -> list[tuple[int, NDArray[np.bool_]]]:
        device = self._fleet.device[step.workgroup[:, 0]]
        return [(int(each), device == each) for each in np.unique(device)]


def _mark(marks: Marks, offset: NDArray[np.int64], size: int) -> None:
    """Note that `size` bytes from each offset on were touched."""
    container = CONTAINERS.get(size)
    if container is not None and not (offset & (size - 1)).any():
        whole: NDArray[Any] = marks[: marks.size // size * size].view(container)
        whole[offset // size] = np.ones(size, np.uint8).view(container)[0]
    else:
        for byte in range(size):
            marks[offset + byte] = 1
