"""Timelines put together by hand: a few CTAs whose times and hand-offs are known."""

from __future__ import annotations

from typing import Any

import numpy as np

from k3lab.analysis.timeline import Clock, Timeline, of_stamps
from k3lab.analysis.timeline.intervals import BARRIER, WAIT
from k3lab.launches import K1, Launch

TICKS = Clock("tick", 1e8, "measured", "a gfx950")
MODEL = Clock("ps", 1e12, "modelled", "a model")
NONE: tuple[tuple[float, ...], ...] = ()


def stamps_of(launch: Launch, *ranks: list[dict[str, int]]) -> list[Any]:
    """By rank [CTAs, points], from each CTA's times by point."""
    made = [np.zeros((len(ctas), len(launch.stamps)), np.int64) for ctas in ranks]
    for rank, ctas in zip(made, ranks, strict=True):
        for row, times in zip(rank, ctas, strict=True):
            for point, time in times.items():
                row[launch.stamps.index(point)] = time
    return made


def chain(slow: int = 0, clock: Clock = MODEL) -> Timeline:
    """K1 in small: CTAs 0, 1 are attention, 2, 3 multiply; 2 and 3 wait for both flags, 0 for PROJ of 3.

    CTA 1 is `slow` by so many units, which everything after it inherits. Wave 1 of CTA 2 waits, and a barrier brings
    its first wave on.
    """
    put = 1400 + slow
    ctas = [
        {"start": 1000, "slice": 1100, "gate": 1150, "mix": 1250, "kda_staged": 1260, "conv_entered": 1262}
        | {"conv_inputs": put + 450, "conv": put + 460},
        {"start": 1000, "slice": 1300 + slow, "gate": 1310 + slow, "mix": put},
        {"start": 1005, "x_in_lds": put + 110, "first_task": put + 200},
        {"start": 1005, "x_in_lds": put + 120, "first_task": put + 310},
    ]
    waits = [
        *_flag(cta=2, wave=1, put=put, end=put + 100),
        *_flag(cta=3, wave=0, put=put, end=put + 100),
        (0, 0, 0, 1, 1262, 1362, put + 400, put + 300, 0, 3, 0),
        (0, 0, 0, 0, 1110, 1140, 1140, 1050, 0, 1, 0),
    ]
    return of_stamps(
        K1,
        2,
        stamps_of(K1, ctas),
        clock,
        case="by hand",
        regions=("XRDY", "PROJ"),
        waits=np.array(waits, WAIT),
        barriers=np.array([(0, 2, 1, put + 102), (0, 3, 0, put + 101)], BARRIER),
    )


def _flag(cta: int, wave: int, put: float, end: float) -> list[tuple[float, ...]]:
    """A wait for CTA 1's flag, and one for CTA 0's that was there in time."""
    return [(0, cta, wave, 0, 1010, 1110, end, put, 0, 1, 2), (0, cta, wave, 0, 1010, 1290, 1290, 1250, 0, 0, 0)]
