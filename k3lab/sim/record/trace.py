"""A trace: what one wave of a simulation computes, operation by operation, with the lanes that were active.

    >>> trace = Trace(group=3, wave=0, lines=range(40, 60))
    >>> simulate(module, *args, options=Options(trace=trace))
    >>> for step in trace.at(52):
    ...     print(step)

Blocks that the wave does not run cost nothing, and without a trace nothing does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from k3lab.errors import expect
from k3lab.files import write_whole
from k3lab.geometry import LANES
from k3lab.lowering.ir import Loc, Op
from k3lab.sim.semantics.values import spelled

if TYPE_CHECKING:
    from k3lab.sim.decode.program import Code, Run
    from k3lab.sim.memory.spaces import GlobalMemory
    from k3lab.sim.step import Step

Values = Any  # an array [64] or [64, n], or a tuple of them for structs and buffer resources


@dataclass(frozen=True, eq=False)
class TraceStep:
    """One operation that the wave ran.

    Attributes:
        number: its place in the trace.
        loc, name, text: source location, operation, and the operation spelled out.
        result, operands: SSA values by number (None: it gives none).
        value, operand_values: what they held, lane by lane: [64], or [64, n] for vectors; structs and buffer resources
            are tuples. In lanes that were not active it is garbage.
        mask: [64] the active lanes.
        visit: how often the wave had come to this operation before, with some or all of its lanes.
        block: the basic block's label.
    """

    number: int
    loc: Loc | None
    name: str
    text: str
    result: int | None
    operands: tuple[int, ...]
    value: Values
    operand_values: tuple[Values, ...]
    mask: NDArray[np.bool_]
    visit: int
    block: str

    def lane(self, lane: int) -> Any:
        """The result in one lane."""
        return _in_lane(self.value, lane)

    def as_dict(self) -> dict[str, Any]:
        """The step as plain Python values."""
        plain = {name: getattr(self, name) for name in ("number", "name", "text", "result", "visit", "block")}
        place = {} if self.loc is None else {"file": self.loc.file, "line": self.loc.line, "column": self.loc.column}
        values = {
            "operands": list(self.operands),
            "value": _plain(self.value),
            "operand_values": [_plain(value) for value in self.operand_values],
            "mask": self.mask.tolist(),
        }
        return plain | place | values

    def __str__(self) -> str:
        shown = "" if self.value is None else f" = {self.value!r}"
        return f"{self.loc or 'an unknown line'} visit {self.visit}: {self.text}{shown} ({int(self.mask.sum())} lanes)"


@dataclass
class Trace:
    """What to record of a simulation, and what was recorded.

    Attributes:
        group, wave: the workgroup and the wave in it; `rank`: of which device.
        start: the source line at whose first operation recording begins; None: at once.
        lines: source lines to record; None: all.
        ops: patterns of operation names (`llvm.f*`) to record.
        limit: steps after which recording stops.
        steps: what was recorded, in order.
        full: whether `limit` was reached.
    """

    group: int = 0
    wave: int = 0
    rank: int = 0
    start: int | None = None
    lines: range | frozenset[int] | None = None
    ops: tuple[str, ...] = ("*",)
    limit: int = 100_000
    steps: list[TraceStep] = field(default_factory=list)
    full: bool = False
    _visits: Counter[tuple[str, int]] = field(default_factory=Counter, repr=False)
    _runs: dict[int, tuple[Code, Run]] = field(default_factory=dict, repr=False)
    _begun: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        expect(self.group >= 0 and self.wave >= 0, "trace", "a workgroup and a wave", (self.group, self.wave))
        expect(self.limit > 0, "trace: limit", "a number of steps", self.limit)

    # -- while a simulation runs ---------------------------------------------------------------------------------------

    def pick(self, code: Code, step: Step) -> Run:
        """The function that runs a block: one that notes every operation where the wave takes part."""
        if self.full or self._row(step) is None:
            return code.run
        key = id(code)
        if key not in self._runs:
            self._runs[key] = code, code.noted()
        return self._runs[key][1]

    def record(self, step: Step, op: Op, operands: tuple[Any, ...], result: Any) -> None:
        """Note an operation that the wave has just run."""
        block = step.block
        visit = self._visits[block, id(op)]
        self._visits[block, id(op)] += 1
        if self.full or not self._wanted(op):
            return
        row = self._row(step)
        assert row is not None
        values = tuple(_lanes(value, row) for value in operands)
        mask = np.ones(LANES, bool) if step.mask is None else step.mask[row].copy()
        given = op.results[0] if op.results else None
        value = _lanes(result, row) if op.results else None
        number = len(self.steps)
        self.steps.append(
            TraceStep(number, op.loc, op.name, text_of(op), given, op.operands, value, values, mask, visit, block)
        )
        self.full = len(self.steps) >= self.limit

    def _row(self, step: Step) -> int | None:
        """Where the wave is among a step's waves; None if it is not."""
        fleet = step.engine.fleet
        mine = (fleet.device == self.rank) & (fleet.workgroup == self.group)
        here = np.flatnonzero(mine[step.workgroup] & (step.wave_in_block == self.wave))
        return int(here[0]) if len(here) else None

    def _wanted(self, op: Op) -> bool:
        line = None if op.loc is None else op.loc.line
        self._begun = self._begun or self.start is None or line == self.start
        inside = self.lines is None or line in self.lines
        return self._begun and inside and any(fnmatchcase(op.name, pattern) for pattern in self.ops)

    # -- afterwards ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[TraceStep]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def at(self, line: int, file: str = "") -> list[TraceStep]:
        """The steps of a source line; `file` is how its file's name ends."""
        return [step for step in self.steps if step.loc and step.loc.line == line and step.loc.file.endswith(file)]

    def between(self, first: int, last: int, file: str = "") -> list[TraceStep]:
        """The steps of the source lines `first` .. `last`."""
        return [step for line in range(first, last + 1) for step in self.at(line, file)]

    def named(self, pattern: str) -> list[TraceStep]:
        """The steps of the operations whose name fits a pattern (`llvm.f*`)."""
        return [step for step in self.steps if fnmatchcase(step.name, pattern)]

    def of(self, value: int) -> list[TraceStep]:
        """The steps that gave an SSA value."""
        return [step for step in self.steps if step.result == value]

    def maker(self, step: int, operand: int) -> TraceStep | None:
        """The step that gave an operand of step number `step`, the last one before it; None if it is not recorded."""
        wanted = self.steps[step].operands[operand]
        return next((before for before in reversed(self.steps[:step]) if before.result == wanted), None)

    def touching(self, base: int, nbytes: int) -> list[TraceStep]:
        """The accesses that begin at an address in `base` .. `base + nbytes`, in an active lane."""
        return [step for step in self.steps if _touches(step, base, nbytes)]

    def touching_buffer(self, memory: GlobalMemory, name: str, start: int = 0, nbytes: int = 2**32) -> list[TraceStep]:
        """The accesses that begin in `nbytes` from byte `start` of a buffer of the simulation (`engine.globals`)."""
        base = next((buffer.base for buffer in memory.buffers if buffer.name == name), None)
        expect(base is not None, "buffer", f"one of {[buffer.name for buffer in memory.buffers]}", name)
        assert base is not None
        return self.touching(base + start, nbytes)

    def as_dicts(self) -> list[dict[str, Any]]:
        """Every step as plain Python values."""
        return [step.as_dict() for step in self.steps]

    def save(self, path: str | Path) -> Path:
        """Write an NPZ file, whole or not at all: `text`, `source`, `line`, `visit`, `mask`; `value_N` of step N.

        Raises:
            BadInput: when the path cannot be written.
        """
        arrays: dict[str, Any] = {
            "text": np.array([step.text for step in self.steps], np.str_),
            "source": np.array([step.loc.file if step.loc else "" for step in self.steps], np.str_),
            "line": np.array([step.loc.line if step.loc else 0 for step in self.steps], np.int64),
            "visit": np.array([step.visit for step in self.steps], np.int64),
            "mask": np.array([step.mask for step in self.steps], np.bool_).reshape(-1, LANES),
        }
        for step in self.steps:
            arrays |= dict(_named_arrays(f"value_{step.number}", step.value))
        return write_whole(path, lambda temporary: _write_npz(temporary, arrays))


