"""Whether what hands values over has the reach it needs: that of its region, and from device to device system scope."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from k3lab.sim.checks.touch import SYSTEM, WORD, Found, Touch, words_of
from k3lab.sim.memory.regions import NOWHERE, RegionMap
from k3lab.sim.schedule.fleet import Fleet

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
Numbers = NDArray[np.int16]
NOBODY = -1


class Scopes:
    """Watches accesses to pairs and flags, and stores to rows that flags guard."""

    def __init__(self, fleet: Fleet, regions: RegionMap) -> None:
        self._regions = regions
        self._device = np.repeat(fleet.device, fleet.waves_per_group)
        self._senders: dict[int, tuple[Numbers, NDArray[np.int8]]] = {}  # by word: the device that stored last, how

    def see(self, touch: Touch, region: Numbers, found: Found) -> None:
        """Report an access that does not reach far enough."""
        if touch.what == "store":
            self._check_rows(touch, region, found)
        if not self._regions.handed[region].any():
            return
        self._check_region(touch, region, found)
        if self._device[-1]:  # there are several
            if touch.what != "store":
                self._check_sender(touch, region, found)
            if touch.what != "load":
                self._note(touch)

    def _check_rows(self, touch: Touch, region: Numbers, found: Found) -> None:
        """Rows that a flag guards: drained or not, a store without their scope stays in this die's cache."""
        self._check(touch, region, np.where(self._regions.guard != NOWHERE, self._regions.policy, 0), found)

    def _check_region(self, touch: Touch, region: Numbers, found: Found) -> None:
        self._check(touch, region, np.where(self._regions.handed, self._regions.policy, 0), found)

    def _check(self, touch: Touch, region: Numbers, policies: Numbers, found: Found) -> None:
        """Report an access that lacks what `policies` asks of its region."""
        regions = self._regions
        wanted = policies[region]
        short = _by_word(wanted & ~touch.policy != 0, touch)
        if not short.any():
            return
        index = _first(short)
        number = int(np.broadcast_to(region, short.shape)[index])
        message = f"{regions.describe(touch, index)}, has cache policy {touch.policy}"
        needs = int(regions.policy[number])
        found("scope", f"{message}; {regions.regions[number].scope} scope needs {needs}", touch.element(index))

    def _check_sender(self, touch: Touch, region: Numbers, found: Found) -> None:
        """A load of what another device stored: both must be of system scope."""
        sender, policy = self._words(touch)
        at = words_of(touch.offset, touch.size)
        mine = np.broadcast_to(self._device[touch.wave][..., None], at.shape)
        far = (policy[at] & touch.policy & SYSTEM) == SYSTEM
        short = (sender[at] != NOBODY) & (sender[at] != mine) & ~far & _by_word(self._regions.handed[region], touch)
        if short.any():
            index = _first(short)
            place = at[index]
            message = (
                f"{self._regions.describe(touch, index)}, has cache policy {touch.policy}, and rank {sender[place]}"
            )
            message += f" stored it with policy {policy[place]}; between ranks both need {SYSTEM}"
            found("scope", message, touch.element(index))

    def _note(self, touch: Touch) -> None:
        sender, policy = self._words(touch)
        at = words_of(touch.offset, touch.size)
        sender[at] = self._device[touch.wave][..., None]
        policy[at] = touch.policy

    def _words(self, touch: Touch) -> tuple[Numbers, NDArray[np.int8]]:
        base, count = touch.buffer.base, touch.buffer.data.size // WORD + 2
        if base not in self._senders:
            self._senders[base] = np.full(count, NOBODY, np.int16), np.zeros(count, np.int8)
        return self._senders[base]


def _by_word(chosen: Bools, touch: Touch) -> Bools:
    """What is said of words, or of all, for every element and word."""
    return np.broadcast_to(chosen, (*touch.offset.shape, chosen.shape[-1] if chosen.ndim else 1))


def _first(chosen: Bools) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(chosen)[0])
