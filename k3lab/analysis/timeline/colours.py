"""A colour for each stage, the same in every picture and page: Okabe and Ito's, which colour-blind readers can tell."""

from __future__ import annotations

from collections.abc import Sequence

from k3lab.analysis.palette import FAINT, PATH, STAGES
from k3lab.launches.stamps import StampPoint

__all__ = ["PATH", "by_point", "by_stage", "of_stage"]

DARKER = 0.8
SHARED = {"slice": 0, "slice+gate": 0, "gate": 1, "mix": 2}
"""Stages that several launches have, and their places in STAGES: the same colour in every launch's pictures."""


def by_stage(stages: Sequence[str]) -> dict[str, str]:
    """The colour of each stage: its own where several launches have it, else the next one that is free, in order."""
    own = {stage: SHARED[stage] for stage in stages if stage in SHARED}
    free = [place for place in range(len(STAGES)) if place not in own.values()]
    free = [*(place for place in free if place not in SHARED.values()), *(p for p in free if p in SHARED.values())]
    others = [stage for stage in stages if stage not in own]
    places = own | {stage: free[number % len(free)] for number, stage in enumerate(others)}
    return {stage: STAGES[places[stage]] for stage in stages}


def of_stage(stage: str, stages: Sequence[str]) -> str:
    """The colour of a stage that may not be one of `stages`: a step that stamps together with another, say."""
    return by_stage([*stages, stage] if stage in SHARED else stages).get(stage, FAINT)


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
