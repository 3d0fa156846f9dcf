"""Twins and oracle as backends: a launch's stages in eager torch."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

import torch

from k3lab.arith import make
from k3lab.backends.run import Run, device_name, versions
from k3lab.cases.case import Case
from k3lab.errors import BackendUnavailable, BadInput
from k3lab.launches.eager import run_twins
from k3lab.rounding import active_changes

TWINS = {
    "twin": "eager torch twins, in the kernel's order or torch's",
    "oracle": "the same twins in float64, nothing rounded, true exponentials",
}
"""Backends that run twins, with what they are."""


def run_twin_backend(
    case: Case,
    backend: str,
    order: str,
    mfma: str,
    device: str | None,
    stages: Collection[str] | None = None,
    handed: Sequence[Mapping[str, torch.Tensor]] = (),
) -> Run:
    """The case's launch on `twin` or `oracle`; of `stages`, if given, only what these write.

    Args:
        handed: by rank, inputs as the twin of an earlier launch left them: taken in place of the case's, which are
            these in their storage format.

    Raises:
        BadInput: for an unknown order, model or device, or a case that fails its checks.
        BackendUnavailable: for a device that this machine lacks.
    """
    launch = case.declaration
    device = checked_device(device or "cpu")
    order = "oracle" if backend == "oracle" else order
    arith = make(order, launch.name, mfma)
    case.check()
    start = time.perf_counter()
    ranks, points = run_twins(launch, case.key, case.ranks, arith, device, handed)
    seconds = time.perf_counter() - start
    model = mfma if order == "kernel" else "none"
    provenance = {
        "versions": versions(),
        "backend": backend,
        "order": order,
        "mfma": model,
        "device": device_name(device),
        "probes": active_changes(),
        "case": case.describe(),
    }
    chosen = None if stages is None else tuple(stage.name for stage in launch.stages if stage.name in stages)
    if chosen is not None:
        parts = [stage for stage in launch.stages if stage.name in chosen]
        written = {name for stage in parts for name in stage.writes}
        passed = {f"{launch.name}.{point.name}" for stage in parts for point in stage.points}
        ranks = [{name: value for name, value in values.items() if name in written} for values in ranks]
        points = {name: values for name, values in points.items() if name in passed}
    return Run(case, backend, order, model, device, ranks, points, seconds, provenance, stages=chosen)


def checked_device(device: str) -> str:
    """`device` if torch can compute on it here.

    Raises:
        BadInput: for text that names no device.
        BackendUnavailable: for a device this machine lacks.
    """
    try:
        kind = torch.device(device)
    except RuntimeError:
        raise BadInput(f"device: expected a torch device such as 'cpu' or 'cuda:0', got {device!r}.") from None
    if kind.type == "cuda" and not torch.cuda.is_available():
        raise BackendUnavailable(f"device {device!r}: torch sees no GPU here; use device='cpu'.")
    if kind.type not in ("cpu", "cuda"):
        raise BackendUnavailable(f"device {device!r}: twins run on cpu and cuda devices only.")
    return device
