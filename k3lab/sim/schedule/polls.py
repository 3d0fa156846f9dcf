"""What a waiting loop waits for: which words of memory, what they should be, and what they are.

The loop is run once more for the waves that wait in it, with every value kept; a waiting loop changes nothing. What a
load in it gave is followed to where it meets a value that no load gave: by equality, a difference or an exclusive or.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from k3lab.geometry import LANES
from k3lab.lowering.ir import Op
from k3lab.sim.decode.access import looks
from k3lab.sim.memory.spaces import OFFSET_MASK
from k3lab.sim.step import Step

if TYPE_CHECKING:
    from k3lab.sim.checks.watch import Watch
    from k3lab.sim.engine import Engine
    from k3lab.sim.schedule.cohort import Cohort

SHOWN, MEMBERS = 8, 8  # of a list
LDS = 3
MOVES = ("llvm.extractelement", "llvm.bitcast", "llvm.trunc", "llvm.zext", "llvm.sext", "llvm.lshr", "llvm.freeze")
MEETINGS = ("llvm.icmp", "llvm.xor", "llvm.sub")
JOINS = ("llvm.and", "llvm.or")
EQUAL = 0  # of the predicates
UNIT = {"pairs": "pair", "flags": "flag", "rows": "byte"}


@dataclass(frozen=True)
class Meeting:
    """Where part of what was loaded, `offset` bytes into it, meets another value; values are SSA numbers.

    Attributes:
        change: whether the loop goes on while the two are equal.
    """

    load: Op
    offset: int
    seen: int
    wanted: int
    change: bool


def awaited(engine: Engine, cohort: Cohort) -> str:
    """` for pairs 3, 4 of QP (expected 263, seen 7)`, as far as it can be told; empty if it cannot."""
    body = engine.linked.loops[cohort.block].body if cohort.block in engine.linked.loops else frozenset()
    try:
        values = _values(engine, cohort, body)
        words: dict[tuple[str, str, str], list[int]] = {}  # places, by where they are, in what unit, and what is wrong
        meetings = list(_meetings(engine, body))
        if not any(True for met in meetings for _ in _words(engine, cohort, met, values)):
            meetings = [replace(met, change=not met.change) for met in meetings]  # it goes on as nothing here explains
        for met in meetings:
            for place, where in _words(engine, cohort, met, values):
                words.setdefault(where, []).append(place)
    except Exception:  # a report of a fault must not end in another one
        return ""
    parts = [
        f"{unit}{'s' if len(places) > 1 and unit else ''} {shown(places)} of {region} ({what})"
        for (region, unit, what), places in list(words.items())[:SHOWN]
    ]
    return (f" for {', '.join(parts)}" + (", ..." if len(words) > SHOWN else "")) if parts else ""


def shown(items: list[int]) -> str:
    """The first few of a list."""
    return ", ".join(map(str, items[:MEMBERS])) + (", ..." if len(items) > MEMBERS else "")


class _Probe(Step):
    """A step that keeps every value and changes nothing."""

    def __init__(self, engine: Engine, cohort: Cohort, ops: tuple[Op, ...], kept: dict[int, Any]) -> None:
        super().__init__(engine, cohort, ops)
        self.kept = kept
        self.strict = self.follows_poison = False
        self.meter = None
        if self.watch is not None:
            self.watch = _View(self.watch)  # type: ignore[assignment]

    def note(self, number: int, operands: tuple[Any, ...], result: Any) -> None:
        op = self.ops[number]
        self.kept |= dict(zip(op.operands, operands, strict=False))
        if op.results:
            self.kept[op.results[0]] = result

    def found(self, kind: str, message: str, index: tuple[int, ...] | None = None) -> None:
        """Not again."""

    def count(self, what: str) -> None:
        """Not again."""


class _View:
    """What a watch makes of a load, and nothing else of it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def load(self, step: Step, address: Any, data: Any, only: Any = None) -> Any:
        return self._watch.view(step, address, data, only)

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def _values(engine: Engine, cohort: Cohort, body: frozenset[int]) -> dict[int, Any]:
    """Every value in the loop, after one more turn."""
    kept = dict(cohort.values)
    for block in sorted(body):
        code = engine.linked.codes[block]
        if any("atomic" in op.name or op.name == "llvm.cmpxchg" for op in code.block.ops):
            break
        code.noted()(_Probe(engine, cohort, code.block.ops, kept), kept)
        for edge in code.edges:
            if edge.target in body and edge.target != cohort.block:
                kept |= {arg: kept[source] for arg, source in edge.passed if source in kept}
    return {**engine.linked.constants[cohort.block], **kept}


