"""Each stage's bytes and operations against what a device could do at most."""

from __future__ import annotations

from dataclasses import dataclass

from k3lab.analysis.timeline.intervals import Timeline
from k3lab.analysis.timeline.traffic import Moved
from k3lab.errors import BadInput, expect


@dataclass(frozen=True)
class Ceilings:
    """What a device can do at most, from its data sheet; no program reaches it.

    Attributes:
        memory: bytes of device memory a second; `bf16`: dense bf16 operations of the matrix cores a second.
        source: where the figures are from.
    """

    name: str
    memory: float
    bf16: float
    source: str


DEVICES = {
    "mi355x": Ceilings("MI355X", 8.0e12, 2.5166e15, "AMD Instinct MI355X data sheet"),
    "h200": Ceilings("H200 SXM", 4.8e12, 0.9895e15, "NVIDIA H200 data sheet, half of the figure with sparsity"),
}


@dataclass(frozen=True)
class StageLoad:
    """What one stage asks of a device, on rank 0. Times in microseconds.

    Attributes:
        weights: unique bytes of weights, states, activations and outputs; `issued`: as lanes asked for them.
        hand_offs: unique bytes of hand-offs and all else that has no formula.
        formula: the same as `weights`, by the geometry.
        operations: of the stage's product, by the geometry; `issued_operations`: of the instructions that ran.
        span: from the first of its intervals' starts to the last's end, over all CTAs, waits included.
        memory_time, matrix_time: at least, at the device's ceilings.
    """

    stage: str
    weights: int
    issued: int
    hand_offs: int
    formula: int
    operations: int
    issued_operations: int
    span: float | None
    memory_time: float
    matrix_time: float

    @property
    def intensity(self) -> float | None:
        """Operations a byte of weights; None where there are none."""
        return self.operations / self.weights if self.weights and self.operations else None


def ceilings_of(name: str) -> Ceilings:
    """A device's ceilings.

    Raises:
        BadInput: listing the names when there is no such device.
    """
    expect(name in DEVICES, "ceilings", f"one of {', '.join(DEVICES)}", repr(name))
    return DEVICES[name]


def stage_loads(timeline: Timeline, device: Ceilings) -> list[StageLoad]:
    """A row a stage that moves anything, in the launch's order; what several share stands under its folder's name.

    Raises:
        BadInput: when the timeline has no counts.
    """
    if timeline.traffic is None:
        raise BadInput("roofline: expected a timeline with counts, got one without; take one from the simulator.")
    mine = [row for row in timeline.traffic.moved if row.rank == 0]
    return [_load(timeline, device, stage, mine) for stage in dict.fromkeys(row.stage for row in mine)]


def _load(timeline: Timeline, device: Ceilings, stage: str, moved: list[Moved]) -> StageLoad:
    assert timeline.traffic is not None
    held = [row for row in moved if row.stage == stage]
    known = [row for row in held if row.formula is not None]
    weights = sum(row.unique for row in known)
    ops = [row for row in timeline.traffic.multiplied if row.rank == 0 and row.stage == stage]
    operations, issued = sum(row.formula or 0 for row in ops), sum(row.issued or 0 for row in ops)
    return StageLoad(
        stage,
        weights,
        sum(row.issued for row in known),
        sum(row.unique for row in held) - weights,
        sum(row.formula or 0 for row in known),
        operations,
        issued,
        span(timeline, stage),
        1e6 * weights / device.memory,
        1e6 * operations / device.bf16,
    )


def span(timeline: Timeline, stage: str) -> float | None:
    """From the stage's first interval's start to its last one's end on rank 0; None where no interval has its name."""
    numbers = [n for n, point in enumerate(timeline.points) if stage in point.stage.split("+")]
    rows = timeline.intervals
    rows = rows[(rows["rank"] == 0) & [point in numbers for point in rows["point"]]]
    return float(timeline.clock.us(rows["end"].max() - rows["start"].min())) if len(rows) else None
