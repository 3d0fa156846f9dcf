"""The critical path: from the last CTA's end backwards, through the hand-offs that ended waits last, to the start."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from k3lab.analysis.timeline.intervals import BARRIER, Table, Timeline
from k3lab.analysis.timeline.waits import known_waits, late
from k3lab.errors import expect

Step = Literal["work", "hand-off", "not started"]


@dataclass(frozen=True)
class Segment:
    """A piece of the critical path. Absolute times, in the clock's unit.

    Attributes:
        kind: `work` on the CTA (its loads' latency and its waits for other waves included); `hand-off`, from the
            producer's store until the reader goes on; or `not started`, before the CTA's first stamp.
        rank, cta: where; of a hand-off, the reader.
        stage, point: whose interval it lies in.
        region: of a hand-off, what was waited for; `from_rank`, `from_cta` say for whom.
    """

    kind: Step
    rank: int
    cta: int
    stage: str
    point: str
    start: float
    end: float
    region: str = ""
    from_rank: int = -1
    from_cta: int = -1

    @property
    def length(self) -> float:
        return self.end - self.start


def critical_path(timeline: Timeline) -> list[Segment]:
    """Segments from the launch's begin to its end, each starting where the one before ends.

    Backwards from the CTA that ends last, its first wave (which stamps): whatever let a wave go on last before a moment
    explains that moment. That is a hand-off whose producer was late, and the path goes on at the producer's store; or
    a barrier, and the path goes on with the wave that came last.

    Raises:
        BadInput: when the timeline knows no waits.
    """
    events = _Events(timeline)
    ends = timeline.stamps.max(axis=2)
    rank, cta = (int(i) for i in np.unravel_index(int(ends.argmax()), ends.shape))
    wave, time, upto = 0, float(timeline.end), float(timeline.end)
    found: list[Segment] = []
    while time > timeline.begin:
        wait, barrier = events.last_wait(rank, cta, wave, time), events.last_barrier(rank, cta, time)
        if barrier is not None and (wait is None or barrier["time"] > wait["end"]):
            wave, time = int(barrier["wave"]), float(barrier["time"])
            continue
        if wait is None:
            started = min(float(timeline.stamps[rank, cta, 0]), upto)
            found += [*_work(timeline, rank, cta, started, upto), *_not_started(timeline, rank, cta, started)]
            break
        found += [*_work(timeline, rank, cta, float(wait["end"]), upto), _hand_off(timeline, wait)]
        rank, cta, wave = (int(wait[name]) for name in ("from_rank", "from_cta", "from_wave"))
        time = upto = float(wait["put"])
    return found[::-1]


def by_stage(path: Sequence[Segment]) -> list[tuple[str, str, str, float]]:
    """The path's time by (kind, stage, region), in the order they first occur."""
    total: dict[tuple[str, str, str], float] = {}
    for part in path:
        key = (part.kind, part.stage, part.region)
        total[key] = total.get(key, 0.0) + part.length
    return [(*key, length) for key, length in total.items()]


class _Events:
    """What let waves go on, by wave or CTA and time."""

    def __init__(self, timeline: Timeline) -> None:
        waits = known_waits(timeline)
        held = np.sort(waits[late(waits) > 0], order=["rank", "cta", "wave", "end"])
        early = held["put"] >= held["end"]  # else the path could go round in a circle
        expect(not early.any(), "waits", "every store before the end of the waits for it", f"{int(early.sum())} after")
        self._waits = _split(held, ("rank", "cta", "wave"))
        barriers = timeline.barriers if timeline.barriers is not None else np.empty(0, BARRIER)
        self._barriers = _split(np.sort(barriers, order=["rank", "cta", "time"]), ("rank", "cta"))

    def last_wait(self, rank: int, cta: int, wave: int, time: float) -> np.void | None:
        """The wave's wait that ended last, at `time` at the latest."""
        return _before(self._waits.get((rank, cta, wave)), "end", time, "right")

    def last_barrier(self, rank: int, cta: int, time: float) -> np.void | None:
        """The CTA's last barrier before `time`."""
        return _before(self._barriers.get((rank, cta)), "time", time, "left")


def _split(table: Table, names: tuple[str, ...]) -> dict[tuple[int, ...], Table]:
    """A sorted table in parts that agree in `names`."""
    if not len(table):
        return {}
    changes = np.zeros(len(table) - 1, bool)
    for name in names:
        changes |= np.diff(table[name]) != 0
    parts = np.split(table, np.flatnonzero(changes) + 1)
    return {tuple(int(part[name][0]) for name in names): part for part in parts}


def _before(table: Table | None, name: str, time: float, side: Literal["left", "right"]) -> np.void | None:
    place = -1 if table is None else int(np.searchsorted(table[name], time, side)) - 1
    row: np.void | None = None if table is None or place < 0 else table[place]
    return row


def _work(timeline: Timeline, rank: int, cta: int, start: float, end: float) -> Iterator[Segment]:
    """A CTA's time from `start` to `end`, cut at its stamps, latest first."""
    row = timeline.stamps[rank, cta]
    cuts = sorted({start, end, *(float(t) for t in row if start < t < end)}, reverse=True)
    for later, earlier in pairwise(cuts):
        point = timeline.point_at(rank, cta, later)
        yield Segment("work", rank, cta, timeline.stage_of(point), _name(timeline, point), earlier, later)


def _not_started(timeline: Timeline, rank: int, cta: int, started: float) -> Iterator[Segment]:
    if started > timeline.begin:
        yield Segment("not started", rank, cta, "", "start", float(timeline.begin), started)


def _hand_off(timeline: Timeline, wait: np.void) -> Segment:
    rank, cta = int(wait["rank"]), int(wait["cta"])
    point = timeline.point_at(rank, cta, float(wait["end"]))
    return Segment(
        "hand-off",
        rank,
        cta,
        timeline.stage_of(point),
        _name(timeline, point),
        float(wait["put"]),
        float(wait["end"]),
        timeline.regions[wait["region"]],
        int(wait["from_rank"]),
        int(wait["from_cta"]),
    )


def _name(timeline: Timeline, point: int) -> str:
    return timeline.points[point].name if point >= 0 else ""
