"""The whole error report of a launch: runs, comparison, budget, spread between MFMA models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from k3lab.analysis.budget import budget_steps, error_budget
from k3lab.analysis.compare import compare, mfma_spread
from k3lab.analysis.report import Report, SpreadRow
from k3lab.backends import Run, run
from k3lab.backends.session import KERNELS
from k3lab.cases.case import Case
from k3lab.errors import expect
from k3lab.hardware.mfma import MODELS

Progress = Callable[[str], None]


def make_report(
    launch: str,
    case: Case,
    mfma: str = "fused",
    device: str | None = None,
    budget: bool = True,
    spread: bool = True,
    progress: Progress = lambda what: None,
    backend: str = "twin",
    sim: Any = None,
    **cuda: Any,
) -> Report:
    """Kernel-order twin against torch-order twin and oracle, with budget and MFMA spread unless left out.

    Args:
        progress: called with what is about to be computed.
        backend: one that runs kernels (`sim`, `gfx950`) holds the kernel against the kernel-order twin and the oracle
            instead; rounding points, budget and spread are the twin's.
        sim: how to simulate, as in `run`.
        cuda: `live`, `build` and `gpus`, as in `run`.

    Raises:
        BadInput: as `run` does.
        BackendUnavailable: as `run` does.
    """
    by_kernel = backend != "twin"
    expect(not by_kernel or backend in KERNELS, "backend", f"one of twin, {', '.join(KERNELS)}", repr(backend))
    if by_kernel:
        progress(f"kernel, {backend}")
        made = run(launch, case, backend=backend, mfma=mfma, device=device, sim=sim, dumps=True, **cuda)
    progress("twin, kernel order")
    twin = run(launch, case, order="kernel", mfma=mfma, device=device)
    if not by_kernel:
        progress("twin, torch order")
        torch_order = run(launch, case, order="torch", device=device)
    progress("oracle")
    oracle = run(launch, case, backend="oracle", device=device)
    report = compare(made, twin, oracle) if by_kernel else compare(twin, torch_order, oracle)
    if spread:
        report = replace(report, spread=list(_spread(twin, progress)))
    if budget:
        report = report.with_budget(error_budget(launch, case, device, progress, oracle))
    return report


def report_steps(case: Case, budget: bool = True, spread: bool = True) -> int:
    """How often `make_report` calls `progress`."""
    steps = 3 + (len(MODELS) - 1 if spread else 0)
    return steps + (budget_steps(case) - 1 if budget else 0)  # the oracle's run is shared


def _spread(base: Run, progress: Progress) -> Iterator[SpreadRow]:
    for name in MODELS:
        if name != base.mfma:
            progress(f"MFMA model {name}")
            yield from mfma_spread(base, run(base.launch.name, base.case, mfma=name, device=base.device))
