"""The modelled clock while a simulation runs: every wave's own time, moved by what the wave does and waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from k3lab.sim.checks.touch import Touch, reaches
from k3lab.sim.clock.blocks import NO_LOOP, Blocks, Passing, Timed
from k3lab.sim.clock.costs import Costs, costs_of
from k3lab.sim.clock.logs import BarrierLog, HandoffLog, LaunchLog, ReadLog, Sites, WaveLog
from k3lab.sim.clock.record import Modelled
from k3lab.sim.clock.sharing import shared
from k3lab.sim.clock.transfers import Transfers

if TYPE_CHECKING:
    from k3lab.sim.decode.program import Code, Edge, Run
    from k3lab.sim.engine import Engine
    from k3lab.sim.memory.regions import RegionMap
    from k3lab.sim.schedule.cohort import Cohort
    from k3lab.sim.step import Step

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass
class Pace:
    """A step's time.

    Attributes:
        time: [n] the waves' time so far; `due`: [n] by token's row, when what was loaded in this step is there.
        lds: how long each wave has kept the LDS busy.
        at: the operation whose point was passed last.
    """

    plan: Timed
    time: F64
    due: dict[int, F64] = field(default_factory=dict)
    lds: Any = 0.0
    at: int = 0


class Untimed:
    """No clock: nothing takes any time, and what waves read tells an order of events."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def read(self, step: Step) -> I64:
        """[n or 1, 1] what waves get that read the counter."""
        return np.array([[self._engine.ticks]], np.int64)

    def point(self, step: Step, number: int) -> None:
        """The waves of the step come to an operation at which their time is settled."""

    def launch(self, device: int) -> None:
        """The device's next launch begins."""

    def admit(self, device: int, waves: I64) -> None:
        """Workgroups of the launch start."""

    def retire(self, waves: I64) -> None:
        """Lanes of `waves` have returned."""

    def end(self, device: int) -> None:
        """The device's launch has ended."""

    def enter(self, step: Step, code: Code, block: int) -> Run:
        """The function that runs a block."""
        return code.run

    def leave(self, step: Step) -> None:
        """The block has run."""

    def follow(self, cohort: Cohort, edge: Edge) -> None:
        """Waves go along `edge`."""

    def barrier(self, passing: Sequence[I64]) -> None:
        """Workgroups pass a barrier: all their live waves."""

    def idle(self, waiting: Sequence[Cohort], version: int, ticks: int) -> None:
        """Only waves that read the clock while they wait can go on; `version` of memory is what they will find."""

    def record(self) -> Modelled | None:
        """What was modelled, if anything was."""
        return None


