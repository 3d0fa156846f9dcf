"""The simulator as a backend: a launch's kernel, lowered for gfx950, on this machine's CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from k3lab.kernels.host import Buffers
from k3lab.kernels.lowered import lowered
from k3lab.launches.declaration import Launch
from k3lab.launches.key import LaunchKey
from k3lab.sim.chain import Launch as Call
from k3lab.sim.chain import simulate_chain
from k3lab.sim.clock.record import Modelled
from k3lab.sim.engine import Engine
from k3lab.sim.faults import SimFault
from k3lab.sim.memory.regions import SharedRegion
from k3lab.sim.options import Options
from k3lab.sim.record.traffic import Traffic
from k3lab.sim.schedule.standing import INTERRUPTED

WAIT_TICKS = 20_000
"""How long a bounded build waits here, where time passes only when nothing but waits is left to run."""
DETECTORS = ("races", "global_races", "guards", "scopes", "strict")
SAID = ("schedule", "seed", "memory", "uninitialised", "out_of_bounds", "poison", "resident", "hold_from")
"""Options that provenance records beside the detectors that were on."""


@dataclass(frozen=True)
class Simulated:
    """How a simulation went: wall seconds on this host without lowering, blocks run, findings that did not stop it.

    Attributes:
        clock, traffic: what was modelled and counted, where the options ask for it.
    """

    seconds: float
    steps: int
    findings: tuple[str, ...]
    clock: Modelled | None = None
    traffic: Traffic | None = None


def simulated(buffers: Buffers, options: Options | None = None) -> Simulated:
    """Run one launch on one rank's buffers, in place.

    Raises:
        BackendUnavailable: without flydsl, for a build that was not lowered before.
        SimFault: when a check stops the simulation.
    """
    call = call_of(buffers)
    return timed(lambda: simulate_chain([[call]], options=options, regions=shared_regions(buffers)))


def timed(simulate: Callable[[], Engine]) -> Simulated:
    """How the simulation that `simulate` runs goes.

    Raises:
        SimFault: when a check stops it.
        KeyboardInterrupt: on Ctrl-C, from a fault that says where it stood: who runs several must not go on.
    """
    start = time.perf_counter()
    try:
        engine = simulate()
    except SimFault as fault:
        if fault.finding.kind == INTERRUPTED:
            raise KeyboardInterrupt(str(fault)) from fault
        raise
    seconds = time.perf_counter() - start
    findings = tuple(str(finding) for finding in engine.findings)
    return Simulated(seconds, engine.steps, findings, engine.clock, engine.traffic)


def call_of(buffers: Buffers) -> Call:
    """One rank's launch, its arrays passed as the memory they lie in."""
    module = lowered(buffers.launch, buffers.key, buffers.stages)
    names = {i: argument.tensor for i, argument in enumerate(buffers.arguments) if _is_address(argument)}
    return Call(module, buffers.bound(flat), names)


def _is_address(argument: Any) -> bool:
    return bool(argument.tensor) and argument.axis < 0


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The memory a tensor of any strides lies in, as one dimension."""
    size = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    return tensor.as_strided((size,), (1,))


def shared_regions(buffers: Buffers) -> list[SharedRegion]:
    """The declared regions as the simulator's checks take them: pairs, flags, and the rows these guard.

    Rows that a stage of the build writes hold nothing before it does; what other stages would write is there.
    """
    launch = buffers.launch
    scratch = next(i for i, argument in enumerate(buffers.arguments) if argument.tensor == "scratch")
    kinds: dict[str, Any] = {r.name: "flags" if r.word == "flag" else "pairs" for r in launch.regions}
    guards: Mapping[str, str] = {plain.name: plain.guard for plain in launch.rows}
    return [
        SharedRegion(
            place.name,
            scratch,
            place.offset,
            place.nbytes,
            kinds.get(place.name, "rows"),
            guards.get(place.name),
            scratch=place.name in guards and place.name in buffers.written,
        )
        for place in buffers.places
    ]


def described(options: Options, done: Simulated) -> dict[str, Any]:
    """What provenance says of a simulation."""
    defaults = Options()
    given = {name: getattr(options, name) for name in SAID}
    held = {"hold": sorted(map(str, options.hold))} if options.hold else {}
    return {
        **{name: value for name, value in given.items() if name in SAID[:3] or value != getattr(defaults, name)},
        **held,
        **({} if done.clock is None else {"modelled_clock": done.clock.costs.name}),
        "detectors": [name for name in DETECTORS if getattr(options, name)],
        "steps": done.steps,
        "findings": list(done.findings),
    }


def merged(options: Options | None, mfma: str) -> Options:
    """`options` with the MFMA model of the run."""
    given = {f.name: getattr(options or Options(), f.name) for f in fields(Options)}
    return Options(**{**given, "mfma": mfma})


def run_kernel(
    launch: Launch,
    key: LaunchKey,
    tensors: Mapping[str, torch.Tensor],
    options: Options | None = None,
) -> tuple[dict[str, torch.Tensor], float]:
    """One rank's exposed tensors of a whole launch, and the seconds the simulation took."""
    buffers = Buffers.of(launch, key, tensors)
    buffers.numbers["wait_ticks"] = WAIT_TICKS
    done = simulated(buffers, options)
    buffers.check_health()
    return buffers.exposed(), done.seconds
