"""The global race detector against one that keeps every access of every byte."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from k3lab.sim.checks.clocks import Clocks
from k3lab.sim.checks.races import GlobalRaces
from k3lab.sim.checks.touch import DEVICE, SYSTEM, Touch, drains
from k3lab.sim.faults import Where
from k3lab.sim.memory.regions import RegionMap, SharedRegion
from k3lab.sim.memory.spaces import GlobalMemory

GROUPS, SIZE, BYTES, PAIRS = 4, 2, 64, 32
WAVES = GROUPS * SIZE


class Devices:
    """A fleet as the detector needs it: two devices of two workgroups each, or one of four."""

    slots, waves_per_group = GROUPS, SIZE

    def __init__(self, devices):
        self.devices = devices
        self.device = np.arange(GROUPS) * devices // GROUPS

    def slots_of(self, device):
        size = GROUPS // self.devices
        return slice(device * size, (device + 1) * size)

    def where(self, loc, wave, lane=None, launch=None):
        return Where(loc, wave // SIZE, wave % SIZE, lane, int(self.device[wave // SIZE]), launch)


class Race(Exception):
    pass


def raise_race(kind: str, message: str, where: tuple[int, int]) -> None:
    raise Race(message)


@dataclass
class Naive:
    """Sets of events: an event is ordered before another if it is in the other's past."""

    past: list[set[int]] = field(default_factory=lambda: [set() for _ in range(WAVES)])
    touched: list[list[tuple[int, bool]]] = field(default_factory=lambda: [[] for _ in range(BYTES)])
    released: dict[int, tuple[int, bool, set[int]]] = field(default_factory=dict)  # by word: device, system scope, past
    count: int = 0
    devices: int = 1

    def device(self, wave: int) -> int:
        return wave * self.devices // WAVES

    def races(self, wave: int, offset: int, size: int, stores: bool, policy: int) -> bool:
        """Whether the access of a single lane would race."""
        if offset >= PAIRS and policy and not stores:
            return False
        seen = [event for byte in range(offset, offset + size) for event in self.touched[byte]]
        return any(event not in self.past[wave] and (stores or stored) for event, stored in seen)

    def access(self, wave: int, offset: int, size: int, stores: bool, policy: int) -> None:
        """Note the access."""
        handed, words = offset >= PAIRS, range(offset // 4, (offset + size + 3) // 4)
        if handed and policy and not stores:
            seen = [self.released[word] for word in words if word in self.released]
            mine, far = self.device(wave), policy == SYSTEM
            self.past[wave] = self.past[wave].union(
                *(past for sender, system, past in seen if sender == mine or (system and far))
            )
            return
        self.past[wave].add(self.count)
        if not handed or stores:
            for byte in range(offset, offset + size):
                self.touched[byte].append((self.count, stores))
        if handed and stores:
            released = self.device(wave), policy == SYSTEM, set(self.past[wave]) if policy else set()
            self.released |= dict.fromkeys(words, released)
        self.count += 1

    def barrier(self, waves: range) -> None:
        joined = set().union(*(self.past[wave] for wave in waves))
        for wave in waves:
            self.past[wave] = set(joined)


def touch_of(buffer: Any, wave: int, offset: int, size: int, stores: bool, policy: int) -> Touch:
    one = np.array([0])
    what = "store" if stores else "load"
    return Touch(what, buffer, one + offset, size, one, one, one + wave, policy, None)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("seed", range(100))
def test_finds_a_race_at_the_same_access(seed, devices, monkeypatch):
    """Barriers, launches that end, hand-offs of either scope; with clocks dropped as soon as they may be."""
    monkeypatch.setattr("k3lab.sim.checks.clocks.FEW_ROWS", 4)
    monkeypatch.setattr("k3lab.sim.checks.clocks.FEW_SAVED", 4)
    rng = np.random.default_rng(seed)
    memory = GlobalMemory()
    base = memory.add("buffer", np.zeros(BYTES, np.uint8))
    regions = RegionMap([SharedRegion("P", 0, PAIRS, BYTES - PAIRS, "pairs")], [[base]], memory)
    fleet = Devices(devices)
    races, naive = GlobalRaces(fleet, regions), Naive(devices=devices)
    for step in range(300):
        if rng.random() < 0.1:
            group = int(rng.integers(GROUPS))
            races.clocks.barrier(np.arange(GROUPS) == group)
            naive.barrier(range(group * SIZE, (group + 1) * SIZE))
            continue
        if rng.random() < 0.02:
            device = int(rng.integers(devices))
            races.ended(device)
            slots = fleet.slots_of(device)
            naive.barrier(range(slots.start * SIZE, slots.stop * SIZE))
            continue
        size = int(rng.choice([1, 2, 4, 8, 16]))
        handed = bool(rng.random() < 0.7)
        size = max(size, 4) if handed else size
        offset = int(rng.integers(PAIRS // size)) * size + PAIRS * handed
        policy = int(rng.choice([0, DEVICE, SYSTEM], p=[0.1, 0.5, 0.4]))
        access = (int(rng.integers(WAVES)), offset, size, bool(rng.random() < 0.3), policy)
        if (expected := naive.races(*access)) and rng.random() < 0.98:
            continue  # for long runs
        naive.access(*access)
        touch = touch_of(memory.buffers[0], *access)
        note = races.store if access[3] else races.load
        try:
            note(touch, regions.of(touch), raise_race)
            found = False
        except Race:
            found = True
        assert found == expected, (step, access)
        if found:
            return


def test_waits_for_vmcnt():
    assert drains(0x0F70) and drains(0)  # vmcnt 0 alone, and all counters
    assert not any(map(drains, (0xC07F, 0x4F70, 0x0F71)))  # lgkmcnt 0 alone, vmcnt 16, vmcnt 1


@pytest.mark.parametrize("seed", range(20))
def test_clocks_of_many_waves_at_once_know_what_dense_ones_do(seed):
    """Barriers, ends of launches, releases and acquires by many waves, against a number for every pair of waves."""
    rng = np.random.default_rng(seed)
    groups, size = 6, 4
    waves = np.arange(groups * size)
    clocks, dense = Clocks(groups, size), np.eye(groups * size, dtype=int)
    saved: dict[int, np.ndarray] = {}
    for _ in range(60):
        match int(rng.integers(5)):
            case 0:
                complete = rng.random(groups) < 0.3
                clocks.barrier(complete)
                for group in np.flatnonzero(complete):
                    mine = slice(group * size, (group + 1) * size)
                    dense[mine] = dense[mine].max(0)
                some = waves[np.repeat(complete, size)]
                dense[some, some] += 1
            case 1 if rng.random() < 0.3:
                some = np.arange(groups)[rng.random(groups) < 0.5]
                if some.size:
                    mine = (some[:, None] * size + np.arange(size)).ravel()
                    tick = clocks.join(some)
                    dense[mine] = dense[mine].max(0)
                    dense[mine, mine] = tick
            case 2 if saved:
                kept = [number for number in saved if rng.random() < 0.7]
                saved = {number: saved[number] for number in kept}
                clocks.collect(np.array(sorted(saved), np.int64))
            case 3:
                some = waves[rng.random(len(waves)) < 0.5]
                if some.size:
                    saved |= dict(zip(clocks.release(some).tolist(), dense[some].copy(), strict=True))
                    dense[some, some] += 1
            case _ if saved:
                pairs = [(w, n) for w in waves for n in saved if rng.random() < 0.1]
                if pairs:
                    clocks.acquire(*(np.array(column) for column in zip(*pairs, strict=True)))
                    for wave, number in pairs:
                        dense[wave] = np.maximum(dense[wave], saved[number])
        one, other = np.meshgrid(waves, waves, indexing="ij")
        assert clocks.ordered(one, other, dense).all() and not clocks.ordered(one, other, dense + 1).any()