def _meetings(engine: Engine, body: frozenset[int]) -> Iterator[Meeting]:
    """Where what loads in the loop give meets something else."""
    parts = _parts(engine, body)
    for block in sorted(body):
        for op in engine.linked.codes[block].block.ops:
            loaded = [value in parts for value in op.operands]
            if op.name in MEETINGS and sorted(loaded) == [False, True] and op.operand_types[0].nbytes > 1:
                seen, wanted = sorted(op.operands, key=lambda value: value not in parts)
                yield Meeting(*parts[seen], seen, wanted, _change(engine, body, op))


def _change(engine: Engine, body: frozenset[int], op: Op) -> bool:
    """Whether the loop goes on while both operands are equal.

    A comparison says so of itself, or of the branch that it comes to through `JOINS`; anything else keeps its sense.
    """
    equal = op.name == "llvm.icmp" and op.attrs["predicate"] == EQUAL
    joined, leaves = set(op.results), False
    for code in (engine.linked.codes[block] for block in sorted(body)):
        for other in code.block.ops:
            if other.name in JOINS and joined.intersection(other.operands):
                joined |= set(other.results)
        if code.end.name == "llvm.cond_br" and code.end.operands[0] in joined:
            leaves |= code.edges[0].target not in body
    return equal != leaves


def _parts(engine: Engine, body: frozenset[int]) -> dict[int, tuple[Op, int]]:
    """Values that are part of what a load in the loop gave: which load, and how many bytes into it they start."""
    parts: dict[int, tuple[Op, int]] = {}
    for _ in range(2):  # the second turn finds what goes round the loop
        for block in sorted(body):
            code, constants = engine.linked.codes[block], engine.linked.constants[block]
            for op in code.block.ops:
                if looks(op) and op.operand_types[0].space != LDS:
                    parts[op.results[0]] = op, 0
                elif op.name in MOVES and op.operands[0] in parts and (further := _further(op, constants)) is not None:
                    load, offset = parts[op.operands[0]]
                    parts[op.results[0]] = load, offset + further
            for edge in code.edges:
                if edge.target in body:
                    parts |= {arg: parts[source] for arg, source in edge.passed if source in parts}
    return parts


def _further(op: Op, constants: dict[int, Any]) -> int | None:
    """How many bytes into its operand the result starts; None if that is not fixed."""
    if op.name not in ("llvm.extractelement", "llvm.lshr"):
        return 0
    if op.operands[1] not in constants:
        return None
    number = int(constants[op.operands[1]].flat[0])
    return number * op.result_types[0].nbytes if op.name == "llvm.extractelement" else number // 8


def _words(
    engine: Engine, cohort: Cohort, met: Meeting, values: dict[int, Any]
) -> Iterator[tuple[int, tuple[str, str, str]]]:
    """Which words lanes wait for that are not as they should be: (place, (region, unit, what is wrong))."""
    if met.seen not in values or met.wanted not in values:
        return
    shape = cohort.n, LANES
    address = np.broadcast_to(_address(met.load, values) + met.offset, shape)
    seen, wanted = (np.broadcast_to(values[value], shape) for value in (met.seen, met.wanted))
    here = np.ones(shape, bool) if cohort.mask is None else cohort.mask
    rows, lanes = np.nonzero(here & ((seen == wanted) == met.change))
    _, first = np.unique(address[rows, lanes], return_index=True)
    for i in np.sort(first):
        at = rows[i], lanes[i]
        expected = f"other than {wanted[at]}" if met.change else str(wanted[at])
        place, region, unit = _named(engine, int(address[at]))
        yield place, (region, unit, f"expected {expected}, seen {seen[at]}")


def _address(load: Op, values: dict[int, Any]) -> NDArray[np.int64]:
    if load.name != "rocdl.raw.ptr.buffer.load":
        address: NDArray[np.int64] = values[load.operands[0]]
        return address
    (base, _), voffset, soffset = (values[operand] for operand in load.operands[:3])
    return base + ((voffset.astype(np.int64) + soffset) & 0xFFFFFFFF)


def _named(engine: Engine, address: int) -> tuple[int, str, str]:
    """(place, of what, in what unit) of an address: pair 3 of a region, or byte 8 of a buffer."""
    buffer, offset = engine.globals.find(address), address & OFFSET_MASK
    if buffer is None:
        return address, "memory that no buffer holds", "address"
    found = None if engine.regions is None else engine.regions.at(buffer.base, offset)
    if found is None:
        return offset, buffer.name, "byte"
    region, index = found
    return index, region.title, UNIT[region.kind]
