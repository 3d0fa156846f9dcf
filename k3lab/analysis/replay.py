"""Runs a recorded call again on a backend, and holds what that makes against what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from k3lab import formats
from k3lab.analysis.compare import compare, difference, raw_elements
from k3lab.analysis.ends import written_slots
from k3lab.analysis.report import AS_RECORDED, Report, Verdict
from k3lab.analysis.words import number
from k3lab.backends import Run
from k3lab.backends import run as run_backend
from k3lab.backends.session import KERNELS
from k3lab.cases.recording import Recorded, load_recorded, outputs_of
from k3lab.errors import expect
from k3lab.formats.tensor import bf16_values
from k3lab.launches.eager import lifted_tensor
from k3lab.stats import ErrorStats

RECORDED = "recorded"
BACKENDS = ("twin", *KERNELS)


def replay(
    recorded: str | Path | Recorded,
    backend: str = "twin",
    *,
    order: str = "kernel",
    mfma: str = "fused",
    device: str | None = None,
    sim: Any = None,
    relative_rms: float | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Report:
    """Run the inputs of a recorded call on `backend`; its verdicts are about the recorded outputs, each by itself.

    Args:
        recorded: a file that `k3lab.record` wrote.
        backend: `twin` or one that runs kernels; `order`, `mfma`, `device` and `sim` as in `k3lab.run`.
        relative_rms: an output passes when its rms difference is at most this share of its rms value (of states and
            caches, over the slots that were written). None asks for every bit, which another machine's arithmetic need
            not give: how its matrix instruction adds is not documented.
        progress: called with what is about to be computed, three times.

    Returns:
        A report with the run, what was recorded as its reference, and the oracle.

    Raises:
        BadInput: for a file without a recorded call, or options that the backend does not have.
        BackendUnavailable: for a backend that cannot run here.
    """
    expect(backend in BACKENDS, "backend", f"one of {', '.join(BACKENDS)}", repr(backend))
    fits = relative_rms is None or 0 <= relative_rms < 1
    expect(fits, "relative_rms", "a number from 0 to below 1, or none for every bit", repr(relative_rms))
    call = recorded if isinstance(recorded, Recorded) else load_recorded(recorded)
    launch = call.case.launch
    progress(backend)
    names = outputs_of(call.case.declaration, call.case.key)
    made = only(run_backend(launch, call.case, backend, order, mfma, device, sim), names)
    progress("oracle")
    oracle = only(run_backend(launch, call.case, "oracle", device=device if backend == "twin" else None), names)
    progress("comparison")
    reference = recorded_run(call, made.device)
    report = compare(made, reference, oracle)
    verdicts = [_verdict(made, reference, name, relative_rms) for name in made.values]
    return replace(report, verdicts=[*report.verdicts, *verdicts])


def recorded_run(call: Recorded, device: str = "cpu") -> Run:
    """What was recorded, in the shape of a run that exposes the launch's outputs and nothing else."""
    case = call.case
    launch = case.declaration
    made = {each.name: each.dtype for each in launch.made_for(case.key)}
    where = torch.device(device if device.startswith("cuda") else "cpu")

    def lifted(name: str, tensor: torch.Tensor) -> torch.Tensor:
        value = _values(tensor, made[name]) if name in made else lifted_tensor(launch, name, tensor, torch.float32)
        return value.to(where)

    ranks = [{name: lifted(name, tensors[name]) for name in tensors} for tensors in call.outputs]
    named = call.made_by or "device not named"
    provenance: Mapping[str, Any] = {
        "versions": dict(call.versions),
        "backend": RECORDED,
        "order": RECORDED,
        "mfma": "none",
        "device": f"{named}, recorded {call.created}",
        "probes": [],
        "case": case.describe(),
    }
    return Run(case, RECORDED, RECORDED, "none", named, ranks, {}, 0.0, provenance)


def only(run: Run, names: Collection[str]) -> Run:
    """`run` with these tensors alone, no recording has others; ranks that share a tensor count each by itself."""
    ranks = [{name: values[name].detach() for name in names} for values in run.ranks]
    return replace(run, ranks=ranks)


def _values(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """A stored output's values in fp32, exactly."""
    if dtype == "bf16":
        return bf16_values(tensor)
    if dtype == "fp8_e4m3":
        return torch.from_numpy(formats.FP8_E4M3.decode(tensor.numpy()))
    return tensor.float()


def _verdict(run: Run, reference: Run, name: str, bound: float | None) -> Verdict:
    unit = run.launch.format_of(name, run.key)
    if bound is None:
        found = [
            difference(values[name], reference.ranks[rank][name], unit, raw_elements(run, name, rank))
            for rank, values in enumerate(run.ranks)
        ]
        differ = sum(each.differ for each in found)
        return Verdict(name, AS_RECORDED, f"{differ} of {sum(each.count for each in found)} differ", differ == 0)
    stats = ErrorStats(unit)
    for rank, values in enumerate(run.ranks):
        want, got = reference.ranks[rank][name], values[name]
        mine = written_slots(run, name, rank, want) | written_slots(run, name, rank, got)
        stats.update(want[mine], got[mine])
    figures = stats.figures()
    measured = number(figures.relative_rms) + (f", {stats.mismatched} not finite in one" if stats.mismatched else "")
    fine = not stats.mismatched and figures.relative_rms is not None and figures.relative_rms <= bound
    return Verdict(name, f"rms difference from what was recorded at most {bound:g} of its rms", measured, fine)
