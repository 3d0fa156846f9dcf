"""What the modelled clock leaves behind: tables of equal columns, all times in modelled nanoseconds.

Time 0 is when every device starts its first launch. A workgroup is named by device (rank), number of the launch on that
device, and number in the grid; a wave by its number in the workgroup.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from k3lab.sim.clock.costs import Costs

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


class Table:
    """Columns of equal length, one array each."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Launches(Table):
    """One row a launch of a device, in the order they ended; `start_ns` is when its first waves could begin."""

    device: I32
    launch: I32
    start_ns: F64
    end_ns: F64


@dataclass(frozen=True, eq=False)
class Waves(Table):
    """One row a wave that ran, sorted by device, launch, workgroup, wave."""

    device: I32
    launch: I32
    workgroup: I32
    wave: I32
    start_ns: F64
    end_ns: F64


@dataclass(frozen=True, eq=False)
class Handoffs(Table):
    """One row for each batch of loads of a wave, and region in it, that found what another workgroup stored.

    Of the words that arrived, a row names those that arrived last. Looks that a waiting loop repeated are left out.
    Sorted by reader, then by batch.

    Attributes:
        device, launch, workgroup, wave: the reader.
        batch: which of the reader's batches of loads, counted from 0 (batches with no row leave a gap).
        region: index into `Modelled.regions`; -1 outside of every declared region.
        index: of the pair, flag word or byte of rows in its region; outside of regions, byte of its buffer.
        site: index into `Modelled.sites`: the line that loads.
        began_ns: when the load was issued (the first time, in a waiting loop).
        ready_ns: when its data would have been there if it had been stored long before.
        released_ns: when the data was there: the later of `ready_ns` and `stored_ns` plus the hand-off latency.
            The wait for the producer is `released_ns - ready_ns`; 0 where the producer was early.
        from_device, from_launch, from_workgroup, from_wave: who stored the words.
        stored_ns: when it did; to another device, when the link had taken the words.
    """

    device: I32
    launch: I32
    workgroup: I32
    wave: I32
    batch: I32
    region: I32
    index: I64
    site: I32
    began_ns: F64
    ready_ns: F64
    released_ns: F64
    from_device: I32
    from_launch: I32
    from_workgroup: I32
    from_wave: I32
    stored_ns: F64

    @property
    def waited_ns(self) -> F64:
        """How long each row waited for its producer, beyond the load's own time."""
        waited: F64 = self.released_ns - self.ready_ns
        return waited


@dataclass(frozen=True, eq=False)
class Barriers(Table):
    """One row each time a workgroup passes a barrier, in order for each workgroup.

    Attributes:
        first_ns, last_ns: when the first and the last of its waves arrived; `last_wave` is that wave.
    """

    device: I32
    launch: I32
    workgroup: I32
    first_ns: F64
    last_ns: F64
    last_wave: I32


@dataclass(frozen=True, eq=False)
class Reads(Table):
    """One row each time a wave read the clock, in order for each wave: a finer time than the value it got.

    Attributes:
        site: index into `Modelled.sites`.
        value: ticks of the counter that the wave got.
    """

    device: I32
    launch: I32
    workgroup: I32
    wave: I32
    site: I32
    time_ns: F64
    value: I64


@dataclass(frozen=True, eq=False)
class Modelled:
    """The modelled time of a simulation. Nothing in it was measured; `k3lab.sim.clock` states the model.

    Attributes:
        costs: what it was computed from.
        regions: titles of the declared regions (`XRDY`, or `XRDY of rank 1`).
        sites: source lines (`file.py:12:3`).
    """

    costs: Costs
    regions: tuple[str, ...]
    sites: tuple[str, ...]
    launches: Launches
    waves: Waves
    handoffs: Handoffs
    barriers: Barriers
    reads: Reads

    @property
    def end_ns(self) -> float:
        """When the last launch of any device ended."""
        return float(self.launches.end_ns.max())
