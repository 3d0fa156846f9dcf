"""Orders of events: waves picked at random, and workgroups or devices that go on only when nothing else can."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3lab.errors import expect
from k3lab.sim.options import Held, Options
from k3lab.sim.schedule.cohort import Cohort, merge
from k3lab.sim.schedule.fleet import Fleet

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
FEW = 8  # a few of n workgroups are n / FEW
SETS = 6  # waves that go together in a random order
PATIENCE = 8  # how many draws in a row must give a slow device for it to go on


@dataclass(frozen=True)
class Starved:
    """Workgroups held back.

    Attributes:
        slots: [slots] which ones.
        first: from which block of their kernel on (in running order); `launch`: from which launch of their device on.
    """

    slots: Bools
    first: int = 0
    launch: int = 0

    def divide(self, cohort: Cohort, fleet: Fleet, place: int) -> tuple[Cohort | None, Cohort | None]:
        """(what can go on, what is held back) of a cohort that stands at block `place` of its kernel."""
        if place < self.first or not self.slots.any():
            return cohort, None
        slots = cohort.waves // fleet.waves_per_group
        held = self.slots[slots] & (fleet.launch[fleet.device[slots]] >= self.launch)
        return _divide(cohort, ~held)


def starved_by(options: Options, random: np.random.Generator, fleet: Fleet) -> Starved:
    """What the options hold back."""
    if options.schedule == "adversarial":
        return draw(random, fleet)
    return Starved(_slots(options.hold, fleet), options.hold_from, options.hold_launch)


def _slots(held: frozenset[Held], fleet: Fleet) -> Bools:
    """The slots of workgroups by number (on every rank), or by (rank, number)."""
    slots = np.zeros(fleet.slots, bool)
    for name in held:
        rank, workgroup = name if isinstance(name, tuple) else (None, name)
        mine = (fleet.workgroup == workgroup) & (rank is None or fleet.device == rank)
        expect(bool(np.any(mine)), "hold", "workgroups that there are", name)
        slots |= mine
    return slots


def draw(random: np.random.Generator, fleet: Fleet) -> Starved:
    """One workgroup, a few or half of them, or whole devices; from the beginning, or from some block or launch on."""
    count = max(1, fleet.slots // int(random.choice([2, FEW, fleet.slots])))
    slots = np.isin(np.arange(fleet.slots), random.choice(fleet.slots, count, replace=False))
    blocks = max(len(dispatch.image.program.codes) for queue in fleet.queues for dispatch in queue)
    first = int(random.integers(blocks)) if random.random() < 0.5 else 0
    if fleet.devices > 1 and random.random() < 0.5:
        slots = slow_devices(random, fleet)[fleet.device]
    launches = max(map(len, fleet.queues))
    launch = int(random.integers(launches)) if launches > 1 and random.random() < 0.5 else 0
    return Starved(slots, first, launch)


def slow_devices(random: np.random.Generator, fleet: Fleet) -> Bools:
    """[devices] one of them, or half."""
    count = max(1, fleet.devices // int(random.choice([2, fleet.devices])))
    return np.isin(np.arange(fleet.devices), random.choice(fleet.devices, count, replace=False))


class RandomOrder:
    """Picks waves at random; of several devices, some seeds make one or half of them slow.

    What goes together is drawn once, so that a pick seldom has to cut or join what is ready. By seed: a few sets of
    workgroups, a few sets of waves, or each wave with about half of its workgroup's others (which takes longest).
    """

    def __init__(self, random: np.random.Generator, seed: int, fleet: Fleet) -> None:
        self._random, self._fleet = random, fleet
        size = fleet.waves_per_group
        by_group = np.repeat(random.integers(SETS, size=fleet.slots), size)
        by_wave = random.integers(SETS, size=fleet.slots * size)
        by_half = np.repeat(np.arange(fleet.slots) * 2, size) + random.integers(2, size=fleet.slots * size)
        self._set = (by_group, by_wave, by_half)[seed % 3]
        self._slow, self._slowed = np.zeros(fleet.devices, bool), False
        if fleet.devices > 1 and random.random() < 2 / 3:
            self._slow = slow_devices(random, fleet)

    def pick(self, ready: dict[int, list[Cohort]]) -> Cohort:
        """Some waves that go together, at the smallest block where they are, so that lanes meet; out of `ready`."""
        picked = self._set == self._some_set(ready)
        if self._slow.any():
            picked &= np.repeat(self._slow[self._fleet.device] == self._slowed, self._fleet.waves_per_group)
        for block in sorted(ready):
            parts = [_divide(cohort, picked[cohort.waves]) for cohort in ready[block]]
            if any(taken is not None for taken, _ in parts):
                ready[block] = [left for _, left in parts if left is not None]
                if not ready[block]:
                    del ready[block]
                return merge([taken for taken, _ in parts if taken is not None])
        raise AssertionError("no wave picked is ready")

    def _some_set(self, ready: dict[int, list[Cohort]]) -> int:
        """The set of a wave at random; a slow device's only after several draws."""
        blocks = list(ready)
        for _ in range(PATIENCE):
            cohorts = ready[blocks[int(self._random.integers(len(blocks)))]]
            cohort = cohorts[int(self._random.integers(len(cohorts)))]
            wave = int(cohort.waves[int(self._random.integers(cohort.n))])
            self._slowed = bool(self._slow[self._fleet.device[wave // self._fleet.waves_per_group]])
            if not self._slowed:
                break
        return int(self._set[wave])


def first_of(held: Sequence[Cohort], waves_per_group: int) -> tuple[list[Cohort], list[Cohort]]:
    """(those of each workgroup at its smallest block, the others): a wave's lanes meet if those behind go first."""
    smallest: dict[int, int] = {}
    for cohort in sorted(held, key=lambda cohort: cohort.block):
        for group in np.unique(cohort.waves // waves_per_group).tolist():
            smallest.setdefault(group, cohort.block)
    parts = [
        _divide(cohort, np.array([smallest[g] == cohort.block for g in (cohort.waves // waves_per_group).tolist()]))
        for cohort in held
    ]
    return [go for go, _ in parts if go is not None], [stay for _, stay in parts if stay is not None]


def _divide(cohort: Cohort, chosen: Bools) -> tuple[Cohort | None, Cohort | None]:
    """The cohort's waves where `chosen`, and the others."""
    if chosen.all():
        return cohort, None
    if not chosen.any():
        return None, cohort
    return cohort.rows(np.flatnonzero(chosen)), cohort.rows(np.flatnonzero(~chosen))
