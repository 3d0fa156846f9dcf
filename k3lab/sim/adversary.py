"""A directed adversary: which workgroups go on only when nothing else can, and from which block of the kernel on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3lab.sim.cohort import Cohort

FEW = 8  # a few of n workgroups are n / FEW


@dataclass(frozen=True)
class Starved:
    """Workgroups held back once they stand at block number `first` (in running order) or later."""

    groups: frozenset[int]
    first: int = 0

    def divide(self, cohort: Cohort, waves_per_group: int) -> tuple[Cohort | None, Cohort | None]:
        """(what can go on, what is held back) of a cohort."""
        if not self.groups or cohort.block < self.first:
            return cohort, None
        return _divide(cohort, ~np.isin(cohort.waves // waves_per_group, list(self.groups)))


def draw(random: np.random.Generator, workgroups: int, blocks: int) -> Starved:
    """One workgroup, a few or half of them, from the beginning or from some block on."""
    count = max(1, workgroups // int(random.choice([2, FEW, workgroups])))
    groups = random.choice(workgroups, count, replace=False)
    first = int(random.integers(blocks)) if random.random() < 0.5 else 0
    return Starved(frozenset(groups.tolist()), first)


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


def _divide(cohort: Cohort, chosen: NDArray[np.bool_]) -> tuple[Cohort | None, Cohort | None]:
    """The cohort's waves where `chosen`, and the others."""
    if chosen.all():
        return cohort, None
    if not chosen.any():
        return None, cohort
    return cohort.rows(np.flatnonzero(chosen)), cohort.rows(np.flatnonzero(~chosen))
