"""How to simulate: schedule, memory model, detectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from k3lab.errors import BadInput, expect
from k3lab.sim.clock.costs import Costs, costs_of
from k3lab.sim.record.trace import Trace

Held = int | tuple[int, int]
KEPT = {("uninitialised", "warn"), ("out-of-bounds", "hardware"), ("poison", "warn"), ("race", "warn")}
"""Kinds of findings, and what their option says when they are kept."""
OPTION = {"out-of-bounds": "out_of_bounds", "race": "on_race"}
"""Options by kind of finding, where their names differ."""

FILLS = {"nan": b"\xa1\x7f", "zero": b"\0"}
"""By `uninitialised`; 0x7FA1 is a signalling NaN as bf16, and repeated, as f32 and f64."""


@dataclass
class Options:
    """How to simulate.

    Attributes:
        schedule: `default` is deterministic; `random` picks waves at random by `seed`, which may make devices slow;
            `adversarial` is the default one, but holds back workgroups or devices that `seed` picks (and not `hold`).
        memory: `sequential`, or `relaxed`: stores are under way until drained, and unscoped loads may get old values.
        uninitialised: what a read does of LDS, or of regions declared scratch, that nothing has written: `raise`, or
            `warn` (keep the finding, read what is there); or nothing, as they are filled before the run, LDS before
            every launch, with signalling NaNs (`nan`) or zeros (`zero`). Private memory is treated likewise.
        out_of_bounds: what an access outside of every buffer, or of a workgroup's LDS, does: `raise`, or `hardware`
            (loads give 0, stores are dropped; the finding is kept).
        poison: what an active lane does that branches on a value LLVM leaves undefined, stores it or uses it in an
            address: `raise`, `warn` (keep the finding), or `off`.
        trace: what to record of one wave, if anything.
        races: look for LDS races between barriers; `global_races` for those in global memory.
        on_race: what a race does: `raise`, or `warn` (keep the first finding of each line; all are counted).
        guards: check that stores to guarded rows are drained when their flag is put.
        scopes: check that accesses to pairs and flags have the scope of their region.
        hold: workgroups that go on only when nothing else can: numbers (on every rank), or pairs (rank, number).
        hold_from, hold_launch: from which block (in running order) of a kernel on, and from which launch of a rank on.
        resident: workgroups that a device has room for at once; others start as workgroups end. None: room for all.
        strict: report what hardware does silently and no kernel should rely on.
        max_steps: blocks run before the watchdog stops the simulation.
        mfma: accumulation model of the matrix instructions.
        clock: costs by which every wave's time is modelled (see `k3lab.sim.clock`), or the name of a table of them;
            None: the clock that waves can read tells an order of events only.
        count: whether to count bytes and matrix operations (see `k3lab.sim.record.traffic`).
    """

    schedule: Literal["default", "random", "adversarial"] = "default"
    seed: int = 0
    uninitialised: Literal["raise", "warn", "nan", "zero"] = "raise"
    out_of_bounds: Literal["raise", "hardware"] = "raise"
    poison: Literal["raise", "warn", "off"] = "raise"
    races: bool = False
    global_races: bool = False
    on_race: Literal["raise", "warn"] = "raise"
    guards: bool = False
    scopes: bool = False
    memory: Literal["sequential", "relaxed"] = "sequential"
    hold: frozenset[Held] = frozenset()
    hold_from: int = 0
    hold_launch: int = 0
    resident: int | None = None
    strict: bool = True
    max_steps: int = 10_000_000
    mfma: str = "fused"
    trace: Trace | None = None
    clock: Costs | str | None = None
    count: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (
            ("schedule", ("default", "random", "adversarial")),
            ("uninitialised", ("raise", "warn", "nan", "zero")),
            ("out_of_bounds", ("raise", "hardware")),
            ("poison", ("raise", "warn", "off")),
            ("on_race", ("raise", "warn")),
            ("memory", ("sequential", "relaxed")),
        ):
            if getattr(self, name) not in allowed:
                raise BadInput(f"{name}: expected one of {allowed}, got {getattr(self, name)!r}.")

        expect(self.resident is None or self.resident > 0, "resident", "a positive number or None", self.resident)
        expect(isinstance(self.count, bool), "count", "True or False", self.count)
        if self.clock is not None:
            costs_of(self.clock)
            expect(self.trace is None, "trace", "none beside a modelled clock", "one")

    @property
    def fill(self) -> bytes | None:
        """What memory that nothing has written holds; None where reading it is reported."""
        return FILLS.get(self.uninitialised)

    def keeps(self, kind: str) -> bool:
        """Whether a finding of that kind is kept instead of stopping the simulation."""
        return (kind, getattr(self, OPTION.get(kind, kind), "raise")) in KEPT
