"""The functions of `approx` on torch tensors: CPU tensors pass through NumPy as views, other devices stay there.

The device versions compute the same float64 values (within `approx.SLACK` ulps) and the same midpoint test, and hand
the few undecided elements to the NumPy model, so all devices agree bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from k3lab.errors import expect
from k3lab.hardware import approx

Numpy = Callable[[approx.F32], approx.F32]


def exp2(x: torch.Tensor) -> torch.Tensor:
    """`approx.exp2` of a float32 tensor on any device that has float64."""
    return _through_numpy(x, approx.exp2) if x.device.type == "cpu" else exp2_on_device(x)


def rsq(x: torch.Tensor) -> torch.Tensor:
    """`approx.rsq` of a float32 tensor on any device that has float64."""
    return _through_numpy(x, approx.rsq) if x.device.type == "cpu" else rsq_on_device(x)


def rcp(x: torch.Tensor) -> torch.Tensor:
    """`approx.rcp` of a float32 tensor on any device that has float64."""
    return _through_numpy(x, approx.rcp) if x.device.type == "cpu" else rcp_on_device(x)


def exp2_on_device(x: torch.Tensor) -> torch.Tensor:
    """`exp2` by torch's own float64 arithmetic, wherever x lives."""
    _check(x)
    wide = torch.exp2(x.double())
    wide = torch.where(wide < approx.SMALLEST_NORMAL, 0.0, wide)
    return _round(x, wide, approx.exp2)


def rsq_on_device(x: torch.Tensor) -> torch.Tensor:
    """`rsq` by torch's own float64 arithmetic; torch.rsqrt would not be an IEEE square root and quotient."""
    _check(x)
    return _round(x, 1.0 / torch.sqrt(_flushed(x.double())), approx.rsq)


def rcp_on_device(x: torch.Tensor) -> torch.Tensor:
    """`rcp` by torch's own float64 arithmetic."""
    _check(x)
    return _flushed(1.0 / _flushed(x.double())).float()


def _through_numpy(x: torch.Tensor, model: Numpy) -> torch.Tensor:
    _check(x)
    return torch.from_numpy(model(x.detach().numpy()))


def _check(x: torch.Tensor) -> None:
    expect(x.dtype == torch.float32, "hardware function input", "float32", x.dtype)


def _flushed(wide: torch.Tensor) -> torch.Tensor:
    """Values below the smallest normal float32 as zeros of their sign."""
    return torch.where(wide.abs() < approx.SMALLEST_NORMAL, torch.copysign(torch.zeros_like(wide), wide), wide)


def _round(x: torch.Tensor, wide: torch.Tensor, model: Numpy) -> torch.Tensor:
    undecided = ((wide.view(torch.int64) & approx.TAIL) - approx.MIDPOINT).abs() <= approx.SLACK
    result = wide.float()
    if bool(undecided.any()):
        result[undecided] = _through_numpy(x[undecided].cpu(), model).to(x.device)
    return result
