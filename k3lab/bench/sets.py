"""How many copies of a launch's inputs are taken in turn, so that no launch finds its weights in the cache."""

from __future__ import annotations

from dataclasses import dataclass

from k3lab.cases.case import Case
from k3lab.geometry import TAG_SLOTS

L2_TIMES = 3
"""All sets' weights together are at least that many times the last cache."""
LEAST_SETS = 4
LEAST_LAUNCHES = 32
"""Launches between two events: the time from one event to the first launch is shared by all of them."""
MATRICES = ("e2m1x2", "e8m0")


@dataclass(frozen=True)
class Rotation:
    """`launches` launches on `sets` sets in turn.

    Attributes:
        weights: bytes of weights in a set; `covers` is how many times all sets' hold the last cache.
    """

    sets: int
    launches: int
    weights: int
    covers: float


def weight_bytes(case: Case) -> int:
    """Bytes of the matrices that every launch reads whole, on all ranks of the case."""
    launch = case.declaration
    decls = [decl for decl in launch.inputs_for(case.key) if not decl.optional]
    names = [d.name for d in decls if (d.fill == "weight" and len(d.dims.split()) > 1) or d.dtype in MATRICES]
    return sum(tensors[name].numel() * tensors[name].element_size() for tensors in case.ranks for name in names)


def rotation(case: Case, l2_bytes: int) -> Rotation:
    """Sets enough for the cache, and launches enough for the events; every set is launched equally often.

    A step has slots for 256 launches: weights of less than 1 / 85 of the cache cover it fewer times (`covers` says so).
    """
    weights = weight_bytes(case)
    sets = min(max(LEAST_SETS, -(-L2_TIMES * l2_bytes // weights)), TAG_SLOTS)
    launches = sets * -(-LEAST_LAUNCHES // sets)
    return Rotation(sets, launches, weights, sets * weights / l2_bytes)
