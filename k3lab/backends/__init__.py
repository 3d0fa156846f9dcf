"""Backends: where a launch can run, and `run`, the one way to run it."""

from __future__ import annotations

import time

import torch

from k3lab import launches
from k3lab.arith import make
from k3lab.backends.run import Run, device_name, versions
from k3lab.cases.case import Case
from k3lab.errors import BackendUnavailable, BadInput, expect
from k3lab.launches.eager import run_twins
from k3lab.rounding import active_changes

BACKENDS = {
    "twin": "eager torch twins, in the kernel's order or torch's",
    "oracle": "the same twins in float64, nothing rounded, true exponentials",
}
"""Backends of this version, with what they are."""

__all__ = ["BACKENDS", "Run", "run"]


def run(
    launch: str,
    case: Case,
    backend: str = "twin",
    order: str = "kernel",
    mfma: str = "fused",
    device: str | None = None,
) -> Run:
    """Run `launch` on `case`; the case is never changed.

    Args:
        backend: `twin`, or `oracle` (float64, nothing rounded; `order` and `mfma` do not apply).
        order: `kernel` follows the kernel's reduction trees and MFMA model; `torch` uses plain sums and matmuls.
        mfma: accumulation model of the matrix instructions (`k3lab.hardware.mfma.MODELS`).
        device: torch device, `cpu` by default.

    Raises:
        BadInput: for an unknown name, a case of another launch, or a case that fails its checks.
        BackendUnavailable: for a backend or device that cannot run here.
    """
    declared = launches.get(launch)
    expect(isinstance(case, Case), "case", "a k3lab.Case", type(case).__name__)
    if case.launch != launch:
        raise BadInput(f"case: expected inputs of {launch}, got inputs of {case.launch}.")
    if backend not in BACKENDS:
        raise BackendUnavailable(f"backend: this version has {sorted(BACKENDS)}, got {backend!r}.")
    device = checked_device(device or "cpu")
    order = "oracle" if backend == "oracle" else order
    arith = make(order, launch, mfma)
    case.check()
    start = time.perf_counter()
    ranks, points = run_twins(declared, case.key, case.ranks, arith, device)
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
    return Run(case, backend, order, model, device, ranks, points, seconds, provenance)


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
