"""What looks at a launch's global memory accesses, when the options ask for it: checks, and a weaker memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from k3lab.sim.checks.guards import Guards
from k3lab.sim.checks.races import GlobalRaces
from k3lab.sim.checks.scopes import Scopes
from k3lab.sim.checks.touch import (
    DEVICE_WIDE,
    EVERYWHERE,
    Touch,
    acquires,
    one_lane,
    reach_of,
    releases,
    stored_elements,
)
from k3lab.sim.checks.touch import touches as touches_of
from k3lab.sim.memory.regions import RegionMap
from k3lab.sim.memory.relaxed import RelaxedMemory

if TYPE_CHECKING:
    from k3lab.lowering.ir import Op
    from k3lab.sim.engine import Engine
    from k3lab.sim.step import Step

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]


def watch_for(engine: Engine, regions: RegionMap) -> Watch | None:
    """The watch that the engine's options ask for, or None."""
    options = engine.options
    wanted = options.global_races or options.guards or options.scopes or options.memory == "relaxed"
    return Watch(engine, regions) if wanted else None


class Watch:
    """Sees every access to global memory, every barrier, drain and fence."""

    def __init__(self, engine: Engine, regions: RegionMap) -> None:
        options, size = engine.options, (engine.fleet.slots, engine.waves_per_group)
        self._regions = regions
        self._scopes = Scopes(engine.fleet, regions) if options.scopes else None
        self._guards = Guards(*size, regions) if options.guards else None
        relaxed = options.memory == "relaxed"
        self._relaxed = RelaxedMemory(engine.fleet.device, size[1], options.seed) if relaxed else None
        seen = None if self._relaxed is None else self._relaxed.seen
        self._races = GlobalRaces(engine.fleet, regions, seen) if options.global_races else None
        self._engine = engine

    def load(self, step: Step, address: I64, data: Bytes, only: Bools | None = None) -> Bytes:
        """See a load that found `data`; returns what it gets."""
        use = only if step.mask is None else step.mask if only is None else step.mask & only
        out = data
        for touch, _ in touches_of(step, "load", address, data.shape[-1], use):
            self._check(step, touch, "load")
            if self._relaxed is not None:
                out = self._relaxed_load(step, touch, out)
        if self._relaxed is not None and acquires(op := step.ops[step.at]):
            self._relaxed.acquired(step.workgroup, reach_of(op))
        return out

    def view(self, step: Step, address: I64, data: Bytes, only: Bools | None = None) -> Bytes:
        """What a load that found `data` would get; nobody is told of it."""
        use = only if step.mask is None else step.mask if only is None else step.mask & only
        for touch, _ in touches_of(step, "load", address, data.shape[-1], use):
            data = data if self._relaxed is None else self._relaxed_load(step, touch, data)
        return data

    def _relaxed_load(self, step: Step, touch: Touch, data: Bytes) -> Bytes:
        assert self._relaxed is not None
        reach = reach_of(step.ops[step.at])
        if not self._relaxed.may_differ(touch, reach):
            return data
        out = np.broadcast_to(data, (step.n, *data.shape[-2:])).copy()
        place = (touch.row, touch.lane % out.shape[1])
        out[place] = self._relaxed.load(touch, out[place], reach)
        return out

    def store(self, step: Step, use: Bools | None, address: I64, data: Bytes) -> None:
        """See a store, and make it; `use` says which lanes flat elements belong to."""
        op = step.ops[step.at]
        self._before(step, op)
        if self._relaxed is None:
            step.globals.store(address, data)
        for touch, chosen in touches_of(step, "store", address, data.shape[-1], use):
            self._check(step, touch, "store")
            if self._relaxed is not None:
                self._relaxed.store(touch, stored_elements(step, data, use)[chosen], reach_of(op))

    def atomic(self, step: Step, address: I64, size: int, row: int, lane: int) -> None:
        """See one lane's atomic access, before it is made."""
        op, touch = step.ops[step.at], one_lane(step, "atomic", address, size, row, lane)
        self._before(step, op)
        self._check(step, touch, "atomic")
        if self._relaxed is not None:
            self._relaxed.settle(touch, reach_of(op))
            if acquires(op):
                self._relaxed.acquired(touch.wave // self._engine.waves_per_group, reach_of(op))

    def _before(self, step: Step, op: Op) -> None:
        """What an operation that releases waits for."""
        if releases(op):
            self.drained(step)
            if reach_of(op) == EVERYWHERE:
                self.published(step)

    def barrier(self, complete: Bools) -> None:
        """The `complete` workgroups pass a barrier."""
        if self._races is not None:
            self._races.clocks.barrier(complete)
        if self._guards is not None:
            self._guards.barrier(complete)

    def ended(self, device: int) -> None:
        """A device's launch has ended: all that it stored is there, and its next launch sees all that is."""
        groups, waves = self._engine.fleet.slots_of(device), self._engine.fleet.waves_of(device)
        if self._races is not None:
            self._races.ended(device)
        if self._guards is not None:
            self._guards.ended(waves)
        if self._relaxed is not None:
            mine = np.arange(groups.start, groups.stop)
            self._engine.version += self._relaxed.drained(np.arange(waves.start, waves.stop))
            self._engine.version += self._relaxed.published(mine)
            self._relaxed.acquired(mine, EVERYWHERE)

    def drained(self, step: Step) -> None:
        """The waves of the step have waited for all their stores."""
        if self._guards is not None:
            self._guards.drained(step.waves)
        if self._relaxed is not None and self._relaxed.drained(step.waves):
            step.stored()

    def published(self, step: Step) -> None:
        """The waves of the step have made what they have stored known to every device."""
        if self._relaxed is not None and self._relaxed.published(step.workgroup):
            step.stored()

    def acquired(self, step: Step) -> None:
        """The waves of the step have dropped what their caches held of their device's memory."""
        if self._relaxed is not None:
            self._relaxed.acquired(step.workgroup, DEVICE_WIDE)

    def acquired_far(self, step: Step) -> None:
        """The waves of the step have dropped all that their caches held."""
        if self._relaxed is not None:
            self._relaxed.acquired(step.workgroup, EVERYWHERE)

    def pass_time(self, *, idle: bool = False) -> bool:
        """Let stores arrive that are under way; whether any did."""
        some = self._relaxed is not None and self._relaxed.pass_time(idle=idle)
        self._engine.version += some
        return some

    def _check(self, step: Step, touch: Touch, what: Literal["load", "store", "atomic"]) -> None:
        """Show an access to every detector there is; a guard minds only what changes memory."""
        region = self._regions.of(touch)
        if self._scopes is not None:
            self._scopes.see(touch, region, step.found)
        if self._guards is not None and what != "load":
            self._guards.store(touch, region, step.found)
        if (races := self._races) is not None:
            see = {"load": races.load, "store": races.store, "atomic": races.atomic}[what]
            see(touch, region, step.found)
