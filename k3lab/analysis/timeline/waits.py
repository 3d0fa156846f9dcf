"""Who waited for whom: which stage waited for which region, how long, and for which producer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from k3lab.analysis.timeline.intervals import F64, Table, Timeline
from k3lab.errors import BadInput

SPREAD = 0.05
"""A producer's share of the waiting below which no single one is to be named as the cause."""


@dataclass(frozen=True)
class Producer:
    """A CTA that others waited for."""

    rank: int
    cta: int

    def text(self, ranks: int) -> str:
        """`CTA 12`, or `rank 3 CTA 12` where there are several ranks."""
        return f"rank {self.rank} CTA {self.cta}" if ranks > 1 else f"CTA {self.cta}"


@dataclass(frozen=True)
class WaitRow:
    """A cell of the wait matrix: how one stage's waves waited for one region. Times in microseconds.

    Counted is what a wave waited because its producer was late; a load's own latency is no wait.

    Attributes:
        ctas: CTAs (of all ranks) that took words of the region; `waiting` how many of them waited.
        total: over those CTAs, the time of the wave that waited longest; waves of a CTA wait at the same time.
        longest: the longest single wait.
        producer: the CTA that most of the waves' waiting time was for; None where nobody waited.
        share: its part of that time.
    """

    stage: str
    region: str
    ctas: int
    waiting: int
    total: float
    longest: float
    producer: Producer | None
    share: float


def wait_matrix(timeline: Timeline) -> list[WaitRow]:
    """A row for every stage and region it waited for, in the order stages run.

    Raises:
        BadInput: when the timeline knows no waits.
    """
    waits = known_waits(timeline)
    stages = [timeline.stage_of(int(point)) for point in timeline.wait_points]
    cells: dict[tuple[str, int], list[int]] = {}
    for number, (stage, region) in enumerate(zip(stages, waits["region"].tolist(), strict=True)):
        cells.setdefault((stage, region), []).append(number)
    order = {stage: place for place, stage in enumerate(timeline.stages)}
    keys = sorted(cells, key=lambda cell: (order.get(cell[0], len(order)), cell[1]))
    return [_row(timeline, stage, region, waits[cells[stage, region]]) for stage, region in keys]


def known_waits(timeline: Timeline) -> Table:
    """The timeline's waits.

    Raises:
        BadInput: when it knows none.
    """
    if timeline.waits is None:
        raise BadInput(
            f"waits: expected a timeline that records hand-offs, got one of {timeline.clock.device}; "
            "take one from the simulator."
        )
    return timeline.waits


def late(waits: Table) -> F64:
    """How long each wave waited for its producer, in the clock's unit."""
    return np.asarray(waits["end"] - waits["ready"])


def _row(timeline: Timeline, stage: str, region: int, waits: Table) -> WaitRow:
    waited = late(waits)
    readers = waits["rank"].astype(np.int64) * timeline.blocks + waits["cta"]
    ctas, place = np.unique(readers, return_inverse=True)
    waves = int(waits["wave"].max()) + 1
    by_wave = np.bincount(place * waves + waits["wave"], waited, len(ctas) * waves).reshape(-1, waves)
    slowest = by_wave.max(axis=1)
    producer, share = _producer(timeline, waits, waited)
    return WaitRow(
        stage,
        timeline.regions[region],
        len(ctas),
        int((slowest > 0).sum()),
        float(timeline.clock.us(slowest.sum())),
        float(timeline.clock.us(waited.max())),
        producer,
        share,
    )


def _producer(timeline: Timeline, waits: Table, waited: F64) -> tuple[Producer | None, float]:
    """Whom most of the waiting time was for, and its share."""
    total = float(waited.sum())
    if total <= 0:
        return None, 0.0
    numbers = waits["from_rank"].astype(np.int64) * timeline.blocks + waits["from_cta"]
    time = np.bincount(numbers, waited)
    worst = int(time.argmax())
    return Producer(*divmod(worst, timeline.blocks)), float(time[worst]) / total
