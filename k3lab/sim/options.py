"""How to simulate: schedule, memory model, detectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from k3lab.errors import BadInput


@dataclass
class Options:
    """How to simulate.

    Attributes:
        schedule: `default` is deterministic; `random` picks waves at random by `seed`; `adversarial` is the
            default one, but holds back workgroups that `seed` picks (and not those in `hold`).
        memory: `sequential`, or `relaxed`: stores are under way until drained, and unscoped loads may get old values.
        uninitialised: what a read of LDS that nothing has written does: `raise`, or `warn` (keep the finding, read 0).
        races: look for LDS races between barriers; `global_races` for those in global memory.
        guards: check that stores to guarded rows are drained when their flag is put.
        scopes: check that accesses to pairs and flags have the scope of their region.
        hold: workgroups that go on only when nothing else can, from block number `hold_from` (in running order) on.
        strict: report what hardware does silently and no kernel should rely on.
        max_steps: blocks run before the watchdog stops the simulation.
        mfma: accumulation model of the matrix instructions.
    """

    schedule: Literal["default", "random", "adversarial"] = "default"
    seed: int = 0
    uninitialised: Literal["raise", "warn"] = "raise"
    races: bool = False
    global_races: bool = False
    guards: bool = False
    scopes: bool = False
    memory: Literal["sequential", "relaxed"] = "sequential"
    hold: frozenset[int] = frozenset()
    hold_from: int = 0
    strict: bool = True
    max_steps: int = 10_000_000
    mfma: str = "fused"

    def __post_init__(self) -> None:
        for name, allowed in (
            ("schedule", ("default", "random", "adversarial")),
            ("uninitialised", ("raise", "warn")),
            ("memory", ("sequential", "relaxed")),
        ):
            if getattr(self, name) not in allowed:
                raise BadInput(f"{name}: expected one of {allowed}, got {getattr(self, name)!r}.")
