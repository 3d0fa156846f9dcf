"""The three makes of `Arith`: the kernel's order in fp32, torch's own order in fp32, and the float64 oracle."""

from __future__ import annotations

import numpy as np
import torch

from k3lab.arith.base import Arith
from k3lab.arith.orders import Order
from k3lab.arith.plans import Plan
from k3lab.errors import BadInput
from k3lab.hardware import approx_torch, mfma
from k3lab.rounding import pass_through

ORDERS = ("kernel", "torch")


class _Fp32(Arith):
    """fp32 values with the modelled gfx9 exp2 and rsq; probes perturb these as `hw.exp2`, `hw.rsq`."""

    dtype = torch.float32

    def const(self, value: float) -> float:
        return float(np.float32(value))

    def exp2(self, x: torch.Tensor) -> torch.Tensor:
        return pass_through("hw.exp2", approx_torch.exp2(x), "fp32")

    def rsq(self, x: torch.Tensor) -> torch.Tensor:
        return pass_through("hw.rsq", approx_torch.rsq(x), "fp32")


class TorchOrder(_Fp32):
    """Plain torch sums and matmuls: quick, and its distance to `KernelOrder` is what ordering alone does."""

    name = "torch"

    def sum(self, x: torch.Tensor, order: Order) -> torch.Tensor:
        return x.sum(-1)

    def _matmul(self, x: torch.Tensor, w: torch.Tensor, plan: Plan) -> torch.Tensor:
        return x @ w.mT


class KernelOrder(_Fp32):
    """Every sum in the kernel's order, every MFMA by the model `mfma`: what a kernel must equal bit for bit."""

    name = "kernel"

    def __init__(self, launch: str, mfma_model: str = "fused") -> None:
        super().__init__(launch)
        self.mfma = mfma.get(mfma_model)

    def sum(self, x: torch.Tensor, order: Order) -> torch.Tensor:
        return order.fold(x)

    def _matmul(self, x: torch.Tensor, w: torch.Tensor, plan: Plan) -> torch.Tensor:
        a = [step.cpu().numpy() for step in plan.activations(x)]
        b = [step.cpu().numpy() for step in plan.weights(w)]
        model = mfma.get(self.mfma.scaled_model) if plan.scaled else self.mfma
        return plan.join(torch.from_numpy(model.chain(a, b)).to(x.device))


class Oracle(Arith):
    """float64, true exponentials, nothing rounded: probes can still record, swap and inject."""

    name = "oracle"
    dtype = torch.float64

    def const(self, value: float) -> float:
        return value

    def round(self, point: str, value: torch.Tensor, fmt: str) -> torch.Tensor:
        return pass_through(f"{self.launch}.{point}", value, fmt, narrow=False)

    def sum(self, x: torch.Tensor, order: Order) -> torch.Tensor:
        return x.sum(-1)

    def _matmul(self, x: torch.Tensor, w: torch.Tensor, plan: Plan) -> torch.Tensor:
        return x @ w.mT

    def exp2(self, x: torch.Tensor) -> torch.Tensor:
        return torch.exp2(x)

    def rsq(self, x: torch.Tensor) -> torch.Tensor:
        return torch.rsqrt(x)


def make(order: str, launch: str, mfma_model: str = "fused") -> Arith:
    """The arithmetic called `order`: `kernel`, `torch` or `oracle`.

    Raises:
        BadInput: for another order, or an unknown MFMA model.
    """
    mfma.get(mfma_model)
    match order:
        case "kernel":
            return KernelOrder(launch, mfma_model)
        case "torch":
            return TorchOrder(launch)
        case "oracle":
            return Oracle(launch)
    raise BadInput(f"order: expected one of {ORDERS}, got {order!r}.")
