"""A run's timeline: its stamps, and from the simulator its hand-offs and counts too."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from k3lab.analysis.timeline.intervals import (
    BARRIER,
    F64,
    I64,
    WAIT,
    Clock,
    Table,
    Timeline,
    grouped,
    of_stamps,
)
from k3lab.analysis.timeline.traffic import counted
from k3lab.errors import InternalFault, expect
from k3lab.launches.stamps import in_passing_order

if TYPE_CHECKING:
    from k3lab.backends import Run
    from k3lab.cases import Case
    from k3lab.sim.clock.record import Modelled, Reads
    from k3lab.sim.options import Options

PS_A_NS = 1000
TABLE = "mi355x"
"""The simulator's figures of a device."""
DEVICES = {"mi355x": "the simulator's model of an MI355X"}


def run_timeline(launch: str, case: Case, backend: str = "sim", sim: Options | None = None, **how: Any) -> Timeline:
    """Run `launch` on `case` in a timeline build, and return where its CTAs' time went.

    Args:
        sim: how to simulate; the modelled clock and the counts are turned on.
        how: other arguments of `k3lab.run`.

    Raises:
        As `k3lab.run` does.
    """
    from k3lab.backends import run

    if backend == "sim":
        sim = with_clock(sim)
    return timeline_of(run(launch, with_stamps(case), backend=backend, sim=sim, **how))


def with_stamps(case: Case) -> Case:
    """The same inputs for a build that keeps time stamps."""
    return replace(case, key=replace(case.key, timeline=True))


def with_clock(sim: Options | None) -> Options:
    """`sim` with the modelled clock and the counts turned on."""
    from k3lab.sim.options import Options

    held = sim or Options()
    return replace(held, clock=held.clock or TABLE, count=True)


def timeline_of(run: Run) -> Timeline:
    """The timeline of a run with stamps.

    Raises:
        BadInput: for a run without stamps, or of the simulator without its modelled clock.
    """
    expect(run.rank_stamps, "timeline", "a run with stamps", "one without", "make the case with timeline=True")
    key, launch = run.key, run.launch
    request = f", L = {key.qlen}" if hasattr(key, "qlen") else ""
    case = f"S = {key.tokens}{request}, NB = {key.nblocks}, geometry {key.geometry.name}"
    stamps = [rank.cpu().numpy() for rank in run.rank_stamps]
    about: dict[str, Any] = {"case": case, "provenance": run.provenance}
    if run.backend != "sim":
        return of_stamps(launch, key.geometry.na, stamps, _device_clock(run), **about)
    fix = "give sim=Options(clock='mi355x')"
    expect(run.clock is not None, "timeline", "a simulation with the modelled clock", "one without", fix)
    assert run.clock is not None
    names, waits = _waits(run.clock)
    if run.traffic is not None:
        about["traffic"] = counted(launch, key, run.case.ranks, run.traffic)
    return of_stamps(
        launch,
        key.geometry.na,
        finer(stamps, run.clock.reads, in_passing_order(launch.stamp_points)),
        Clock("ps", 1e12, "modelled", DEVICES.get(run.clock.costs.name, f"the simulator, {run.clock.costs.name}")),
        regions=names,
        waits=waits,
        barriers=_barriers(run.clock),
        **about,
    )


def _device_clock(run: Run) -> Clock:
    """Of a device that kernels ran on: s_memrealtime on AMD, the global timer on NVIDIA."""
    if run.backend == "gfx950":
        return Clock("tick", 1e8, "measured", str(run.provenance["device"]))
    return Clock("ns", 1e9, "measured", str(run.provenance["device"]))


def finer(stamps: Sequence[I64], reads: Reads, order: Sequence[int]) -> list[I64]:
    """Stamps in picoseconds: each is the clock as its CTA's first wave read it, whose exact time the model knows.

    A stamp of n ticks is a read of value n; where several have that value, the last points got the last of them.

    Args:
        order: numbers of the points in passing order.
    """
    mine = np.flatnonzero(reads.wave == 0)
    made = [np.zeros_like(rank) for rank in stamps]
    blocks = stamps[0].shape[0]
    for part in grouped(reads.device[mine].astype(np.int64) * blocks + reads.workgroup[mine]):
        held = mine[part]
        rank, cta = int(reads.device[held[0]]), int(reads.workgroup[held[0]])
        ticks = stamps[rank][cta]
        passed = sorted((n for n in order if ticks[n] or n == order[0]), key=lambda n: ticks[n])
        made[rank][cta][passed] = _times(ticks[passed], reads.time_ns[held], reads.value[held])
    return made


def _times(ticks: I64, times: F64, values: I64) -> list[int]:
    """Of reads at `times` ns that gave `values`, when those were that gave `ticks`, in order; ps, and never 0."""
    found: list[int] = []
    place = len(values)
    for tick in ticks[::-1]:
        place -= 1
        while place >= 0 and values[place] != tick:
            place -= 1
        if place < 0:
            raise InternalFault(f"stamp of {int(tick)} ticks: expected a read of the modelled clock with that value.")
        found.append(max(round(float(times[place]) * PS_A_NS), 1))
    return found[::-1]


def _waits(clock: Modelled) -> tuple[tuple[str, ...], Table]:
    """Names of regions, a rank's and a launch's number left out, and the hand-offs that refer to them."""
    titles = [re.split(r",| of rank", title)[0] for title in clock.regions]
    names = tuple(dict.fromkeys([*titles, "other memory"]))
    found = clock.handoffs
    waits = np.empty(len(found), WAIT)
    place = np.array([names.index(title) for title in titles] + [names.index("other memory")], np.int32)
    waits["rank"], waits["cta"], waits["wave"] = found.device, found.workgroup, found.wave
    waits["region"] = place[found.region]  # -1 is the last
    columns = {"begin": found.began_ns, "ready": found.ready_ns, "end": found.released_ns, "put": found.stored_ns}
    for name, column in columns.items():
        waits[name] = column * PS_A_NS
    waits["from_rank"], waits["from_cta"], waits["from_wave"] = found.from_device, found.from_workgroup, found.from_wave
    return names, waits


def _barriers(clock: Modelled) -> Table:
    found = clock.barriers
    barriers = np.empty(len(found), BARRIER)
    barriers["rank"], barriers["cta"], barriers["wave"] = found.device, found.workgroup, found.last_wave
    barriers["time"] = found.last_ns * PS_A_NS
    return barriers
