"""Races: two waves touch the same bytes, one of them stores, and nothing orders them.

LDS is watched between barriers: by grain (of 4 bytes, or of the smallest access) the last writer and reader are kept
with the barrier epoch they did it in. Global memory is watched by the waves' vector clocks. Barriers join a workgroup's
waves, atomics join whoever meets at an address, and within declared pairs and flags a scoped store releases what a
scoped load of that word then acquires, between devices if both are of system scope. The end of a launch orders all its
device did before all that the device does next. Nothing else orders waves of different workgroups: plain rows are
stored by scoped words, too.

Which tags a kernel compares is not seen: a load acquires from the very store whose word it gets. So a tag that nobody
looks at shows only in an order of events in which it had not been put yet; schedules that vary find it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3lab.lowering.ir import Loc
from k3lab.sim.checks.clocks import Clocks
from k3lab.sim.checks.touch import Found, Touch
from k3lab.sim.checks.trails import Conflict, Listed, Reads, Stores, Words, finest
from k3lab.sim.memory.regions import RegionMap
from k3lab.sim.memory.spaces import GRAIN, LocalMemory
from k3lab.sim.schedule.fleet import Fleet

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
NOBODY, SEVERAL = -1, -1


class GlobalRaces:
    """Watches every access of a launch to global memory.

    Reads of a buffer are only listed until something stores to it: buffers that are only read cost next to nothing.
    """

    def __init__(self, fleet: Fleet, regions: RegionMap, seen: Callable[[Touch], Bools] | None = None) -> None:
        """`seen` says of a load which words' last store it gets: nothing is acquired from one that is under way."""
        self._seen = seen or (lambda touch: np.array(True))
        self.clocks = Clocks(fleet.slots, fleet.waves_per_group)
        self.regions = regions
        self._fleet = fleet
        self._device = np.repeat(fleet.device, fleet.waves_per_group)
        self._starts: list[list[int]] = [[] for _ in range(fleet.devices)]  # ticks at which a device's launches ended
        self._words: dict[int, Words] = {}
        self._stores: dict[int, Stores] = {}
        self._reads: dict[int, Reads] = {}
        self._listed: dict[int, Listed] = {}
        self._met: dict[tuple[int, int], int] = {}  # clocks left behind by atomics, by address
        self._lines: dict[Loc | None, int] = {}

    def load(self, touch: Touch, region: NDArray[np.int16], found: Found) -> None:
        """Note a load."""
        for part, handed, policy in self._parts(touch, region):
            if handed:
                words = self._words_of(part)
                if part.policy & policy == policy:
                    words.acquire(part, self.clocks, self._seen(part), self._device)
                    self._tidy()
                else:
                    self._report(part, words.stores.conflict(part, self.clocks), found)
            else:
                self._load(part, found)

    def store(self, touch: Touch, region: NDArray[np.int16], found: Found) -> None:
        """Note a store."""
        for part, handed, policy in self._parts(touch, region):
            if handed:
                words = self._words_of(part)
                self._report(part, words.stores.conflict(part, self.clocks), found)
                releases = part.policy & policy == policy
                self._report(part, words.put(part, self.clocks, self._line(part), releases), found)
                self._tidy()
            else:
                self._store(part, found)

    def atomic(self, touch: Touch, region: NDArray[np.int16], found: Found) -> None:
        """Note an atomic access of one lane: it is ordered after all atomics at its address, and before later ones."""
        key = touch.buffer.base, int(touch.offset[0])
        if key in self._met:
            self.clocks.acquire(touch.wave, np.array([self._met[key]]))
        self.load(touch, region, found)
        self.store(touch, region, found)
        self._met[key] = int(self.clocks.release(touch.wave)[0])
        self._tidy()

    def ended(self, device: int) -> None:
        """A device's launch has ended: whatever it did comes before whatever that device does next."""
        slots = self._fleet.slots_of(device)
        self._starts[device].append(self.clocks.join(np.arange(slots.start, slots.stop)))

    def _tidy(self) -> None:
        """Drop clocks that nobody can acquire any more, when there are many."""
        if self.clocks.crowded:
            used = np.zeros(self.clocks.saved_end, bool)
            used[list(self._met.values())] = True
            for words in self._words.values():
                used[words.saved[words.saved != NOBODY]] = True
            self.clocks.collect(np.flatnonzero(used))

    def _parts(self, touch: Touch, region: NDArray[np.int16]) -> list[tuple[Touch, bool, int]]:
        """The touch as pieces of one kind: (piece, whether in words that hand over, their policy)."""
        handed = self.regions.handed[region]
        if handed.ndim == 0:
            return [(touch, bool(handed), int(self.regions.policy[region]))]
        # An element partly outside such words is ordinary.
        policy = np.where(handed.all(-1), self.regions.policy[region].max(-1), 0)
        pieces: list[tuple[Touch, bool, int]] = []
        for value in np.unique(policy):
            chosen = np.broadcast_to(policy == value, touch.offset.shape)
            pieces.append((touch.only(chosen), bool(value), int(value)))
        return pieces

    def _load(self, touch: Touch, found: Found) -> None:
        ticks = self.clocks.ticks(touch.wave)
        stores = self._stores.get(touch.buffer.base)
        if stores is None:
            self._listed.setdefault(touch.buffer.base, Listed()).note(touch, ticks)
            return
        stores.refine(finest(touch))
        self._report(touch, stores.conflict(touch, self.clocks), found)
        self._read(touch, ticks)

    def _read(self, touch: Touch, ticks: Any) -> None:
        grain = finest(touch)
        base = touch.buffer.base
        if base not in self._reads:
            self._reads[base] = Reads(touch.buffer.data.size, grain)
        reads = self._reads[base]
        reads.refine(grain)
        reads.note(touch, ticks, self._line(touch))

    def _store(self, touch: Touch, found: Found) -> None:
        base, grain = touch.buffer.base, finest(touch)
        if base not in self._stores:
            self._stores[base] = Stores(touch.buffer.data.size, grain)
            for read, ticks in self._listed.pop(base, Listed()).reads():
                self._stores[base].refine(finest(read))
                self._read(read, ticks)
        stores, reads = self._stores[base], self._reads.get(base)
        stores.refine(grain)
        self._report(touch, stores.conflict(touch, self.clocks), found)
        if reads is not None:
            self._report(touch, reads.conflict(touch, self.clocks), found)
            reads.forget(touch)
        self._report(touch, stores.note(touch, self.clocks, self._line(touch)), found)

    def _words_of(self, touch: Touch) -> Words:
        base = touch.buffer.base
        if base not in self._words:
            self._words[base] = Words(touch.buffer.data.size)
        return self._words[base]

    def _line(self, touch: Touch) -> int:
        return self._lines.setdefault(touch.loc, len(self._lines))

    def _report(self, touch: Touch, conflict: Conflict | None, found: Found) -> None:
        if conflict is None:
            return
        loc = list(self._lines)[conflict.line]
        launch = bisect_right(self._starts[int(self._device[conflict.wave])], conflict.tick)
        who = self._fleet.where(loc, conflict.wave, launch=launch)
        what = self.regions.describe(touch, conflict.index)
        other = f"which {who.name} {conflict.did} at {loc or 'an unknown line'}"
        found("race", f"{what}, {other}; nothing orders the two", touch.element(conflict.index))


