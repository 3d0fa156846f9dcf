"""Vector clocks of waves: what each wave knows of what the others have done.

A wave counts its own *ticks*. That wave `w` knows tick `t` of wave `v` means: all that `v` did up to its tick `t` comes
before all that `w` does from now on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
NEVER = -1


class Clocks:
    """The clocks of a launch's waves.

    Attributes:
        known: [waves, waves] the last tick of the second wave that the first one knows; its own on the diagonal.
    """

    def __init__(self, workgroups: int, waves_per_group: int) -> None:
        self._shape = (workgroups, waves_per_group, workgroups * waves_per_group)
        waves = self._shape[2]
        self.known = np.zeros((waves, waves), np.int32)
        np.fill_diagonal(self.known, 1)
        # Clocks as they were at a release. A wave that has learnt nothing since releases the same one again: its own
        # tick is kept beside it.
        self._saved: list[I32] = []
        self._last_saved = np.full(waves, NEVER, np.int64)

    def ticks(self, waves: I64) -> I32:
        """The waves' own ticks now."""
        return self.known[waves, waves]

    def ordered(self, wave: I64, other: NDArray[Any], tick: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether `wave` knows `tick` of `other`."""
        known: NDArray[np.bool_] = self.known[wave, other] >= tick
        return known

    def barrier(self, complete: NDArray[np.bool_]) -> None:
        """All waves of the `complete` workgroups know what each of them knows."""
        groups, size, waves = self._shape
        joined = self.known.reshape(groups, size, waves)[complete].max(1)
        mine = np.flatnonzero(np.repeat(complete, size))
        self.known[mine] = np.repeat(joined, size, axis=0)
        self._pass(mine)
        self._last_saved[mine] = NEVER

    def release(self, waves: I64) -> tuple[I64, I32]:
        """Save the clocks of `waves` (each once): (number of the saved clock, the wave's own tick) of each."""
        for wave in waves[self._last_saved[waves] == NEVER]:
            self._last_saved[wave] = len(self._saved)
            self._saved.append(self.known[wave].copy())
        ticks = self.ticks(waves)
        self._pass(waves)
        return self._last_saved[waves], ticks

    def acquire(self, wave: I64, saved: I64, other: I64, tick: NDArray[Any]) -> None:
        """Each `wave` learns the clock `saved` by wave `other` at its `tick`; all flat, a wave may come often."""
        joined: dict[bytes, I32] = {}  # waves often acquire the same clocks
        order = np.lexsort((saved, wave))
        for part in np.split(order, np.flatnonzero(np.diff(wave[order])) + 1):
            numbers = np.unique(saved[part])
            if (key := numbers.tobytes()) not in joined:
                joined[key] = np.maximum.reduce([self._saved[number] for number in numbers])
            clock = self.known[wave[part[0]]]
            np.maximum(clock, joined[key], out=clock)
        np.maximum.at(self.known, (wave, other), tick.astype(np.int32))
        self._last_saved[wave] = NEVER

    def copy(self, wave: int) -> I32:
        """The wave's clock, for `join`; what it does next is not in it."""
        clock = self.known[wave].copy()
        self._pass(np.array([wave]))
        return clock

    def join(self, wave: int, clock: I32) -> None:
        """The wave learns `clock`."""
        np.maximum(self.known[wave], clock, out=self.known[wave])
        self._last_saved[wave] = NEVER

    def _pass(self, waves: I64) -> None:
        self.known[waves, waves] += 1
