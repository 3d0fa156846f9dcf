"""Runs linked kernels: waves at the same block together, the smallest block first; barriers, polls, kernel boundaries.

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

from k3lab.geometry import LANES
from k3lab.hardware import mfma as mfma_models
from k3lab.sim.checks.races import LdsRaces
from k3lab.sim.checks.shades import Shades
from k3lab.sim.checks.watch import watch_for
from k3lab.sim.clock.record import Modelled
from k3lab.sim.clock.timer import timer_for
from k3lab.sim.decode.link import Linked
from k3lab.sim.decode.program import BARRIER, BRANCHES, FIRST_OP_LINE, Code, Edge
from k3lab.sim.faults import Finding, SimFault, Where
from k3lab.sim.memory.regions import RegionMap
from k3lab.sim.memory.spaces import GlobalMemory, LocalMemory, PrivateMemory
from k3lab.sim.options import Options
from k3lab.sim.record.meter import meter_for
from k3lab.sim.record.traffic import Traffic, TrafficCounter
from k3lab.sim.schedule.adversary import RandomOrder, first_of, starved_by
from k3lab.sim.schedule.cohort import Cohort, each, merge, split
from k3lab.sim.schedule.fleet import Fleet
from k3lab.sim.schedule.standing import deadlock, interrupted
from k3lab.sim.step import Step

I64 = NDArray[np.int64]
IDLE_TICKS = 1000  # how far the clock moves when only waiting waves are left


@dataclass(repr=False, eq=False)
class Engine:
    """A simulation of devices that launch kernels.

    Attributes:
        ready: cohorts that can run, by block; `polling` those in waiting loops, `parked` those of them that have seen
            nothing new (with the version they saw), `timed` those whose loop reads the clock; `held` lanes whose wave
            has others in such a loop still; `barred` those at a barrier; `last` those the options hold back; `running`
            the one that runs.
        version: how often memory has changed; `ticks` the clock waves can read.
        steps, lane_instructions: blocks run, and operations times the lanes that were active in them.
    """

    linked: Linked
    globals: GlobalMemory
    fleet: Fleet
    options: Options = field(default_factory=Options)
    regions: RegionMap | None = None

    def __post_init__(self) -> None:
        fleet, options = self.fleet, self.options
        self.waves_per_group = fleet.waves_per_group
        self.mfma = mfma_models.get(options.mfma)
        lds_bytes = max(image.program.lds_bytes for image in self.linked.images)
        self.lds = LocalMemory(fleet.slots, lds_bytes, options.fill)
        self.private = PrivateMemory(fleet.slots * fleet.waves_per_group, options.fill)
        self.ready: dict[int, list[Cohort]] = {}
        self.polling: list[Cohort] = []
        self.timed: list[Cohort] = []
        self.parked: list[tuple[int, Cohort]] = []
        self.held: list[Cohort] = []
        self.last: list[Cohort] = []
        self.barred: list[Cohort] = []
        self.running: Cohort | None = None
        self.arrived = np.zeros(fleet.slots, np.int64)
        self.version = self.ticks = self.steps = self.lane_instructions = 0
        self.counts: Counter[str] = Counter()
        self.findings: list[Finding] = []
        self.random = np.random.Generator(np.random.PCG64(options.seed))
        self.starved = starved_by(options, self.random, fleet)
        self.order = RandomOrder(self.random, options.seed, fleet) if options.schedule == "random" else None
        self.races = LdsRaces(self.lds, fleet.slots) if options.races else None
        self.shades = [Shades(fleet.slots * fleet.waves_per_group) for _ in self.linked.images]
        regions = self.regions or RegionMap((), (), self.globals)
        regions.begin(options.fill)
        self.timer = timer_for(self, regions)
        self.counter = TrafficCounter(fleet) if options.count else None
        self.meter = meter_for(self)
        self.watch = watch_for(self, regions)
        for device in range(fleet.devices):
            self._launch(device)

    def run(self) -> None:
        """Run until every launch has ended.

        Raises:
            SimFault: when a check stops the simulation, nothing can go on, or Ctrl-C is pressed.
        """
        try:
            with np.errstate(all="ignore"):
                while (cohort := self._next()) is not None:
                    self.running = cohort
                    self._count()
                    self._advance(cohort)
                    self.running = None
            if self.barred or self.parked or self.held:
                raise deadlock(self)
        except SimFault as fault:
            fault.engine = self
            raise
        except KeyboardInterrupt:
            stopped = interrupted(self)
            stopped.engine = self
            raise stopped from None

    @property
    def clock(self) -> Modelled | None:
        """What the modelled clock has to say, if the options ask for one."""
        return self.timer.record()

    @property
    def traffic(self) -> Traffic | None:
        """What was counted, if the options ask for it."""
        return None if self.counter is None else self.counter.traffic()

    def report(self, finding: Finding) -> None:
        """Stop at `finding`, or keep it, as the options say."""
        if not self.options.keeps(finding.kind):
            raise SimFault(finding)
        if finding.kind == "race":
            self.counts[place := f"race at {finding.where.loc}"] += 1
            if self.counts[place] > 1:
                return
        self.findings.append(finding)

    def _count(self) -> None:
        self.steps += 1
        self.ticks += 1  # an order of events, not a duration
        if self.steps > self.options.max_steps:
            raise SimFault(Finding("watchdog", f"still running after {self.steps - 1} blocks", Where(None)))

    # -- devices -------------------------------------------------------------------------------------------------------

    def _launch(self, device: int) -> None:
        """Start the device's next launch, if there is one."""
        if self.fleet.begin(device):
            dispatch = self.fleet.running(device)
            self.timer.launch(device)
            self.lds.begin(self.fleet.slots_of(device), dispatch.image.program.lds_bytes)
            self.shades[dispatch.number].forget(self.fleet.waves_of(device))
            self._admit(device)

    def _admit(self, device: int) -> None:
        """Start workgroups of the device's launch that there is room for."""
        waves = self.fleet.admit(device)
        if waves.size:
            self.timer.admit(device, waves)
            dispatch = self.fleet.running(device)
            self._enqueue(Cohort(self.linked.starts[dispatch.number], waves, None, dict(dispatch.args)))

    def _retire(self, cohort: Cohort) -> None:
        devices = self.fleet.retire(cohort.waves, LANES if cohort.mask is None else cohort.mask.sum(1))
        self.timer.retire(cohort.waves)
        for device in devices:
            self._admit(device)
            if self.fleet.idle(device):
                self._end(device)
        self._release()

    def _end(self, device: int) -> None:
        """The device's launch has ended: all that was stored is there to see, and the next one starts."""
        self.timer.end(device)
        if self.races is not None:
            self.races.epoch[self.fleet.slots_of(device)] += 1
        if self.watch is not None:
            self.watch.ended(device)
        self._launch(device)

    # -- who runs next -------------------------------------------------------------------------------------------------

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
                self.timer.idle(self.timed, self.version, IDLE_TICKS)
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
        return merge(self.ready.pop(min(self.ready))) if self.order is None else self.order.pick(self.ready)

    def _enqueue(self, cohort: Cohort) -> None:
        """Make the cohort ready; workgroups that are starved come last."""
        go, stay = self.starved.divide(cohort, self.fleet, self.linked.place(cohort.block))
        if stay is not None:
            self.last.append(stay)
        if go is not None:
            self.ready.setdefault(go.block, []).append(go)

    def _wake(self) -> None:
        """Parked waves look again once memory has changed."""
        awake = [cohort for version, cohort in self.parked if version < self.version]
        self.parked = [(version, cohort) for version, cohort in self.parked if version >= self.version]
        self.polling += awake

    # -- a step --------------------------------------------------------------------------------------------------------

    def _advance(self, cohort: Cohort) -> None:
        code = self.linked.codes[cohort.block]
        if self.watch is not None:
            self.watch.pass_time()
        step = Step(self, cohort, code.block.ops, code.block.label)
        lanes = cohort.n * LANES if cohort.mask is None else int(cohort.mask.sum())
        self.lane_instructions += lanes * len(code.block.ops)
        if self.counter is not None:
            self.counter.block(step, code)
        try:
            run = self.timer.enter(step, code, cohort.block)
            run = run if self.options.trace is None else self.options.trace.pick(code, step)
            values = run(step, cohort.values)
            self.timer.leave(step)
            if step.shades and code.end.name in BRANCHES:
                step.refuse(len(code.block.ops) - 1, step.shades.of(step, code.end.operands[0]))
        except SimFault:
            raise
        except Exception as error:
            raise _broken(error, code) from error
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
        if shades := self.shades[self.linked.numbers[cohort.block]]:
            shades.follow(cohort, edge)
        self.timer.follow(cohort, edge)
        moved = self._moved(cohort, edge, values)
        moved.values |= {key: seen for key, seen in values.items() if key < 0 and self._within(key, edge.target)}
        if edge.target not in self.linked.polls:
            self._enqueue(moved)
            return
        seen = moved.values.get(_seen(edge.target))
        moved.values[_seen(edge.target)] = np.array([[self.version]])
        if cohort.block not in self.linked.loops[edge.target].latches or seen is None:
            self._enqueue(moved)
            return
        if edge.target in self.linked.timed:
            self.timed.append(moved)
            return
        same = self._unchanged(cohort, edge, values)
        if same.any():
            self.parked.append((int(seen.min()), moved.rows(np.flatnonzero(same))))
        if not same.all():
            self.polling.append(moved.rows(np.flatnonzero(~same)))

    def _moved(self, cohort: Cohort, edge: Edge, values: dict[int, Any]) -> Cohort:
        """The cohort at the end of `edge`, with what is needed from there on."""
        constants = self.linked.constants[cohort.block]
        passed = {arg: constants[source] if source in constants else values[source] for arg, source in edge.passed}
        live = {value: values[value] for value in self.linked.codes[edge.target].live_in}
        return Cohort(edge.target, cohort.waves, cohort.mask, live | passed)

    def _within(self, key: int, block: int) -> bool:
        """Whether `block` is in the waiting loop whose visit `key` records."""
        return block in self.linked.loops[-1 - key].body

    def _unchanged(self, cohort: Cohort, edge: Edge, values: dict[int, Any]) -> NDArray[np.bool_]:
        """[n] whether a wave carries into the loop's header exactly what it carried there before."""
        same = np.ones(cohort.n, bool)
        constants = self.linked.constants[cohort.block]
        for arg, source in edge.passed:
            new = constants[source] if source in constants else values[source]
            each(lambda a, b: _and_equal(same, a, b, cohort.mask), values[arg], new)
        return same

    # -- barriers ------------------------------------------------------------------------------------------------------

    def _arrive(self, cohort: Cohort, code: Code, values: dict[int, Any]) -> None:
        here = LANES if cohort.mask is None else cohort.mask.sum(1)
        elsewhere = np.broadcast_to(here, (cohort.n,)) != self.fleet.live_lanes[cohort.waves]
        if elsewhere.any():
            where = self.fleet.where(code.end.loc, int(cohort.waves[elsewhere.argmax()]))
            raise SimFault(Finding("barrier-divergence", "some lanes of the wave are elsewhere", where))
        self.barred.append(self._moved(cohort, code.edges[0], values))
        np.add.at(self.arrived, cohort.waves // self.waves_per_group, 1)
        self._release()

    def _release(self) -> None:
        """Let every workgroup go on whose live waves have all arrived."""
        if not self.barred:
            return
        complete = (self.arrived > 0) & (self.arrived == self.fleet.live_waves)
        if not complete.any():
            return
        waiting, self.barred = self.barred, []
        for cohort in waiting:
            mine = complete[cohort.waves // self.waves_per_group]
            if mine.any():
                self._enqueue(cohort.rows(np.flatnonzero(mine)))
            if not mine.all():
                self.barred.append(cohort.rows(np.flatnonzero(~mine)))
        self.timer.barrier([cohort.waves[complete[cohort.waves // self.waves_per_group]] for cohort in waiting])
        self.arrived[complete] = 0
        if self.races is not None:
            self.races.epoch[complete] += 1
        if self.watch is not None:
            self.watch.barrier(complete)


def _broken(error: Exception, code: Code) -> SimFault:
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename != f"<block {code.block.label}>":
        trace = trace.tb_next
    number = trace.tb_lineno - FIRST_OP_LINE if trace else 0
    op = code.block.ops[min(max(number, 0), len(code.block.ops) - 1)]
    return SimFault(Finding("broken", f"{op.name} failed: {type(error).__name__}: {error}", Where(op.loc)))


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
