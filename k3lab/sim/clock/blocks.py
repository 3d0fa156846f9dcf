"""The blocks of linked kernels with their costs: what the clock needs to know of each, made when it is first run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from k3lab.sim.clock.costs import Costs
from k3lab.sim.clock.plan import Plan, Point, plans_of, spins_of

if TYPE_CHECKING:
    from k3lab.sim.decode.link import Linked
    from k3lab.sim.decode.program import Code, Run

NO_LOOP = -1


@dataclass(frozen=True)
class Passing:
    """A point with its costs, in ns."""

    before: float
    own: float
    waits: tuple[int, ...]
    drains: bool


@dataclass(frozen=True)
class Timed:
    """A block with its costs.

    Attributes:
        points, end, rows, kept: as in its plan.
        busy: ns for which a wave keeps its SIMD's vector unit or matrix core busy, whichever is longer.
        run: the block's function that passes the points.
    """

    points: dict[int, Passing]
    end: Passing
    rows: dict[int, int]
    kept: tuple[int, ...]
    busy: float
    run: Run


@dataclass(frozen=True)
class Way:
    """What happens on an edge: tokens passed, the loop that is entered, and the one that looks again."""

    moves: tuple[tuple[int, tuple[int, ...]], ...]
    enters: int
    again: int


class Blocks:
    """All blocks of a simulation.

    Attributes:
        rows: how many tokens a wave may have.
        ways: edges on which anything happens, by identity.
    """

    def __init__(self, linked: Linked, costs: Costs) -> None:
        self._linked, self._costs = linked, costs
        self._plans = [plans_of(image.program) for image in linked.images]
        self._made: dict[int, Timed] = {}
        self.rows = max((row for plans in self._plans for plan in plans for row in _rows_of(plan)), default=-1) + 1
        self.ways = dict(self._all_ways())

    def of(self, code: Code, block: int) -> Timed:
        """The block with number `block`, whose code is `code`."""
        if block not in self._made:
            self._made[block] = self._timed(code, block)
        return self._made[block]

    def _timed(self, code: Code, block: int) -> Timed:
        number, place = self._linked.numbers[block], self._linked.place(block)
        plan, program, costs = self._plans[number][place], self._linked.images[number].program, self._costs
        if place not in program.passing:
            program.passing[place] = code.passing(frozenset(plan.points))
        points = {at: self._passing(point) for at, point in plan.points.items()}
        busy = max(plan.work.vector_cycles(costs), plan.work.matrix_cycles(costs)) * costs.cycle_ns
        return Timed(points, self._passing(plan.end), dict(plan.rows), plan.kept, busy, program.passing[place])

    def _passing(self, point: Point) -> Passing:
        before, own = (work.cycles(self._costs) * self._costs.cycle_ns for work in (point.before, point.own))
        return Passing(before, own, point.waits, point.drains)

    def _all_ways(self) -> Iterator[tuple[int, Way]]:
        linked = self._linked
        spins = {
            header + start: {(block + start, target + start) for block, target in edges}
            for image, start in zip(linked.images, linked.starts, strict=False)
            for header, edges in spins_of(image.program).items()
        }
        for block, code in enumerate(linked.codes):
            plan = self._plans[linked.numbers[block]][linked.place(block)]
            for edge, moves in zip(code.edges, plan.moves, strict=True):
                enters = edge.target in spins and block not in linked.loops[edge.target].body
                again = [header for header, edges in spins.items() if (block, edge.target) in edges]
                innermost = min(again, key=lambda header: len(linked.loops[header].body), default=NO_LOOP)
                way = Way(moves, edge.target if enters else NO_LOOP, innermost)
                if way != Way((), NO_LOOP, NO_LOOP):
                    yield id(edge), way


def _rows_of(plan: Plan) -> list[int]:
    return [*plan.rows.values(), *(row for moves in plan.moves for row, _ in moves)]
