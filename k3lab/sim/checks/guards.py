"""A rule that neither bits nor a race detector show: stores to rows are drained before their flag is put."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from k3lab.lowering.ir import Loc
from k3lab.sim.checks.touch import Found, Touch
from k3lab.sim.memory.regions import NOWHERE, RegionMap

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
Numbers = NDArray[np.int16]


class Guards:
    """Whether stores to guarded rows have been drained when their flag is put.

    A store to guarded rows makes its wave dirty, a wait for all stores cleans it. A put is an error by a dirty wave, or
    when another wave of its workgroup was dirty at their last barrier.
    """

    def __init__(self, workgroups: int, waves_per_group: int, regions: RegionMap) -> None:
        self._regions = regions
        self._waves_per_group = waves_per_group
        shape = (workgroups * waves_per_group, len(regions.regions) + 1)
        self._dirty, self._at_barrier = np.zeros(shape, bool), np.zeros(shape, bool)
        self._stored: dict[tuple[int, int], Loc | None] = {}  # the last store to guarded rows, by wave and guard

    def store(self, touch: Touch, region: Numbers, found: Found) -> None:
        """Note a store, to rows or flags."""
        guard = self._regions.guard[region]
        if (guard != NOWHERE).any():
            wave, flags = self._pairs(touch, guard, guard != NOWHERE)
            self._dirty[wave, flags] = True
            self._stored |= dict.fromkeys(zip(wave.tolist(), flags.tolist(), strict=True), touch.loc)
        puts = self._regions.guarding[region]
        if puts.any():
            self._check(touch, region, puts, found)

    def drained(self, waves: I64) -> None:
        """`waves` have waited for their stores."""
        self._dirty[waves] = False

    def ended(self, waves: slice) -> None:
        """The launch that `waves` ran has ended, and all they stored is there."""
        self._dirty[waves] = self._at_barrier[waves] = False

    def barrier(self, complete: Bools) -> None:
        """The `complete` workgroups pass a barrier."""
        mine = np.repeat(complete, self._waves_per_group)
        self._at_barrier[mine] = self._dirty[mine]

    def _pairs(self, touch: Touch, number: Numbers, chosen: Bools) -> tuple[I64, I64]:
        """Each (wave, number) once, where `chosen`."""
        shape = (*touch.offset.shape, chosen.shape[-1] if chosen.ndim else 1)
        use = np.broadcast_to(chosen, shape)
        wave, numbers = (np.broadcast_to(v, shape)[use] for v in (touch.wave[..., None], number.astype(np.int64)))
        pairs = np.unique(np.stack([wave, numbers]), axis=1)
        return pairs[0], pairs[1]

    def _check(self, touch: Touch, region: Numbers, puts: Bools, found: Found) -> None:
        for wave, flags in zip(*self._pairs(touch, region, puts), strict=True):
            first = wave // self._waves_per_group * self._waves_per_group
            others = self._at_barrier[first : first + self._waves_per_group, flags].copy()
            others[wave - first] = self._dirty[wave, flags]
            if not others.any():
                continue
            at = tuple(int(i) for i in np.argwhere(np.broadcast_to(touch.wave == wave, touch.offset.shape))[0])
            dirty = int(others.argmax())
            loc = self._stored[int(first) + dirty, int(flags)] or "an unknown line"
            message = (
                f"{self._regions.describe(touch, at)}, while wave {dirty}'s store to the "
                f"rows it guards, at {loc}, may be under way: it has not waited for vmcnt 0"
            )
            found("undrained", message, touch.element(at))
