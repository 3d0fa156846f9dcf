"""What things cost on the modelled device: figures of one table file a device, each with its unit and its source."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from k3lab.errors import BadInput, expect

Status = Literal["public", "derived", "assumed"]
STATUSES = ("public", "derived", "assumed")
NAMES = ("mi355x",)
"""Devices with a table in this folder."""


@dataclass(frozen=True)
class Costs:
    """Costs of the modelled clock. Every figure is positive; those that may be 0 are said to.

    Attributes:
        name: of the table; changed figures keep it, so give changed costs another one.
        clock_ghz: engine clock, in which cycles are counted.
        counter_hz: what `s_memrealtime` counts.
        simds: SIMD units of a compute unit; wave w of a workgroup runs on SIMD w mod simds.
        valu_cycles: of one vector operation of a wave, for each 32-bit register of its result.
        trans_cycles: of a transcendental one. `issue_cycles`: of one memory instruction.
        pass_cycles: of one pass of the matrix core. `passes_16`, `passes_32`: of a matrix instruction with 16 x 16 and
            32 x 32 outputs; `passes_8bit` times as many for a scaled one with an 8-bit operand.
        sleep_cycles: of one unit of `s_sleep`. May be 0.
        lds_latency_cycles, lds_bytes_per_clock: of LDS, the latter shared by a workgroup's waves.
        barrier_cycles: from a workgroup's last arrival until its waves go on. May be 0.
        line_bytes: what is fetched from device memory together.
        cache_latency_ns: of a load whose lines the device has touched in this launch; `fabric_latency_ns`: of such a
            load with device or system scope, which goes past a die's caches; `memory_latency_ns`: of any other.
        remote_latency_ns: what a load from another device's memory takes beyond that.
        memory_bytes_per_s: of device memory, shared by all of a device's loads and stores.
        link_bytes_per_s: of stores from one device to another, each pair and direction by itself.
        store_latency_ns: until a store counts as done; `remote_store_latency_ns`: one to another device.
        handoff_ns: from a store until another workgroup that polls has it; `remote_handoff_ns`: on another device.
        launch_gap_ns: from the end of a device's launch to the start of its next. May be 0.
        window_ns: of the calendars in which shared bandwidth is booked.
    """

    name: str
    clock_ghz: float
    counter_hz: float
    simds: int
    valu_cycles: float
    trans_cycles: float
    issue_cycles: float
    pass_cycles: float
    passes_16: float
    passes_32: float
    passes_8bit: float
    sleep_cycles: float
    lds_latency_cycles: float
    lds_bytes_per_clock: float
    barrier_cycles: float
    line_bytes: int
    cache_latency_ns: float
    fabric_latency_ns: float
    memory_latency_ns: float
    remote_latency_ns: float
    memory_bytes_per_s: float
    link_bytes_per_s: float
    store_latency_ns: float
    remote_store_latency_ns: float
    handoff_ns: float
    remote_handoff_ns: float
    launch_gap_ns: float
    window_ns: float

    def __post_init__(self) -> None:
        for name in FIGURES:
            value = getattr(self, name)
            fits = isinstance(value, int | float) and (value > 0 or (value == 0 and name in MAY_BE_ZERO))
            expect(fits and value < float("inf"), f"costs: {name}", "a positive number", repr(value))
        for name in ("simds", "line_bytes"):
            expect(isinstance(getattr(self, name), int), f"costs: {name}", "a whole number", getattr(self, name))
        power = self.line_bytes & (self.line_bytes - 1) == 0 and self.line_bytes >= 16
        expect(power, "costs: line_bytes", "a power of two from 16 on", self.line_bytes)

    @property
    def cycle_ns(self) -> float:
        """Nanoseconds of a cycle."""
        return 1.0 / self.clock_ghz

    @property
    def tick_ns(self) -> float:
        """Nanoseconds of a tick of the counter that waves read."""
        return 1e9 / self.counter_hz


FIGURES = tuple(field.name for field in fields(Costs) if field.name != "name")
MAY_BE_ZERO = frozenset({"sleep_cycles", "barrier_cycles", "launch_gap_ns", "remote_latency_ns"})


@dataclass(frozen=True)
class Figure:
    """One figure of a table.

    Attributes:
        status: `public` (published as it stands), `derived` (computed from published figures, as the source says), or
            `assumed` (no exact public figure; the source gives the reasoning).
    """

    name: str
    value: float
    unit: str
    status: Status
    source: str


@cache
def table(name: str) -> tuple[Figure, ...]:
    """The figures of a device's table, in its order.

    Raises:
        BadInput: listing the names when there is no such table.
    """
    if name not in NAMES:
        raise BadInput(f"clock: expected one of {NAMES}, got {name!r}.")
    held: dict[str, dict[str, Any]] = json.loads((files(__package__) / f"{name}.json").read_text(encoding="utf-8"))
    return tuple(Figure(figure, **facts) for figure, facts in held.items())


def costs_of(clock: Costs | str) -> Costs:
    """Costs as they are given, or by a table's name.

    Raises:
        BadInput: listing the names when there is no such table.
    """
    if isinstance(clock, Costs):
        return clock
    return Costs(clock, **{figure.name: figure.value for figure in table(clock)})  # type: ignore[arg-type]
