"""Where each CTA's time went: a run's stamps as intervals, named by the launch's declaration, on one absolute clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from k3lab.analysis.timeline.traffic import Traffic
from k3lab.errors import expect
from k3lab.launches.declaration import Launch
from k3lab.launches.stamps import ATTENTION, GEMV, StampPoint, in_passing_order

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
Table = npt.NDArray[np.void]
Kind = Literal["modelled", "measured"]

INTERVAL = np.dtype([("rank", "i4"), ("cta", "i4"), ("point", "i4"), ("start", "i8"), ("end", "i8")])
"""A CTA's time from one point it passed to the next, `point`; both ends absolute, in the clock's unit."""

WAIT = np.dtype(
    [
        *((name, "i4") for name in ("rank", "cta", "wave", "region")),
        *((name, "f8") for name in ("begin", "ready", "end", "put")),
        *((name, "i4") for name in ("from_rank", "from_cta", "from_wave")),
    ]
)
"""A hand-off to a wave: it asked at `begin`, would have had the answer at `ready` had the words been there for long,
and had it at `end`; the last of them was stored at `put` by the wave named last. Absolute, in the clock's unit.
It waited for that wave from `ready` to `end`, if these differ."""

BARRIER = np.dtype([("rank", "i4"), ("cta", "i4"), ("wave", "i4"), ("time", "f8")])
"""A barrier that a CTA passed: the wave that came last, and when. Absolute, in the clock's unit."""


@dataclass(frozen=True)
class Clock:
    """What time stamps count.

    Attributes:
        unit: what one is called: tick, ns.
        rate: how many there are in a second.
        kind: measured on a device, or modelled by the simulator.
        device: whose clock it is.
    """

    unit: str
    rate: float
    kind: Kind
    device: str

    def us(self, count: Any) -> Any:
        """`count` of the clock's units in microseconds."""
        return count * (1e6 / self.rate)

    @property
    def label(self) -> str:
        """`measured on ...`, or that it was not, for every picture and page."""
        return f"measured on {self.device}" if self.kind == "measured" else f"modelled, not measured: {self.device}"