def _write_npz(path: Path, arrays: dict[str, Any]) -> None:
    with open(path, "wb") as file:  # a name would get ".npz" added
        np.savez_compressed(file, **arrays)


def _named_arrays(name: str, value: Values) -> Iterator[tuple[str, NDArray[Any]]]:
    if isinstance(value, tuple):
        for i, part in enumerate(value):
            yield from _named_arrays(f"{name}_{i}", part)
    elif value is not None:
        yield name, value


def _lanes(value: Any, row: int) -> Values:
    """A wave's row of a value, for all its lanes."""
    if isinstance(value, tuple):
        return tuple(_lanes(part, row) for part in value)
    mine = value[row if value.shape[0] > 1 else 0]
    return np.broadcast_to(mine, (LANES, *mine.shape[1:])).copy()


def _in_lane(value: Values, lane: int) -> Any:
    return tuple(_in_lane(part, lane) for part in value) if isinstance(value, tuple) else value[lane]


def _plain(value: Values) -> Any:
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return None if value is None else value.tolist()


def _touches(step: TraceStep, base: int, nbytes: int) -> bool:
    place = {"llvm.load": 0, "llvm.store": 1, "llvm.atomicrmw": 0, "llvm.cmpxchg": 0}.get(step.name)
    if place is not None:
        address = step.operand_values[place]
    elif step.name.startswith("rocdl.raw.ptr.buffer.") and not step.name.endswith(".lds"):
        resource = next(i for i, value in enumerate(step.operand_values) if isinstance(value, tuple))
        voffset, soffset = step.operand_values[resource + 1 : resource + 3]
        address = step.operand_values[resource][0] + ((voffset.astype(np.int64) + soffset) & 0xFFFFFFFF)
    else:
        return False
    return bool((step.mask & (address >= base) & (address < base + nbytes)).any())


def text_of(op: Op) -> str:
    """An operation as one line: `%7 = llvm.add %3, %5 : (i32, i32) -> i32`."""
    given = f"%{op.results[0]} = " if op.results else ""
    operands = "".join(f" %{value}" if i == 0 else f", %{value}" for i, value in enumerate(op.operands))
    takes, gives = (", ".join(map(spelled, kinds)) for kinds in (op.operand_types, op.result_types))
    return f"{given}{op.name}{operands} : ({takes}) -> {gives or '()'}"
