"""The global race detector against one that keeps every access of every byte."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from k3lab.sim.memory import GlobalMemory
from k3lab.sim.races import GlobalRaces
from k3lab.sim.regions import RegionMap, SharedRegion
from k3lab.sim.touch import DEVICE, Touch, drains

GROUPS, SIZE, BYTES, PAIRS = 3, 2, 64, 32
WAVES = GROUPS * SIZE


class Race(Exception):
    pass


def raise_race(kind: str, message: str, where: tuple[int, int]) -> None:
    raise Race(message)


@dataclass
class Naive:
    """Sets of events: an event is ordered before another if it is in the other's past."""

    past: list[set[int]] = field(default_factory=lambda: [set() for _ in range(WAVES)])
    touched: list[list[tuple[int, bool]]] = field(default_factory=lambda: [[] for _ in range(BYTES)])
    released: dict[int, set[int]] = field(default_factory=dict)
    count: int = 0

    def races(self, wave: int, offset: int, size: int, stores: bool, scoped: bool) -> bool:
        """Whether the access of a single lane would race."""
        if offset >= PAIRS and scoped and not stores:
            return False
        seen = [event for byte in range(offset, offset + size) for event in self.touched[byte]]
        return any(event not in self.past[wave] and (stores or stored) for event, stored in seen)

    def access(self, wave: int, offset: int, size: int, stores: bool, scoped: bool) -> None:
        """Note the access."""
        handed, words = offset >= PAIRS, range(offset // 4, (offset + size + 3) // 4)
        if handed and scoped and not stores:
            self.past[wave] = self.past[wave].union(*(self.released.get(word, set()) for word in words))
            return
        self.past[wave].add(self.count)
        if not handed or stores:
            for byte in range(offset, offset + size):
                self.touched[byte].append((self.count, stores))
        if handed and stores:
            self.released |= dict.fromkeys(words, set(self.past[wave]) if scoped else set())
        self.count += 1

    def barrier(self, group: int) -> None:
        waves = range(group * SIZE, (group + 1) * SIZE)
        joined = set().union(*(self.past[wave] for wave in waves))
        for wave in waves:
            self.past[wave] = set(joined)


def touch_of(buffer: Any, wave: int, offset: int, size: int, stores: bool, scoped: bool) -> Touch:
    one = np.array([0])
    what = "store" if stores else "load"
    return Touch(what, buffer, one + offset, size, one, one, one + wave, DEVICE if scoped else 0, None)


@pytest.mark.parametrize("seed", range(150))
def test_finds_a_race_at_the_same_access(seed):
    rng = np.random.default_rng(seed)
    memory = GlobalMemory()
    base = memory.add("buffer", np.zeros(BYTES, np.uint8))
    regions = RegionMap([SharedRegion("P", 0, PAIRS, BYTES - PAIRS, "pairs")], [base], memory)
    races, naive = GlobalRaces(GROUPS, SIZE, regions), Naive()
    for step in range(300):
        if rng.random() < 0.1:
            group = int(rng.integers(GROUPS))
            races.clocks.barrier(np.arange(GROUPS) == group)
            naive.barrier(group)
            continue
        size = int(rng.choice([1, 2, 4, 8, 16]))
        handed = bool(rng.random() < 0.7)
        size = max(size, 4) if handed else size
        offset = int(rng.integers(PAIRS // size)) * size + PAIRS * handed
        access = (int(rng.integers(WAVES)), offset, size, bool(rng.random() < 0.3), bool(rng.random() < 0.9))
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
