"""Time stamp points: what the time up to each went into, and in which order a CTA passes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ATTENTION, GEMV, KDA = "attention", "gemv", "kda"
"""Roles: that of the first NA CTAs, that of the others (in a `gemv_all` build of all), and the KDA tasks of both."""


@dataclass(frozen=True)
class StampPoint:
    """A point at which a CTA's first thread notes the time.

    Attributes:
        stage: the stage that the time since the CTA's point before belongs to, or several joined by `+`; empty at the
            start.
        role: which CTAs pass it; empty for all of them.
        about: what that time went into.
        before: the point a CTA passes next, where it is declared earlier.
        last: a CTA may pass it more than once, and keeps the last time.
    """

    name: str
    stage: str = ""
    role: str = ""
    about: str = ""
    before: str = ""
    last: bool = False


START = StampPoint("start", about="the CTA starts")

SEAM = (
    StampPoint("slice", "slice", ATTENTION, "sources read, delta taken in, partial sums put"),
    StampPoint("gate", "gate", ATTENTION, "on a CTA that has a token: all slices' sums waited for, weights put"),
    StampPoint("mix", "mix", ATTENTION, "weights and all slices' squares waited for, rows written, flag put"),
)
"""Those of the seam that K1 and M1a open with."""


def in_passing_order(points: Sequence[StampPoint]) -> list[int]:
    """Numbers of `points` in the order a CTA passes them."""
    order = [number for number, point in enumerate(points) if not point.before]
    names = [point.name for point in points]
    for number, point in enumerate(points):
        if point.before:
            order.insert(order.index(names.index(point.before)), number)
    return order