class Timer(Untimed):
    """Every wave's modelled time.

    Attributes, [waves] each unless said otherwise:
        now: the time, ns; `started` when the wave began.
        returned: when the last load from global memory is back (they come back in order); `done`: when all stores are.
        begun, asked: when the running batch of loads began, and its first load with device or system scope. A batch
            ends at the first use of what was loaded. `batch` counts them; `waited`: whether the batch has ended;
            `looked`: whether it has asked.
        loop, anchor: the waiting loop that a wave is in, and the time to which it returns to look again.
        due: [rows, waves] when tokens are there.
        start: [devices] when the running launch began; `free_at`: when workgroups ended whose place is not taken.
    """

    def __init__(self, engine: Engine, costs: Costs, regions: RegionMap) -> None:
        super().__init__(engine)
        self.costs, self._fleet = costs, engine.fleet
        self._size = engine.waves_per_group
        count = engine.fleet.slots * self._size
        self.now, self.started, self.returned, self.done, self.begun, self.asked, self.anchor, self._last_read = (
            np.zeros(count) for _ in range(8)
        )
        self.waited, self.looked = np.ones(count, bool), np.zeros(count, bool)
        self.batch, self.loop = np.zeros(count, np.int64), np.full(count, NO_LOOP)
        self.start = np.zeros(engine.fleet.devices)
        self._ended_at, self._first = np.zeros(engine.fleet.devices), np.ones(engine.fleet.devices, bool)
        self.free_at: list[list[float]] = [[] for _ in range(engine.fleet.devices)]
        self._idle_version = -1
        self._blocks = Blocks(engine.linked, costs)
        self.due = np.zeros((self._blocks.rows, count))
        self.transfers = Transfers(engine, costs, regions)
        self._sites = Sites()
        self.handoffs = HandoffLog(engine.fleet, regions, self._sites, count)
        self._reads, self._barriers = ReadLog(engine.fleet, self._sites), BarrierLog(engine.fleet)
        self._waves, self._launches = WaveLog(engine.fleet), LaunchLog()
        self._regions = regions

    # -- launches ------------------------------------------------------------------------------------------------------

    def launch(self, device: int) -> None:
        number = int(self._fleet.launch[device])
        self.start[device] = self._ended_at[device] + self.costs.launch_gap_ns if number else 0.0
        self._first[device] = True
        self.free_at[device] = []
        self.transfers.begin(device)

    def admit(self, device: int, waves: I64) -> None:
        start: Any = self.start[device]
        if not self._first[device]:
            free = sorted(self.free_at[device])
            groups = len(np.unique(waves // self._size))
            start = np.repeat(free[:groups], len(waves) // groups)
            self.free_at[device] = free[groups:]
        self._first[device] = False
        for times in (self.now, self.started, self.returned, self.done, self.begun, self.asked, self._last_read):
            times[waves] = start
        self.waited[waves], self.looked[waves], self.loop[waves], self.batch[waves] = True, False, NO_LOOP, 0

    def retire(self, waves: I64) -> None:
        gone = waves[self._fleet.live_lanes[waves] == 0]
        if not gone.size:
            return
        self._waves.note(gone, self.started[gone], self.now[gone])
        for slot in np.unique(gone // self._size):
            if not self._fleet.live_waves[slot]:
                mine = slice(slot * self._size, (slot + 1) * self._size)
                end = float(np.maximum(self.now[mine], self.done[mine]).max())
                device = int(self._fleet.device[slot])
                self.free_at[device].append(end)
                self._ended_at[device] = max(self._ended_at[device], end)

    def end(self, device: int) -> None:
        launch = int(self._fleet.launch[device])
        self._launches.note(device, launch, float(self.start[device]), float(self._ended_at[device]))

    # -- a step --------------------------------------------------------------------------------------------------------

    def enter(self, step: Step, code: Code, block: int) -> Run:
        timed = self._blocks.of(code, block)
        step.pace = Pace(timed, self.now[step.waves])
        return timed.run

    def point(self, step: Step, number: int) -> None:
        """The waves of the step come to an operation at which their time is settled."""
        pace = step.pace
        pace.at = number
        self._pass(step, pace, pace.plan.points[number])

    def leave(self, step: Step) -> None:
        pace = step.pace
        self._pass(step, pace, pace.plan.end)
        for row in pace.plan.kept:
            self.due[row, step.waves] = pace.due.get(row, 0.0)
        self.now[step.waves] = shared(step.waves, pace.time, self._size, self.costs.simds, pace.plan.busy, pace.lds)

    def _pass(self, step: Step, pace: Pace, point: Passing) -> None:
        time, waves = pace.time, step.waves
        time += point.before
        for row in point.waits:
            due = pace.due.get(row)
            np.maximum(time, self.due[row, waves] if due is None else due, out=time)
        if point.drains:
            np.maximum(time, self.returned[waves], out=time)
            np.maximum(time, self.done[waves], out=time)
        if point.waits or point.drains:
            self.waited[waves] = True
        time += point.own

    # -- memory --------------------------------------------------------------------------------------------------------

    def load(self, step: Step, device: int, touch: Touch) -> None:
        """A load from global memory, all by waves of `device`."""
        pace, op = step.pace, step.ops[step.at]
        moved = self.transfers.load(device, touch, op, pace.time)
        waves = step.waves[moved.rows]
        self._ask(waves, pace.time[moved.rows], reaches(op))
        ready = moved.ready
        if op.name != "rocdl.s.buffer.load":
            ready = np.maximum(ready, self.returned[waves])
            self.returned[waves] = ready
        if (handed := self.transfers.handed(device, touch, self.start[device])) is not None:
            released = np.maximum(ready, handed.arrived)
            self.handoffs.note(waves, self.batch[waves], op, pace.time[moved.rows], ready, released, handed)
            ready = released
        self._due(step, moved.rows, ready)

    def store(self, step: Step, device: int, touch: Touch) -> None:
        """A store to global memory, all by waves of `device`."""
        launch = int(self._fleet.launch[device])
        rows, done = self.transfers.store(device, touch, step.pace.time, launch)
        waves = step.waves[rows]
        self.done[waves] = np.maximum(self.done[waves], done)

    def lds(self, step: Step, what: str, nbytes: Any) -> None:
        """An access of `nbytes` (of every wave: a number, or [n]) to LDS."""
        pace, costs = step.pace, self.costs
        busy = nbytes / costs.lds_bytes_per_clock * costs.cycle_ns
        pace.lds = pace.lds + busy
        if what != "store":
            self._due(step, slice(None), pace.time + (costs.lds_latency_cycles * costs.cycle_ns + busy))

    def _due(self, step: Step, rows: Any, ready: F64) -> None:
        row = step.pace.plan.rows.get(step.at)
        if row is not None:
            due = step.pace.due.setdefault(row, np.zeros(step.n))
            due[rows] = np.maximum(due[rows], ready)

    def _ask(self, waves: I64, now: F64, scoped: bool) -> None:
        """Loads are issued: the first ones after a wait begin a batch."""
        fresh = self.waited[waves]
        if fresh.any():
            new = waves[fresh]
            self.begun[new], self.waited[new], self.looked[new] = now[fresh], False, False
            self.batch[new] += 1
            self.handoffs.begin(new)
        if scoped and not (looked := self.looked[waves]).all():
            new = waves[~looked]
            self.asked[new], self.looked[new] = now[~looked], True

    # -- control flow --------------------------------------------------------------------------------------------------

    def follow(self, cohort: Cohort, edge: Edge) -> None:
        way = self._blocks.ways.get(id(edge))
        if way is None:
            return
        waves = cohort.waves
        if way.moves:
            passed = [max_of([self.due[source, waves] for source in sources], len(waves)) for _, sources in way.moves]
            for (row, _), due in zip(way.moves, passed, strict=True):
                self.due[row, waves] = due if cohort.mask is None else np.maximum(due, self.due[row, waves])
        if way.enters != NO_LOOP:
            self.loop[waves] = NO_LOOP
        if way.again != NO_LOOP:
            self._look_again(cohort, way.again)

    def _look_again(self, cohort: Cohort, header: int) -> None:
        """A look found nothing. However often waves look here, the last look alone takes time: they go back to it."""
        waves = cohort.waves
        first = self.loop[waves] != header
        begun, asked = self.begun[waves], self.asked[waves]
        self.anchor[waves] = np.where(first, np.where(asked >= begun, asked, begun), self.anchor[waves])
        self.loop[waves], self.waited[waves] = header, True
        self.now[waves] = self.anchor[waves]
        if cohort.mask is None:
            self.handoffs.drop(waves, self.batch[waves])

    def barrier(self, passing: Sequence[I64]) -> None:
        waves = np.concatenate(passing)
        groups, times = waves // self._size, self.now[waves]
        order = np.lexsort((-waves, times))
        last, first = np.full(self._fleet.slots, -np.inf), np.full(self._fleet.slots, np.inf)
        who = np.zeros(self._fleet.slots, np.int64)
        who[groups[order]] = waves[order] % self._size
        np.maximum.at(last, groups, times)
        np.minimum.at(first, groups, times)
        self.now[waves] = last[groups] + self.costs.barrier_cycles * self.costs.cycle_ns
        there = np.unique(groups)
        self._barriers.note(there, first[there], last[there], who[there])

    def idle(self, waiting: Sequence[Cohort], version: int, ticks: int) -> None:
        """Those that wait look again; if they have seen all there is, time passes for them first."""
        if version == self._idle_version:
            for cohort in waiting:
                for times in (self.now, self.begun, self.asked, self.anchor):
                    times[cohort.waves] += ticks * self.costs.tick_ns
        self._idle_version = version

    def read(self, step: Step) -> I64:
        """[n, 1] what waves get that read the counter."""
        time = np.maximum(step.pace.time, self._last_read[step.waves])
        self._last_read[step.waves] = time
        value = np.floor(time / self.costs.tick_ns).astype(np.int64)
        self._reads.note(step.waves, step.ops[step.pace.at], time, value)
        return value[:, None]

    def record(self) -> Modelled:
        tables = (log.table() for log in (self._launches, self._waves, self.handoffs, self._barriers, self._reads))
        regions = tuple(region.title for region in self._regions.regions)
        return Modelled(self.costs, regions, self._sites.names, *tables)  # type: ignore[arg-type]


def max_of(times: Sequence[F64], count: int) -> F64:
    """The latest of several times of `count` waves; 0 of none."""
    return np.maximum.reduce(times) if times else np.zeros(count)


def timer_for(engine: Engine, regions: RegionMap) -> Untimed:
    """The clock that the engine's options ask for."""
    clock = engine.options.clock
    return Untimed(engine) if clock is None else Timer(engine, costs_of(clock), regions)
