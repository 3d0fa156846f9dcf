"""A colour for each stage, the same in every picture and page: Okabe and Ito's, which colour-blind readers can tell."""

from __future__ import annotations

from collections.abc import Sequence

from k3lab.analysis.palette import PATH, STAGES
from k3lab.launches.stamps import StampPoint

__all__ = ["PATH", "by_point", "by_stage"]

DARKER = 0.8


def by_stage(stages: Sequence[str]) -> dict[str, str]:
    """The colour of each stage."""
    return {stage: STAGES[place % len(STAGES)] for place, stage in enumerate(stages)}


def by_point(points: Sequence[StampPoint], order: Sequence[int]) -> list[str]:
    """The colour of the time up to each point: its stage's, every second one of a stage darker, to tell them apart.

    Args:
        order: numbers of the points in passing order.
    """
    stages = by_stage(list(dict.fromkeys(points[number].stage for number in order if points[number].stage)))
    made, seen = [STAGES[-1]] * len(points), dict.fromkeys(stages, 0)
    for number in order:
        stage = points[number].stage
        if stage:
            made[number] = stages[stage] if seen[stage] % 2 == 0 else _darker(stages[stage])
            seen[stage] += 1
    return made


def _darker(colour: str) -> str:
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(DARKER * part):02X}" for part in parts)