@dataclass(frozen=True, eq=False)
class Timeline:
    """One launch on all its ranks, CTA by CTA.

    Attributes:
        launch, published: names of the launch; `case` describes the inputs in a phrase.
        points: the declared stamp points; `order` their numbers in the order a CTA passes them.
        stamps: [ranks, BLOCKS, points] in the clock's unit, 0 where a CTA did not pass a point.
        na: attention CTAs, the first of a rank's.
        regions: names that a wait's `region` counts into.
        waits, barriers: hand-offs to waves (`WAIT`), CTAs' barriers (`BARRIER`); None where the backend cannot say.
        traffic: what each stage moved and multiplied (`k3lab.analysis.timeline.traffic`), or None.
        provenance: as the run's.
    """

    launch: str
    published: str
    case: str
    clock: Clock
    points: tuple[StampPoint, ...]
    stamps: I64
    na: int
    regions: tuple[str, ...] = ()
    waits: Table | None = None
    barriers: Table | None = None
    traffic: Traffic | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ranks = f"[ranks, BLOCKS, {len(self.points)}]"
        fits = self.stamps.ndim == 3 and self.stamps.shape[2] == len(self.points)
        expect(fits, "stamps", ranks, list(self.stamps.shape))
        expect(self.passed.any(), "stamps", "at least one CTA that passed a point", "none; run a timeline build")

    @property
    def ranks(self) -> int:
        return self.stamps.shape[0]

    @property
    def blocks(self) -> int:
        return self.stamps.shape[1]

    @cached_property
    def order(self) -> list[int]:
        return in_passing_order(self.points)

    @cached_property
    def passed(self) -> npt.NDArray[np.bool_]:
        """[ranks, BLOCKS, points]: whether the CTA passed the point. What it did not pass stays missing.

        A modelled clock may stand at 0 when a CTA starts, which it did if it passed any other point.
        """
        passed = self.stamps != 0
        passed[:, :, 0] |= passed.any(axis=2)
        return passed

    @property
    def begin(self) -> int:
        """When the first CTA of any rank started."""
        return int(self.stamps[self.passed].min())

    @property
    def end(self) -> int:
        """When the last CTA of any rank passed its last point."""
        return int(self.stamps.max())

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the stages that intervals carry, in passing order."""
        return tuple(dict.fromkeys(self.points[n].stage for n in self.order if self.points[n].stage))

    def role(self, cta: int) -> str:
        """What the CTA begins as."""
        return ATTENTION if cta < self.na else GEMV

    @cached_property
    def intervals(self) -> Table:
        """Every interval (`INTERVAL`), by rank, CTA and time."""
        rows: list[tuple[int, int, int, int, int]] = []
        for rank in range(self.ranks):
            for cta in range(self.blocks):
                numbers, times = self._passed_by(rank, cta)
                ends = zip(numbers[1:].tolist(), times[:-1].tolist(), times[1:].tolist(), strict=True)
                rows += [(rank, cta, number, start, end) for number, start, end in ends]
        return np.array(rows, dtype=INTERVAL)

    @cached_property
    def wait_points(self) -> npt.NDArray[np.int32]:
        """For each wait the point whose interval it ends in (of the CTA's first thread); -1 after its last point."""
        waits = self.waits
        assert waits is not None
        points = np.full(len(waits), -1, np.int32)
        readers = waits["rank"].astype(np.int64) * self.blocks + waits["cta"]
        for part in grouped(readers):
            rank, cta = divmod(int(readers[part[0]]), self.blocks)
            numbers, times = self._passed_by(rank, cta)
            points[part] = np.append(numbers, -1)[np.searchsorted(times, waits["end"][part], "left")]
        return points

    def _passed_by(self, rank: int, cta: int) -> tuple[npt.NDArray[np.int32], I64]:
        """Numbers and times of the points a CTA passed, by time; a tie stays in passing order."""
        row = self.stamps[rank, cta]
        passed = np.array([number for number in self.order if self.passed[rank, cta, number]], np.int32)
        passed = passed[np.argsort(row[passed], kind="stable")]
        return passed, row[passed]

    def point_at(self, rank: int, cta: int, time: float) -> int:
        """The point that a CTA passes next at `time`; -1 after its last one."""
        numbers, times = self._passed_by(rank, cta)
        place = int(np.searchsorted(times, time, "left"))
        return int(numbers[place]) if place < len(numbers) else -1

    def stage_of(self, point: int) -> str:
        """The stage an interval belongs to by its point; `after the last point` for -1."""
        return self.points[point].stage if point >= 0 else "after the last point"

    def us(self, time: Any) -> Any:
        """Absolute times in microseconds since the launch began."""
        return self.clock.us(time - self.begin)

    @property
    def notes(self) -> list[str]:
        """What a reader of the picture must know, a sentence each."""
        found = []
        if self.clock.kind == "modelled":
            found.append("Times are modelled by the simulator, not measured on a GPU.")
        elif self.ranks > 1:
            found.append(self.provenance.get("clocks", {}).get("said", "Each GPU's times are on its own clock."))
        if "launches" in self.provenance:
            found.append(f"The launch is {self.provenance['launches']}.")
        return found

    @property
    def title(self) -> str:
        """`K1 (kda_pre), 8 ranks`."""
        ranks = f", {self.ranks} ranks" if self.ranks > 1 else ""
        return f"{self.launch.capitalize()} ({self.published}){ranks}"

    def save(self, folder: str | Path, against: Timeline | None = None, ceilings: str = "mi355x") -> Path:
        """Write timeline.html, its pictures and every export into `folder`; see `timeline.page.save`."""
        from k3lab.analysis.timeline.page import save

        return save(self, folder, against, ceilings)

    def __repr__(self) -> str:
        length = f"{float(self.us(self.end)):.2f} µs"
        return f"Timeline({self.title}, {self.case}, {length}, {self.clock.label})"

    def _repr_html_(self) -> str:
        from k3lab.analysis.timeline.canvas import fragment

        return fragment(self)


def grouped(keys: I64) -> Iterator[npt.NDArray[np.int64]]:
    """Indices of equal `keys`, key by key in ascending order; those of one key in their own order."""
    order = np.argsort(keys, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)
    yield from (part for part in parts if len(part))


def of_stamps(launch: Launch, na: int, stamps: Sequence[Any], clock: Clock, case: str = "", **more: Any) -> Timeline:
    """A timeline of `stamps`, by rank [BLOCKS, points] of any integer type."""
    held = np.stack([np.asarray(rank, np.int64) for rank in stamps])
    return Timeline(launch.name, launch.published, case, clock, launch.stamp_points, held, na, **more)
