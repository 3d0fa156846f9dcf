"""Runs a decoded kernel: waves at the same block together, the smallest block first; barriers, polls, deadlock.

Waves that may be waiting (in a loop that reads memory and changes nothing but by atomics) go on only when nothing else
can, and a wave whose loop carries the same values as before, with memory unchanged since, provably spins: it is parked
until something is stored. A loop that reads the clock goes on when only such loops are left, and only then time passes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3lab.errors import BadInput, InternalFault
from k3lab.geometry import LANES
from k3lab.hardware import mfma as mfma_models
from k3lab.sim.adversary import Starved, draw, first_of
from k3lab.sim.cohort import Cohort, each, merge, split
from k3lab.sim.faults import Finding, SimFault, Where
from k3lab.sim.memory import GlobalMemory, LocalMemory
from k3lab.sim.options import Options
from k3lab.sim.program import BARRIER, FIRST_OP_LINE, Code, Edge, Program
from k3lab.sim.races import LdsRaces
from k3lab.sim.regions import RegionMap
from k3lab.sim.step import Step
from k3lab.sim.watch import watch_for

Xyz = tuple[int, int, int]
I64 = NDArray[np.int64]
COMPANY = (1.0, 0.5, 0.0)  # in random orders, by seed: the share of a workgroup's waves that a wave takes along
IDLE_TICKS = 1000  # how far the clock moves when only waiting waves are left


@dataclass
class Engine:
    """One launch of a kernel.

    Attributes:
        ready: cohorts that can run, by block; `polling` those in waiting loops, `parked` those of them that have seen
            nothing new (with the version they saw), `timed` those whose loop reads the clock; `held` lanes whose wave
            has others in such a loop still; `barred` those at a barrier; `last` those the options hold back.
        version: how often memory has changed; `ticks` the clock waves can read.
        steps, lane_instructions: blocks run, and operations times the lanes that were active in them.
    """

    program: Program
    globals: GlobalMemory
    grid: Xyz
    block: Xyz
    args: dict[int, Any]
    options: Options = field(default_factory=Options)
    regions: RegionMap | None = None

    def __post_init__(self) -> None:
        threads = self.block[0] * self.block[1] * self.block[2]
        groups = self.grid[0] * self.grid[1] * self.grid[2]
        if threads % LANES or threads <= 0 or groups <= 0:
            raise BadInput(
                f"launch: expected whole waves of {LANES} threads, got block {self.block}, grid {self.grid}."
            )
        self.waves_per_group = threads // LANES
        self.mfma = mfma_models.get(self.options.mfma)
        self.lds = LocalMemory(groups, self.program.lds_bytes)
        self.ready: dict[int, list[Cohort]] = {}
        self.polling: list[Cohort] = []
        self.timed: list[Cohort] = []
        self.parked: list[tuple[int, Cohort]] = []
        self.held: list[Cohort] = []
        self.last: list[Cohort] = []
        self.races = LdsRaces(self.lds, groups) if self.options.races else None
        self.barred: list[Cohort] = []
        self.arrived = np.zeros(groups, np.int64)
        self.live_lanes = np.full(groups * self.waves_per_group, LANES, np.int64)
        self.live_waves = np.full(groups, self.waves_per_group, np.int64)
        self.version = self.ticks = self.steps = self.lane_instructions = 0
        self.counts: Counter[str] = Counter()
        self.findings: list[Finding] = []
        self.random = np.random.Generator(np.random.PCG64(self.options.seed))
        self.starved = Starved(self.options.hold, self.options.hold_from)
        if self.options.schedule == "adversarial":
            self.starved = draw(self.random, groups, len(self.program.codes))
        self.watch = watch_for(self, self.regions or RegionMap((), (), self.globals))
        self._enqueue(Cohort(0, np.arange(groups * self.waves_per_group), None, dict(self.args)))

    def run(self) -> None:
        """Run until every wave has returned.

        Raises:
            SimFault: when a check stops the simulation, or nothing can go on.
        """
        with np.errstate(all="ignore"):
            while (cohort := self._next()) is not None:
                self.steps += 1
                if self.steps > self.options.max_steps:
                    raise SimFault(Finding("watchdog", f"still running after {self.steps - 1} blocks", Where(None)))
                self._advance(cohort)
        if self.barred or self.parked or self.held:
            raise self._deadlock()

    def report(self, finding: Finding) -> None:
        """Stop at `finding`, or keep it, as the options say."""
        if finding.kind == "uninitialised" and self.options.uninitialised == "warn":
            self.findings.append(finding)
            return
        raise SimFault(finding)

    def _next(self) -> Cohort | None:
        """The cohort to run next, or None when none can."""
        while True:
            while self.ready:
                if (cohort := self._reconverging(self._from_ready())) is not None:
                    return cohort
            arrived = self.watch is not None and self.watch.pass_time(idle=True)
            self._wake()
            if self.polling:
                self._look_again(self.polling)
            elif self.last:
                some, self.last = first_of(self.last, self.waves_per_group)
                for cohort in some:
                    self.ready.setdefault(cohort.block, []).append(cohort)
            elif self.timed:
                self.ticks += IDLE_TICKS
                self._look_again(self.timed)
            elif not arrived:
                return None

    def _look_again(self, waiting: list[Cohort]) -> None:
        """Make those that wait ready, and lanes that wait for them to meet."""
        cohorts = [*waiting, *self.held]
        waiting.clear()
        self.held = []
        for cohort in cohorts:
            self._enqueue(cohort)

    def _reconverging(self, cohort: Cohort) -> Cohort | None:
        """The cohort without lanes whose wave has other lanes in a waiting loop before this block: those wait, too."""
        if cohort.mask is None:
            return cohort
        waiting = (*self.polling, *self.timed, *(c for _, c in self.parked))
        behind = [c for c in waiting if c.block < cohort.block]
        early = np.zeros(cohort.n, bool)
        for other in behind:
            early |= np.isin(cohort.waves, other.waves)
        if early.any():
            self.held.append(cohort.rows(np.flatnonzero(early)))
        return cohort if not early.any() else cohort.rows(np.flatnonzero(~early)) if not early.all() else None

    def _from_ready(self) -> Cohort:
        if self.options.schedule == "random":
            return self._at_random()
        return merge(self.ready.pop(min(self.ready)))

    def _at_random(self) -> Cohort:
        """Some of a workgroup's waves, picked at random, at the smallest block where they are, so that lanes meet."""
        block = int(self.random.choice(list(self.ready)))
        picked = self._some_waves(merge(self.ready[block]))
        for block in sorted(self.ready):
            whole = merge(self.ready.pop(block))
            mine = np.isin(whole.waves, picked)
            if not mine.any():
                self.ready[block] = [whole]
                continue
            if not mine.all():
                self.ready[block] = [whole.rows(np.flatnonzero(~mine))]
            return whole.rows(np.flatnonzero(mine))
        raise AssertionError("no wave picked is ready")

    def _some_waves(self, cohort: Cohort) -> I64:
        """One of the cohort's waves at random, with some of the other waves of its workgroup."""
        group = int(self.random.choice(np.unique(self._groups(cohort))))
        first = int(self.random.choice(cohort.waves[self._groups(cohort) == group]))
        waves = group * self.waves_per_group + np.arange(self.waves_per_group)
        return waves[(self.random.random(len(waves)) < COMPANY[self.options.seed % len(COMPANY)]) | (waves == first)]

    def _groups(self, cohort: Cohort) -> I64:
        return cohort.waves // self.waves_per_group

    def _enqueue(self, cohort: Cohort) -> None:
        """Make the cohort ready; workgroups that are starved come last."""
        go, stay = self.starved.divide(cohort, self.waves_per_group)
        if stay is not None:
            self.last.append(stay)
        if go is not None:
            self.ready.setdefault(go.block, []).append(go)

    def _wake(self) -> None:
        """Parked waves look again once memory has changed."""
        awake = [cohort for version, cohort in self.parked if version < self.version]
        self.parked = [(version, cohort) for version, cohort in self.parked if version >= self.version]
        self.polling += awake

    def _advance(self, cohort: Cohort) -> None:
        code = self.program.codes[cohort.block]
        if self.watch is not None:
            self.watch.pass_time()
        step = Step(self, cohort, code.block.ops)
        lanes = cohort.n * LANES if cohort.mask is None else int(cohort.mask.sum())
        self.lane_instructions += lanes * len(code.block.ops)
        try:
            values = code.run(step, cohort.values)
        except SimFault:
            raise
        except Exception as error:
            raise self._broken(error, code) from error
        values |= {key: value for key, value in cohort.values.items() if key < 0}
        match code.end.name:
            case "llvm.br":
                self._follow(cohort, code.edges[0], values)
            case "llvm.cond_br":
                self._branch(cohort, code, values)
            case "llvm.switch":
                self._switch(cohort, code, values)
            case "llvm.return":
                self._retire(cohort)
            case name if name == BARRIER:
                self._arrive(cohort, code, values)
            case _:
                raise SimFault(Finding("unreachable", "a wave got to an unreachable end", Where(code.end.loc)))

    def _broken(self, error: Exception, code: Code) -> InternalFault:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename != f"<block {code.block.label}>":
            trace = trace.tb_next
        number = trace.tb_lineno - FIRST_OP_LINE if trace else 0
        op = code.block.ops[min(max(number, 0), len(code.block.ops) - 1)]
        return InternalFault(f"simulator: {op.name} at {op.loc} failed: {type(error).__name__}: {error}.")

    def _branch(self, cohort: Cohort, code: Code, values: dict[int, Any]) -> None:
        condition = values[code.end.operands[0]]
        whole = Cohort(cohort.block, cohort.waves, cohort.mask, values)
        for part, edge in zip(split(whole, condition), code.edges, strict=True):
            if part is not None:
                self._follow(part, edge, part.values)

    def _switch(self, cohort: Cohort, code: Code, values: dict[int, Any]) -> None:
        """Case by case, the default last: edge 0 is the default."""
        rest: Cohort | None = Cohort(cohort.block, cohort.waves, cohort.mask, values)
        cases = code.end.attrs.get("case_values") or []
        for case, edge in zip(cases, code.edges[1:], strict=True):
            if rest is None:
                return
            part, rest = split(rest, rest.values[code.end.operands[0]] == case)
            if part is not None:
                self._follow(part, edge, part.values)
        if rest is not None:
            self._follow(rest, code.edges[0], rest.values)

    def _follow(self, cohort: Cohort, edge: Edge, values: dict[int, Any]) -> None:
        """Send the cohort along `edge`; in a waiting loop that has seen nothing new, park it."""
        target = self.program.codes[edge.target]
        passed = {arg: self._value(source, values) for arg, source in edge.passed}
        moved = Cohort(
            edge.target,
            cohort.waves,
            cohort.mask,
            {**{value: self._value(value, values) for value in target.live_in}, **passed},
        )
        moved.values |= {key: seen for key, seen in values.items() if key < 0 and self._within(key, edge.target)}
        if edge.target not in self.program.polls:
            self._enqueue(moved)
            return
        seen = moved.values.get(_seen(edge.target))
        moved.values[_seen(edge.target)] = np.array([[self.version]])
        if cohort.block not in self.program.graph.loops[edge.target].latches or seen is None:
            self._enqueue(moved)
            return
        if edge.target in self.program.timed:
            self.timed.append(moved)
            return
        same = self._unchanged(cohort, edge, values)
        if same.any():
            self.parked.append((int(seen.min()), moved.rows(np.flatnonzero(same))))
        if not same.all():
            self.polling.append(moved.rows(np.flatnonzero(~same)))

    def _within(self, key: int, block: int) -> bool:
        """Whether `block` is in the waiting loop whose visit `key` records."""
        return block in self.program.graph.loops[-1 - key].body

    def _value(self, value: int, values: dict[int, Any]) -> Any:
        return self.program.constants[value] if value in self.program.constants else values[value]

    def _unchanged(self, cohort: Cohort, edge: Edge, values: dict[int, Any]) -> NDArray[np.bool_]:
        """[n] whether a wave carries into the loop's header exactly what it carried there before."""
        same = np.ones(cohort.n, bool)
        for arg, source in edge.passed:
            new = self._value(source, values)
            each(lambda a, b: _and_equal(same, a, b, cohort.mask), values[arg], new)
        return same

    def _retire(self, cohort: Cohort) -> None:
        lanes = LANES if cohort.mask is None else cohort.mask.sum(1)
        self.live_lanes[cohort.waves] -= lanes
        gone = cohort.waves[self.live_lanes[cohort.waves] == 0]
        np.subtract.at(self.live_waves, gone // self.waves_per_group, 1)
        self._release()

    def _arrive(self, cohort: Cohort, code: Code, values: dict[int, Any]) -> None:
        here = LANES if cohort.mask is None else cohort.mask.sum(1)
        elsewhere = np.broadcast_to(here, (cohort.n,)) != self.live_lanes[cohort.waves]
        if elsewhere.any():
            wave = int(cohort.waves[elsewhere.argmax()])
            where = Where(code.end.loc, wave // self.waves_per_group, wave % self.waves_per_group)
            raise SimFault(Finding("barrier-divergence", "some lanes of the wave are elsewhere", where))
        edge = code.edges[0]
        target = self.program.codes[edge.target]
        live = {value: self._value(value, values) for value in target.live_in}
        self.barred.append(Cohort(edge.target, cohort.waves, cohort.mask, live))
        np.add.at(self.arrived, self._groups(cohort), 1)
        self._release()

    def _release(self) -> None:
        """Let every workgroup go on whose live waves have all arrived."""
        if not self.barred:
            return
        complete = (self.arrived > 0) & (self.arrived == self.live_waves)
        if not complete.any():
            return
        waiting, self.barred = self.barred, []
        for cohort in waiting:
            mine = complete[self._groups(cohort)]
            if mine.any():
                self._enqueue(cohort.rows(np.flatnonzero(mine)))
            if not mine.all():
                self.barred.append(cohort.rows(np.flatnonzero(~mine)))
        self.arrived[complete] = 0
        if self.races is not None:
            self.races.epoch[complete] += 1
        if self.watch is not None:
            self.watch.barrier(complete)

    def _deadlock(self) -> SimFault:
        parts = [self._standing(cohort, "waits at the barrier before") for cohort in self.barred]
        parts += [self._standing(cohort, "polls in vain at") for _, cohort in self.parked]
        return SimFault(Finding("deadlock", f"no wave can go on: {'; '.join(parts)}", Where(None)))

    def _standing(self, cohort: Cohort, how: str) -> str:
        groups = np.unique(self._groups(cohort))
        shown = ", ".join(map(str, groups[:8])) + (", ..." if len(groups) > 8 else "")
        loc = next((op.loc for op in self.program.codes[cohort.block].block.ops if op.loc), None)
        return f"{cohort.n} waves of workgroups {shown} {how} {loc}"


def _seen(header: int) -> int:
    """The key under which a cohort keeps what version of memory it saw when it came to a waiting loop's header."""
    return -1 - header


def _and_equal(same: NDArray[np.bool_], old: NDArray[Any], new: NDArray[Any], mask: NDArray[np.bool_] | None) -> None:
    """Clear `same` where a wave's active lanes differ, bit for bit."""
    shape = np.broadcast_shapes(old.shape, new.shape)
    kind = f"V{old.dtype.itemsize}"
    differ = np.broadcast_to(old, shape).copy().view(kind) != np.broadcast_to(new, shape).copy().view(kind)
    differ = differ.reshape(*shape[:2], -1).any(-1)
    if mask is not None:
        differ = differ & mask
    same &= ~np.broadcast_to(differ.any(1), same.shape)
