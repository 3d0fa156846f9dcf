"""Shows every access to memory to what measures a simulation: its modelled clock, and the counter of its traffic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from k3lab.sim.checks.touch import Touch, What, one_lane, touches
from k3lab.sim.clock.timer import Timer
from k3lab.sim.record.traffic import TrafficCounter

if TYPE_CHECKING:
    from k3lab.sim.engine import Engine
    from k3lab.sim.step import Step

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


def meter_for(engine: Engine) -> Meter | None:
    """The meter that the engine's options ask for, or None."""
    timer = engine.timer if isinstance(engine.timer, Timer) else None
    counter = engine.counter
    return None if timer is None and counter is None else Meter(engine, timer, counter)


class Meter:
    """Sees every access that is made, after its checks."""

    def __init__(self, engine: Engine, timer: Timer | None, counter: TrafficCounter | None) -> None:
        self._timer, self._counter = timer, counter
        self._device = np.repeat(engine.fleet.device, engine.waves_per_group)
        self._several = engine.fleet.devices > 1

    def load(self, step: Step, address: I64, size: int, only: Bools | None) -> None:
        """A load from global memory; of the active lanes, those in `only` (None: all) take part."""
        for touch, _ in touches(step, "load", address, size, _use(step, only)):
            self._see(step, touch)

    def store(self, step: Step, use: Bools | None, address: I64, size: int) -> None:
        """A store to global memory; `use` says which lanes flat addresses belong to."""
        for touch, _ in touches(step, "store", address, size, use):
            self._see(step, touch)

    def atomic(self, step: Step, address: I64, size: int, row: int, lane: int) -> None:
        """One lane's atomic access to global memory."""
        self._see(step, one_lane(step, "atomic", address, size, row, lane))

    def lds(self, step: Step, what: What, lanes: int, size: int, only: Bools | None = None) -> None:
        """An access to LDS of `size` bytes in each of `lanes` (1 or 64) lanes, as far as they take part."""
        use = _use(step, only)
        nbytes: Any = lanes * size
        if use is not None:
            nbytes = (use.any(1) if lanes == 1 else use.sum(1)) * size
        if self._timer is not None:
            self._timer.lds(step, what, nbytes)
        if self._counter is not None:
            self._counter.lds(step, what, nbytes)

    def _see(self, step: Step, touch: Touch) -> None:
        for device, part in self._by_device(touch):
            if self._counter is not None:
                self._counter.access(device, part, step.ops[step.at])
            if self._timer is not None and touch.what != "store":
                self._timer.load(step, device, part)
            if self._timer is not None and touch.what != "load":
                self._timer.store(step, device, part)

    def _by_device(self, touch: Touch) -> Iterator[tuple[int, Touch]]:
        """What the waves of each device touch."""
        devices = self._device[touch.wave] if self._several else np.zeros(1, np.int64)
        first = int(devices.flat[0])
        if (devices == first).all():
            yield first, touch
            return
        for device in np.unique(devices).tolist():
            yield device, touch.only(devices == device)


def _use(step: Step, only: Bools | None) -> Bools | None:
    """The lanes that take part; None: all."""
    return only if step.mask is None else step.mask if only is None else step.mask & only