class LdsRaces:
    """Watches every LDS access of a launch.

    Attributes:
        epoch: [workgroups] barriers passed, and launches ended, from 1.
    """

    def __init__(self, lds: LocalMemory, workgroups: int) -> None:
        self._grain = GRAIN
        grains = lds.data.size // GRAIN + 1
        # Zeros mean never; a workgroup has 16 waves at most.
        self.epoch = np.ones(workgroups, np.int32)
        self._writer, self._reader = np.zeros(grains, np.int8), np.zeros(grains, np.int8)
        self._written, self._read = np.zeros(grains, np.int32), np.zeros(grains, np.int32)

    def load(self, offset: I64, size: int, wave: I64, workgroup: I64) -> tuple[int, ...] | None:
        """Note loads of `size` bytes at `offset` by `wave` (both broadcast); returns the first that races, or None."""
        grain, wave, epoch = self._spread(offset, size, wave, workgroup)
        bad = (self._written[grain] == epoch) & (self._writer[grain] != wave)
        again = (self._read[grain] == epoch) & (self._reader[grain] != wave)
        self._reader[grain] = np.where(again, SEVERAL, wave)
        self._read[grain] = epoch
        # Waves that read the same grain in this very access: whoever was noted last is not the only one.
        shared = self._reader[grain] != np.where(again, SEVERAL, wave)
        self._reader[grain[shared]] = SEVERAL
        return _first(bad)

    def store(self, offset: I64, size: int, wave: I64, workgroup: I64) -> tuple[int, ...] | None:
        """Note stores in the same way."""
        grain, wave, epoch = self._spread(offset, size, wave, workgroup)
        bad = (self._written[grain] == epoch) & (self._writer[grain] != wave)
        bad |= (self._read[grain] == epoch) & (self._reader[grain] != wave)
        self._writer[grain], self._written[grain] = wave, epoch
        bad |= self._writer[grain] != wave  # another wave stored there in this very access
        return _first(bad)

    def _spread(self, offset: I64, size: int, wave: I64, workgroup: I64) -> tuple[Any, ...]:
        self._refine(offset, size)
        grain = offset[..., None] // self._grain + np.arange(size // self._grain)
        shape = np.broadcast_shapes(grain.shape, wave[..., None].shape)
        epoch = self.epoch[workgroup]
        return (
            np.broadcast_to(grain, shape),
            np.broadcast_to(wave[..., None], shape).astype(np.int8),
            np.broadcast_to(epoch[..., None], shape),
        )

    def _refine(self, offset: I64, size: int) -> None:
        """Watch by smaller grains from the first access on that does not fill whole ones."""
        odd = size | int(np.bitwise_or.reduce(offset, axis=None))
        while odd % self._grain:
            self._grain //= 2
            for name in ("_writer", "_reader", "_written", "_read"):
                setattr(self, name, np.repeat(getattr(self, name), 2))


def _first(bad: NDArray[np.bool_]) -> tuple[int, ...] | None:
    return tuple(int(i) for i in np.argwhere(bad)[0][:-1]) if bad.any() else None
