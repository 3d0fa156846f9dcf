"""Where in a kernel a wave's time moves, settled before it runs: what comes between, what is waited for, what spins.

A loaded value is a *token* until something uses it: renaming it, or passing it to another block, does not wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from k3lab.lowering.ir import Op
from k3lab.sim.checks.touch import drains, releases
from k3lab.sim.clock.work import MOVES, Work, work_of
from k3lab.sim.decode import access
from k3lab.sim.decode.cfg import Graph, Loop
from k3lab.sim.decode.program import Code, Program, is_clock

Tokens = frozenset[int]
NONE: Tokens = frozenset()


@dataclass(frozen=True)
class Point:
    """An operation at which a wave's time is settled.

    Attributes:
        before: work since the point before; `own`: that of the operation itself, if it reaches memory.
        waits: tokens it uses, by row; `drains`: whether it waits for all the wave's accesses to global memory.
    """

    before: Work
    own: Work
    waits: tuple[int, ...]
    drains: bool


@dataclass(frozen=True)
class Plan:
    """A block as the clock sees it.

    Attributes:
        points: by number of the operation; `end` is that of the terminator.
        rows: by number of the operation that loads, its token's row; `kept`: rows that other blocks wait for.
        moves: by edge, the rows of the successor's arguments that may be tokens, each with the rows passed.
        work: all of it.
    """

    points: Mapping[int, Point]
    end: Point
    rows: Mapping[int, int]
    kept: tuple[int, ...]
    moves: tuple[tuple[tuple[int, tuple[int, ...]], ...], ...]
    work: Work


def plans_of(program: Program) -> tuple[Plan, ...]:
    """The plan of every block of a kernel; a token's row is its own on every wave."""
    return _Planner(program).plans()


def spins_of(program: Program) -> dict[int, frozenset[tuple[int, int]]]:
    """Loops that do nothing but look until they find something, by header: the edges (block, target) to another look.

    What such a loop carries is as it was, or comes from its looks; a loop that counts or adds up is none.
    """
    graph, found = program.graph, {}
    for header in program.polls:
        loop = graph.loops[header]
        if _looks(graph, loop) and not _builds_up(program, loop):
            found[header] = frozenset(_edges_to_another_look(graph, loop))
    return found


class _Planner:
    def __init__(self, program: Program) -> None:
        self._codes, self._constants = program.codes, program.constants
        self._tokens: dict[int, Tokens] = {}
        self._made: dict[int, int] = {}  # the block that each token comes from
        while self._settle():
            pass
        self._rows = {token: row for row, token in enumerate(sorted(self._made))}

    def plans(self) -> tuple[Plan, ...]:
        elsewhere = self._used_elsewhere()
        return tuple(self._plan(number, code, elsewhere) for number, code in enumerate(self._codes))

    def _settle(self) -> bool:
        """Follow tokens once through all blocks; whether anything came of it."""
        before = len(self._made)
        for number, code in enumerate(self._codes):
            for op in code.block.ops:
                self._follow(number, op)
            for edge in code.edges:
                for arg, source in edge.passed:
                    if self._tokens.get(source):
                        self._tokens[arg], self._made[arg] = frozenset({arg}), edge.target
        return len(self._made) > before

    def _follow(self, number: int, op: Op) -> None:
        if not op.results:
            return
        if access.looks(op):
            self._tokens[op.results[0]], self._made[op.results[0]] = frozenset({op.results[0]}), number
        elif op.name in MOVES and (moved := self._of(op.operands)):
            self._tokens[op.results[0]] = moved

    def _of(self, values: Sequence[int]) -> Tokens:
        return NONE.union(*(self._tokens.get(value, NONE) for value in values))

    def _used_elsewhere(self) -> Tokens:
        """Tokens that a block other than their own uses, or that an edge passes on."""
        used: set[int] = set()
        for number, code in enumerate(self._codes):
            mine = self._of([value for op in code.block.ops for value in op.operands])
            used |= {token for token in mine if self._made[token] != number}
            used |= self._of([source for edge in code.edges for _, source in edge.passed])
        return frozenset(used)

    def _plan(self, number: int, code: Code, elsewhere: Tokens) -> Plan:
        points: dict[int, Point] = {}
        before = total = Work()
        waited: set[int] = set()
        ops = code.block.ops
        for i, op in enumerate(ops):
            waits = NONE if op.name in MOVES else self._of(op.operands) - waited
            waited |= waits
            fixed = bool(op.results) and op.results[0] in self._constants
            work, draining = Work() if fixed else work_of(op), _drains(op)
            total += work
            reaches = access.lookup(op.name) is not None
            if waits or draining or reaches or is_clock(op) or i == len(ops) - 1:
                rows = tuple(sorted(self._rows[token] for token in waits))
                own, after = (work, Work()) if reaches or i == len(ops) - 1 else (Work(), work)
                points[i] = Point(before, own, rows, draining)
                before = after
            else:
                before += work
        loads = {i: self._rows[op.results[0]] for i, op in enumerate(ops) if op.results and access.looks(op)}
        kept = tuple(sorted(row for i, row in loads.items() if ops[i].results[0] in elsewhere))
        return Plan(points, points.pop(len(ops) - 1), loads, kept, tuple(self._moves(code)), total)

    def _moves(self, code: Code) -> Iterator[tuple[tuple[int, tuple[int, ...]], ...]]:
        for edge in code.edges:
            yield tuple(
                (self._rows[arg], tuple(sorted(self._rows[token] for token in self._of([source]))))
                for arg, source in edge.passed
                if arg in self._made
            )


def _drains(op: Op) -> bool:
    return (op.name == "rocdl.s.waitcnt" and drains(int(op.attrs["bitfield"]))) or releases(op)


def _looks(graph: Graph, loop: Loop) -> bool:
    return any(access.looks(op) for block in loop.body for op in graph.blocks[block].ops)


def _builds_up(program: Program, loop: Loop) -> bool:
    """Whether the loop carries anything that it makes of what it carried before."""
    carried = {arg for arg, _ in program.graph.blocks[loop.header].args}
    made: dict[int, tuple[int, ...]] = {}
    for block in loop.body:
        for op in program.graph.blocks[block].ops:
            made |= dict.fromkeys(op.results, op.operands)
        for edge in program.codes[block].edges:
            if edge.target in loop.body and edge.target != loop.header:
                for arg, source in edge.passed:
                    made[arg] = (*made.get(arg, ()), source)
    for latch in loop.latches:
        for edge in program.codes[latch].edges:
            for arg, source in edge.passed if edge.target == loop.header else ():
                if source != arg and _reaches(source, carried, made):
                    return True
    return False


def _reaches(value: int, carried: set[int], made: Mapping[int, tuple[int, ...]]) -> bool:
    """Whether `value` is one of those carried, or made of one."""
    seen, todo = {value}, [value]
    while todo:
        if (each := todo.pop()) in carried:
            return True
        new = set(made.get(each, ())) - seen
        seen |= new
        todo += new
    return False


def _edges_to_another_look(graph: Graph, loop: Loop) -> Iterator[tuple[int, int]]:
    """The ways that stay in the loop where there is one out of it."""
    for block in loop.body:
        after = graph.successors[block]
        if any(target not in loop.body for target in after):
            yield from ((block, target) for target in after if target in loop.body)
