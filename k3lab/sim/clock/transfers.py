"""When bytes get where they go: latencies, shared bandwidths, and what workgroups hand each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from k3lab.lowering.ir import Op
from k3lab.sim.checks.touch import Touch, reaches
from k3lab.sim.clock.bandwidth import Calendar
from k3lab.sim.clock.costs import Costs
from k3lab.sim.clock.places import NEVER, Lines, Rows, Stores
from k3lab.sim.memory.spaces import SPACING_BITS

if TYPE_CHECKING:
    from k3lab.sim.engine import Engine
    from k3lab.sim.memory.regions import RegionMap

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Moved:
    """A load: which rows of the step take part, and when their data is there."""

    rows: I64
    ready: F64


@dataclass(frozen=True)
class Handed:
    """What each row of a load found that others stored; `arrived` is -inf in rows that found nothing such.

    Attributes:
        arrived: [rows] when the words that came last were there; `stored` when they were stored.
        wave, launch: [rows] who stored them; `base`, `word`: of which buffer, which word.
    """

    arrived: F64
    stored: F64
    wave: I64
    launch: I64
    base: int
    word: I64

    def rows(self, some: Bools) -> Handed:
        """The rows in `some`."""
        wave, launch, word = self.wave[some], self.launch[some], self.word[some]
        return Handed(self.arrived[some], self.stored[some], wave, launch, self.base, word)


class Transfers:
    """Global memory's and the links' part of the clock."""

    def __init__(self, engine: Engine, costs: Costs, regions: RegionMap) -> None:
        self._costs = costs
        self._homes = homes_of(engine) | regions.homes
        self._lines, self._stores = Lines(costs.line_bytes), Stores()
        devices = engine.fleet.devices
        self._memory = [Calendar(costs.memory_bytes_per_s, costs.window_ns) for _ in range(devices)]
        self._links: dict[tuple[int, int], Calendar] = {}
        self._size = engine.waves_per_group
        self._waves = engine.fleet.slots * self._size
        self._device = np.repeat(engine.fleet.device, self._size)

    def begin(self, device: int) -> None:
        """A launch of the device begins: its caches hold nothing that counts."""
        self._lines.forget(device)

    def load(self, device: int, touch: Touch, op: Op, time: F64) -> Moved:
        """A load by waves of `device`, issued at `time: [n]`."""
        costs, rows = self._costs, Rows(touch)
        now, home = time[rows.index], self._homes.get(touch.buffer.base, device)
        found = self._lines.touch(device, touch, time)
        fresh = rows.sum(found.fresh.sum(-1))
        far = (home != device) * costs.remote_latency_ns
        near = (costs.fabric_latency_ns if reaches(op) else costs.cache_latency_ns) + far
        ready, fetched = now + near, now + (costs.memory_latency_ns + far)
        if (some := fresh > 0).any():
            nbytes: F64 = fresh[some].astype(np.float64) * costs.line_bytes
            served = self._memory[home].book(now[some], nbytes)
            ready[some] = served + (costs.memory_latency_ns + far)
            when = np.zeros(len(time))
            when[rows.index] = ready
            self._lines.fill(device, touch, found, when[touch.row])
        # A line that is on its way is waited for, but no longer than the wave would wait that fetches it itself.
        if (come := self._lines.come(device, touch, found, float(now.min()))) is not None:
            ready = np.maximum(ready, np.minimum(rows.max(come), fetched))
        return Moved(rows.index, ready)

    def store(self, device: int, touch: Touch, time: F64, launch: int) -> tuple[I64, F64]:
        """A store by waves of `device`, issued at `time: [n]`: (rows that take part, when it is done for each)."""
        costs, rows = self._costs, Rows(touch)
        now, home = time[rows.index], self._homes.get(touch.buffer.base, device)
        nbytes: F64 = rows.sum(np.full(touch.offset.shape, touch.size)).astype(np.float64)
        when = np.zeros(len(time))
        if home == device:
            self._lines.touch(device, touch, time)
            served, latency = self._memory[device].book(now, nbytes), costs.store_latency_ns
            when[rows.index] = now
        else:
            served, latency = self._link(device, home).book(now, nbytes), costs.remote_store_latency_ns
            when[rows.index] = served
        self._stores.note(touch, when[touch.row], touch.wave + launch * self._waves)
        return rows.index, served + latency

    def handed(self, device: int, touch: Touch, start: float) -> Handed | None:
        """What other workgroups stored that waves of `device` find, since its launch began at `start`."""
        found = self._stores.of(touch)
        if found is None:
            return None
        when, who, words = found
        wave = np.where(who < 0, 0, who % self._waves)
        far = self._device[wave] != device
        others = (who >= 0) & (wave // self._size != (touch.wave // self._size)[..., None]) & (far | (when >= start))
        if not others.any():
            return None
        latency = np.where(far, self._costs.remote_handoff_ns, self._costs.handoff_ns)
        arrived: F64 = np.where(others, when + latency, NEVER)
        word_of_element = arrived.argmax(-1)
        element = Rows(touch).last(arrived.max(-1))
        at = element, word_of_element.ravel()[element]
        arrived, when, who, words = _flat(arrived)[at], _flat(when)[at], _flat(who)[at], _flat(words)[at]
        return Handed(arrived, when, who % self._waves, who // self._waves, touch.buffer.base, words)

    def _link(self, source: int, target: int) -> Calendar:
        if (source, target) not in self._links:
            self._links[source, target] = Calendar(self._costs.link_bytes_per_s, self._costs.window_ns)
        return self._links[source, target]


def _flat(by_word: NDArray[Any]) -> NDArray[Any]:
    """`[elements, words]` of what is by element and word."""
    return by_word.reshape(-1, by_word.shape[-1])


def homes_of(engine: Engine) -> dict[int, int]:
    """The device in whose memory a buffer lies, by base address: the only one that is given it as an argument."""
    owners: dict[int, set[int]] = {}
    for device, queue in enumerate(engine.fleet.queues):
        for dispatch in queue:
            for value in dispatch.args.values():
                address = int(value.flat[0]) if value.dtype.kind == "i" else 0
                if address >> SPACING_BITS and (buffer := engine.globals.find(address)) is not None:
                    owners.setdefault(buffer.base, set()).add(device)
    return {base: min(devices) for base, devices in owners.items() if len(devices) == 1}
