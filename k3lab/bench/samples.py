"""Times of one thing measured again and again, and what is said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from k3lab.errors import expect


@dataclass(frozen=True)
class Samples:
    """Seconds a launch, one for each repetition; a repetition is `launches` launches between two events."""

    seconds: tuple[float, ...]
    launches: int

    def __post_init__(self) -> None:
        expect(len(self.seconds) > 0, "samples", "at least one repetition", "none")
        expect(self.launches >= 1, "launches of a repetition", "at least 1", self.launches)

    @property
    def median(self) -> float:
        return quantile(self.seconds, 0.5)

    @property
    def low(self) -> float:
        """A tenth of the repetitions is as quick or quicker."""
        return quantile(self.seconds, 0.1)

    @property
    def high(self) -> float:
        """A tenth of the repetitions is as slow or slower."""
        return quantile(self.seconds, 0.9)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 .. 1) of them lie, between neighbours in proportion.

    Raises:
        BadInput: for no values, or a share out of range.
    """
    expect(len(values) > 0, "values of a quantile", "at least one", "none")
    expect(0 <= share <= 1, "share", "0 .. 1", share)
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
