"""How long each stage takes on a CTA: the spread of the intervals that end at each point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from k3lab.analysis.timeline.intervals import F64, Timeline


@dataclass(frozen=True)
class StageTime:
    """The intervals up to one point, over all CTAs that passed it. Microseconds.

    Attributes:
        first, last: when the earliest began and the latest ended, since the launch began.
        slowest: rank and CTA of the longest.
    """

    stage: str
    point: str
    about: str
    ctas: int
    shortest: float
    median: float
    longest: float
    first: float
    last: float
    slowest: tuple[int, int]


def lengths(timeline: Timeline) -> dict[int, F64]:
    """By point, in passing order, the lengths of the intervals that end there, in microseconds."""
    rows = timeline.intervals
    found = {number: rows[rows["point"] == number] for number in timeline.order}
    return {
        number: np.asarray(timeline.clock.us(part["end"] - part["start"]), np.float64)
        for number, part in found.items()
        if len(part)
    }


def durations(timeline: Timeline) -> list[StageTime]:
    """A row a point that some CTA passed, in passing order."""
    rows, found = timeline.intervals, []
    for number, length in lengths(timeline).items():
        part, point = rows[rows["point"] == number], timeline.points[number]
        slow = part[int(length.argmax())]
        found.append(
            StageTime(
                point.stage,
                point.name,
                point.about,
                len(part),
                float(length.min()),
                float(np.median(length)),
                float(length.max()),
                float(timeline.us(part["start"].min())),
                float(timeline.us(part["end"].max())),
                (int(slow["rank"]), int(slow["cta"])),
            )
        )
    return found
