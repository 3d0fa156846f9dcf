"""Backends: where a launch can run; `run` and `run_stage`, the two ways to run one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from k3lab import launches
from k3lab.backends.run import Run
from k3lab.backends.session import KERNELS, Session
from k3lab.backends.twin import TWINS, run_twin_backend
from k3lab.cases.case import Case
from k3lab.errors import BackendUnavailable, BadInput, expect

if TYPE_CHECKING:
    from k3lab.sim.options import Options

BACKENDS = {**TWINS, **KERNELS}
"""Backends of this version, with what they are."""

__all__ = ["BACKENDS", "Run", "Session", "run", "run_stage"]


def run(
    launch: str,
    case: Case,
    backend: str = "twin",
    order: str = "kernel",
    mfma: str = "fused",
    device: str | None = None,
    sim: Options | None = None,
    dumps: bool | None = None,
    *,
    live: Sequence[int] | None = None,
    build: str | None = None,
    gpus: int | None = None,
) -> Run:
    """Run `launch` on `case`; the case is never changed.

    Args:
        backend: `twin`, `oracle` (float64, nothing rounded; `order` and `mfma` do not apply), or one that runs the
            launch's kernel: `sim`, `gfx950`, `cuda`.
        order: `kernel` follows the kernel's reduction trees and MFMA model; `torch` uses plain sums and matmuls.
        mfma: accumulation model of the matrix instructions (`k3lab.hardware.mfma.MODELS`), in twin and simulator.
        device: torch device of the twins, `cpu` by default.
        sim: how to simulate: schedule, seed, memory model, detectors (`k3lab.sim.options.Options`).
        dumps: whether the kernel also writes its locals out; as the case's key says, if None.
        live, build, gpus: of the backend cuda alone: see `Session`.

    Raises:
        BadInput: for an unknown name, a case of another launch, one that fails its checks, or options that the backend
            does not have.
        BackendUnavailable: for a backend or device that cannot run here.
        InternalFault: when a kernel's run finds a fault: a deadlock, a race, a hand-off that did not come.
    """
    cuda: dict[str, Any] = {"live": live, "build": build, "gpus": gpus}
    _check(launch, case, backend, order, sim, dumps, cuda)
    if backend in TWINS:
        return run_twin_backend(case, backend, order, mfma, device)
    return Session(case, backend, mfma=mfma, device=device, sim=sim, dumps=dumps, **cuda).step()


def run_stage(
    stage: str,
    case: Case,
    backend: str = "twin",
    stages: Collection[str] = (),
    order: str = "kernel",
    mfma: str = "fused",
    device: str | None = None,
    sim: Options | None = None,
    dumps: bool | None = None,
    *,
    live: Sequence[int] | None = None,
    build: str | None = None,
    gpus: int | None = None,
) -> Run:
    """Run one stage of a launch, or some, on exactly the inputs that the kernel-order twin gives it.

    Args:
        stage: `k1.conv`, or the launch alone (`k1`) beside `stages`.
        stages: more stages of the launch to run in the same build.
        dumps: whether the kernel writes its stages' locals out; yes, if None.

    Returns:
        A run with what the stages write, and nothing else. Other arguments and errors: see `run`.

    Raises:
        BadInput: for an unknown stage, or none.
    """
    launch, _, short = stage.partition(".")
    cuda: dict[str, Any] = {"live": live, "build": build, "gpus": gpus}
    _check(launch, case, backend, order, sim, dumps, cuda)
    declared = launches.get(launch)
    names = {declared.stage(name).name for name in ([short] if short else []) + list(stages)}
    expect(names, "stage", f"one of {[s.name for s in declared.stages]}, as in '{launch}.STAGE'", repr(stage))
    if backend in TWINS:
        return run_twin_backend(case, backend, order, mfma, device, names)
    dumps = True if dumps is None else dumps
    return Session(case, backend, stages=names, mfma=mfma, device=device, sim=sim, dumps=dumps, **cuda).step()


def _check(
    launch: str, case: Case, backend: str, order: str, sim: Options | None, dumps: bool | None, cuda: dict[str, Any]
) -> None:
    """Refuse names and options that no backend, or not this one, can make sense of."""
    launches.get(launch)
    expect(isinstance(case, Case), "case", "a k3lab.Case", type(case).__name__)
    if case.launch != launch:
        raise BadInput(f"case: expected inputs of {launch}, got inputs of {case.launch}.")
    if backend not in BACKENDS:
        raise BackendUnavailable(f"backend: this version has {sorted(BACKENDS)}, got {backend!r}.")
    if backend in KERNELS:
        expect(order == "kernel", "order", f"'kernel' beside backend={backend!r}", repr(order))
        return
    given = ", ".join(name for name, value in cuda.items() if value is not None)
    expect(not given, given, "backend='cuda' beside it", f"backend={backend!r}")
    expect(sim is None, "sim", "none beside a twin, which is not simulated", "options of the simulator")
    expect(dumps is None, "dumps", "none beside a twin, which exposes every local", repr(dumps))
