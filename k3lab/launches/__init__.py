"""The launches, each declared once."""

from __future__ import annotations

from k3lab.errors import BadInput
from k3lab.launches.declaration import Launch, Point, Stage, TensorDecl
from k3lab.launches.k1 import K1, K1Key
from k3lab.launches.k2a import K2A, K2aKey
from k3lab.launches.key import LaunchKey
from k3lab.launches.m1a import M1A, M1aKey

LAUNCHES: dict[str, Launch] = {launch.name: launch for launch in (K1, M1A, K2A)}

__all__ = [
    "K1",
    "K2A",
    "LAUNCHES",
    "M1A",
    "K1Key",
    "K2aKey",
    "Launch",
    "LaunchKey",
    "M1aKey",
    "Point",
    "Stage",
    "TensorDecl",
    "get",
]


def get(name: str) -> Launch:
    """The launch called `name`.

    Raises:
        BadInput: listing the launches when there is none of that name.
    """
    if name not in LAUNCHES:
        raise BadInput(f"launch: expected one of {sorted(LAUNCHES)}, got {name!r}.")
    return LAUNCHES[name]
