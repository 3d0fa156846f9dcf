"""Pairwise covers: short lists of cases in which any two levels of different factors meet.

Each factor has levels by label, each a set of options of `k3lab.make_case`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

Options = Mapping[str, Any]
Factors = Mapping[str, Mapping[str, Options]]
Labels = tuple[str, ...]


def options_of(factors: Factors, labels: Labels) -> dict[str, Any]:
    """What `labels`, one level a factor, ask for."""
    levels = factors.values()
    return {name: value for level, label in zip(levels, labels, strict=True) for name, value in level[label].items()}


def pairs_of(labels: Labels) -> set[tuple[tuple[int, str], ...]]:
    return set(combinations(enumerate(labels), 2))


def all_pairs(levels: Sequence[Sequence[str]]) -> set[tuple[tuple[int, str], ...]]:
    return {
        ((i, a), (j, b)) for (i, some), (j, others) in combinations(enumerate(levels), 2) for a in some for b in others
    }


def pairwise(factors: Factors) -> list[Labels]:
    """A short list that covers all pairs: each next case starts from a pair still missing, and takes from every other
    factor the level that closes most pairs."""
    levels = [list(level) for level in factors.values()]
    missing, chosen = all_pairs(levels), []
    while missing:
        labels: list[str | None] = [None] * len(levels)
        first = min(missing, key=lambda pair: [(place, levels[place].index(level)) for place, level in pair])
        for place, level in first:
            labels[place] = level
        for place, choice in enumerate(levels):
            if labels[place] is None:
                labels[place] = max(choice, key=lambda level, place=place: _closed(labels, place, level, missing))
        case = tuple(str(label) for label in labels)
        chosen.append(case)
        missing -= pairs_of(case)
    return chosen


def _closed(labels: Sequence[str | None], place: int, label: str, missing: set[tuple[tuple[int, str], ...]]) -> int:
    """How many missing pairs `label` closes at `place` beside the levels already taken."""
    taken = [(i, other) for i, other in enumerate(labels) if other is not None]
    return sum(tuple(sorted([one, (place, label)])) in missing for one in taken)
