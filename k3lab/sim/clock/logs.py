"""What the clock writes down while it runs, and the tables that this becomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3lab.lowering.ir import Op
from k3lab.sim.clock.record import Barriers, Handoffs, Launches, Reads, Waves
from k3lab.sim.clock.transfers import Handed
from k3lab.sim.memory.regions import RegionMap
from k3lab.sim.schedule.fleet import Fleet

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Array = NDArray[Any]


class Sites:
    """Source lines by number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def of(self, op: Op) -> int:
        """The number of the operation's line."""
        return self._numbers.setdefault(str(op.loc) if op.loc else "an unknown line", len(self._numbers))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._numbers)


class Columns:
    """Rows that come in pieces: arrays of one length, or numbers that hold for all of a piece."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds
        self._pieces: list[tuple[Any, ...]] = []

    def add(self, *columns: Any) -> None:
        """More rows."""
        self._pieces.append(np.broadcast_arrays(*map(np.atleast_1d, columns)))

    def arrays(self) -> list[Array]:
        """All rows so far."""
        if not self._pieces:
            return [np.zeros(0, kind) for kind in self._kinds]
        columns = zip(self._kinds, zip(*self._pieces, strict=True), strict=True)
        return [np.concatenate(parts).astype(kind) for kind, parts in columns]


class _ByWave:
    """Rows that begin with a wave: its device, launch, workgroup, and number in it."""

    def __init__(self, fleet: Fleet, *kinds: type) -> None:
        self._fleet = fleet
        self._columns = Columns(np.int32, np.int32, np.int32, np.int32, *kinds)

    def _add(self, waves: I64, *columns: Any) -> None:
        slots, places = np.divmod(waves, self._fleet.waves_per_group)
        device = self._fleet.device[slots]
        self._columns.add(device, self._fleet.launch[device], self._fleet.workgroup[slots], places, *columns)

    def _sorted(self) -> list[Array]:
        """All rows by wave, those of a wave in the order they came."""
        columns = self._columns.arrays()
        order = np.lexsort(columns[3::-1])
        return [column[order] for column in columns]


class LaunchLog:
    """When launches ran."""

    def __init__(self) -> None:
        self._columns = Columns(np.int32, np.int32, np.float64, np.float64)

    def note(self, device: int, launch: int, start: float, end: float) -> None:
        """A launch has ended."""
        self._columns.add(device, launch, start, end)

    def table(self) -> Launches:
        return Launches(*self._columns.arrays())


class WaveLog(_ByWave):
    """When waves ran."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__(fleet, np.float64, np.float64)

    def note(self, waves: I64, start: F64, end: F64) -> None:
        """Waves have ended."""
        self._add(waves, start, end)

    def table(self) -> Waves:
        return Waves(*self._sorted())


class BarrierLog:
    """Who came last to barriers."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._columns = Columns(np.int32, np.int32, np.int32, np.float64, np.float64, np.int32)

    def note(self, slots: I64, first: F64, last: F64, wave: I64) -> None:
        """Workgroups pass a barrier."""
        device = self._fleet.device[slots]
        self._columns.add(device, self._fleet.launch[device], self._fleet.workgroup[slots], first, last, wave)

    def table(self) -> Barriers:
        columns = self._columns.arrays()
        order = np.lexsort(columns[2::-1])
        return Barriers(*(column[order] for column in columns))


class ReadLog(_ByWave):
    """Who read the counter when."""

    def __init__(self, fleet: Fleet, sites: Sites) -> None:
        super().__init__(fleet, np.int32, np.float64, np.int64)
        self._sites = sites

    def note(self, waves: I64, op: Op, time: F64, value: I64) -> None:
        """Waves read it."""
        self._add(waves, self._sites.of(op), time, value)

    def table(self) -> Reads:
        return Reads(*self._sorted())


@dataclass
class _Chunk:
    """Hand-offs that one load found, a row a wave; `alive`: that have not turned out to be a look in vain."""

    waves: I64
    launch: I64
    batch: I64
    site: int
    began: F64
    ready: F64
    released: F64
    handed: Handed
    alive: NDArray[np.bool_]


class HandoffLog:
    """What waves found that others stored."""

    def __init__(self, fleet: Fleet, regions: RegionMap, sites: Sites, waves: int) -> None:
        self._fleet, self._regions, self._sites = fleet, regions, sites
        self._chunks: list[_Chunk] = []
        self._first = np.zeros(waves, np.int64)  # by wave: the first chunk that its running batch may be in

    def begin(self, waves: I64) -> None:
        """A new batch of loads of each wave."""
        self._first[waves] = len(self._chunks)

    def note(self, waves: I64, batch: I64, op: Op, began: F64, ready: F64, released: F64, handed: Handed) -> None:
        """Waves find what was handed to them, where it was."""
        some = np.isfinite(handed.arrived)
        waves, batch = waves[some], batch[some]
        launch = self._fleet.launch[self._fleet.device[waves // self._fleet.waves_per_group]]
        times, alive = (began[some], ready[some], released[some]), np.ones(len(waves), bool)
        self._chunks.append(_Chunk(waves, launch, batch, self._sites.of(op), *times, handed.rows(some), alive))

    def drop(self, waves: I64, batch: I64) -> None:
        """What each wave found in its running batch was found in vain: it looks again."""
        running = np.full(len(self._first), -1)
        running[waves] = batch
        for chunk in self._chunks[int(self._first[waves].min()) :]:
            chunk.alive &= chunk.batch != running[chunk.waves]

    def table(self) -> Handoffs:
        columns = Columns(*[np.int64] * 6, *[np.float64] * 4, *[np.int64] * 2, np.float64)
        for chunk in self._chunks:
            region, index = self._regions.places(chunk.handed.base, chunk.handed.word)
            found = chunk.handed
            columns.add(
                chunk.waves, chunk.launch, chunk.batch, region, index, chunk.site,
                chunk.began, chunk.ready, chunk.released, found.arrived, found.wave, found.launch, found.stored,
            )  # fmt: skip
        alive = np.concatenate([chunk.alive for chunk in self._chunks]) if self._chunks else np.zeros(0, bool)
        return self._handoffs([column[alive] for column in columns.arrays()])

    def _handoffs(self, columns: list[Array]) -> Handoffs:
        """Of each reader's batch and region, the row whose words came last."""
        waves, launch, batch, region, *_ = columns
        order = np.lexsort((-columns[9], region, batch, waves, launch))
        keys = np.stack([launch, waves, batch, region])[:, order]
        first = np.ones(len(order), bool)
        first[1:] = (np.diff(keys) != 0).any(0)
        waves, launch, batch, region, index, site, began, ready, released, _, sender, its_launch, stored = (
            column[order[first]] for column in columns
        )
        mine, theirs = self._named(waves), self._named(sender)
        by_reader = np.lexsort((region, batch, mine[2], mine[1], launch, mine[0]))
        whole: tuple[Array, ...] = (
            mine[0],
            launch,
            mine[1],
            mine[2],
            batch,
            region,
            index,
            site,
            began,
            ready,
            released,
        )
        whole += (theirs[0], its_launch, theirs[1], theirs[2], stored)
        wide: dict[int, Any] = {6: np.int64, **dict.fromkeys((8, 9, 10, 15), np.float64)}
        table: list[Any] = [column[by_reader].astype(wide.get(i, np.int32)) for i, column in enumerate(whole)]
        return Handoffs(*table)

    def _named(self, waves: I64) -> tuple[Array, Array, Array]:
        slots, places = np.divmod(waves, self._fleet.waves_per_group)
        return self._fleet.device[slots], self._fleet.workgroup[slots], places
