"""K2a draws every tensor by its declared fill."""

from __future__ import annotations

from k3lab.cases.fill import LaunchFill

FILL = LaunchFill(defaults={"tokens": 4, "nblocks": 4, "ranks": 8}, least_slots=lambda key: 0, fills={})
