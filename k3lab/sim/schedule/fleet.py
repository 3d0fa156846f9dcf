"""The devices of a simulation: what each has to launch, which workgroups run, and how all their waves are numbered.

Every device has as many *slots* as its largest launch has workgroups, numbered on from device to device; workgroup i of
any launch runs in its device's slot i. Every slot has as many waves as the largest workgroup of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3lab.errors import expect
from k3lab.geometry import LANES
from k3lab.lowering.ir import Loc
from k3lab.sim.decode.link import Image
from k3lab.sim.faults import Where

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Dispatch:
    """A kernel launch ready to run: the number of its image among those linked, and the kernel's arguments."""

    image: Image
    number: int
    args: dict[int, Any]

    @property
    def workgroups(self) -> int:
        return prod(self.image.grid)

    @property
    def waves(self) -> int:
        """Waves of a workgroup."""
        return prod(self.image.block) // LANES


class Fleet:
    """Devices with a queue of launches each.

    Attributes:
        slots, waves_per_group: slots of all devices together, waves of each.
        first: [devices + 1] first slot of each device, and one past the last.
        device, workgroup: [slots] whose slot it is, and which workgroup runs there.
        launch: [devices] number of the launch that runs; -1 before the first.
        unstarted: [devices] workgroups of that launch that wait for a place.
        live_waves: [slots], live_lanes: [slots * waves_per_group], of those running.
    """

    def __init__(
        self,
        queues: Sequence[Sequence[Dispatch]],
        resident: int | None,
        ended: Callable[[int, int], None] | None = None,
    ) -> None:
        """Devices at rest.

        Args:
            resident: workgroups that a device has room for at once; None: for all.
            ended: called with a device and the number of its launch that has ended, before its next one starts.

        Raises:
            BadInput: for a launch that has no whole waves.
        """
        expect(all(queues) and len(queues) > 0, "launches", "one or more on every rank", [len(q) for q in queues])
        for dispatch in (dispatch for queue in queues for dispatch in queue):
            threads = prod(dispatch.image.block)
            fits = threads > 0 and threads % LANES == 0 and dispatch.workgroups > 0
            sizes = f"block {dispatch.image.block}, grid {dispatch.image.grid}"
            expect(fits, "launch", f"whole waves of {LANES} threads", sizes)
        self.queues = tuple(map(tuple, queues))
        self.resident, self._ended = resident, ended
        self.waves_per_group = max(dispatch.waves for queue in queues for dispatch in queue)
        self.first = np.cumsum([0, *(max(dispatch.workgroups for dispatch in queue) for queue in queues)])
        self.slots = int(self.first[-1])
        self.device = np.repeat(np.arange(len(queues)), np.diff(self.first))
        self.workgroup = np.arange(self.slots) - self.first[self.device]
        self.launch = np.full(len(queues), -1)
        self.unstarted = np.zeros(len(queues), np.int64)
        self.live_waves = np.zeros(self.slots, np.int64)
        self.live_lanes = np.zeros(self.slots * self.waves_per_group, np.int64)
        # Findings name what there is several of.
        self._several = len(queues) > 1, any(len(queue) > 1 for queue in queues)

    @property
    def devices(self) -> int:
        return len(self.queues)

    def slots_of(self, device: int) -> slice:
        """The device's slots."""
        return slice(int(self.first[device]), int(self.first[device + 1]))

    def waves_of(self, device: int) -> slice:
        """The device's waves."""
        slots = self.slots_of(device)
        return slice(slots.start * self.waves_per_group, slots.stop * self.waves_per_group)

    def running(self, device: int) -> Dispatch:
        """What the device runs."""
        return self.queues[device][int(self.launch[device])]

    def begin(self, device: int) -> bool:
        """Take the next launch of the device; whether there is one."""
        if self._ended is not None and self.launch[device] >= 0:
            self._ended(device, int(self.launch[device]))
        if self.launch[device] + 1 == len(self.queues[device]):
            return False
        self.launch[device] += 1
        self.unstarted[device] = self.running(device).workgroups
        return True

    def admit(self, device: int) -> I64:
        """Start as many workgroups as there is room for; returns their waves."""
        dispatch, slots = self.running(device), self.slots_of(device)
        start = dispatch.workgroups - int(self.unstarted[device])
        room = int(self.unstarted[device])
        if self.resident is not None:
            room = min(room, self.resident - int((self.live_waves[slots] > 0).sum()))
        self.unstarted[device] -= room
        groups = slots.start + start + np.arange(room)
        self.live_waves[groups] = dispatch.waves
        waves: I64 = (groups[:, None] * self.waves_per_group + np.arange(dispatch.waves)).ravel()
        self.live_lanes[waves] = LANES
        return waves

    def retire(self, waves: I64, lanes: Any) -> list[int]:
        """`lanes` of each wave have returned; the devices where a workgroup ended by that."""
        self.live_lanes[waves] -= lanes
        gone = waves[self.live_lanes[waves] == 0] // self.waves_per_group
        np.subtract.at(self.live_waves, gone, 1)
        ended = gone[self.live_waves[gone] == 0]
        return np.unique(self.device[ended]).tolist() if ended.size else []

    def idle(self, device: int) -> bool:
        """Whether all workgroups of the device's launch have ended."""
        return not self.unstarted[device] and not self.live_waves[self.slots_of(device)].any()

    def where(self, loc: Loc | None, wave: int, lane: int | None = None, launch: int | None = None) -> Where:
        """A place by number of the wave; rank and launch are named where there are several."""
        slot, in_group = divmod(wave, self.waves_per_group)
        device = int(self.device[slot])
        launch = int(self.launch[device]) if launch is None else launch
        rank, number = (n if several else None for n, several in zip((device, launch), self._several, strict=True))
        return Where(loc, int(self.workgroup[slot]), in_group, lane, rank, number)
