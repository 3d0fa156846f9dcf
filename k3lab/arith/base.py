"""The `Arith` a twin computes with: sums in named orders, matrix products in named plans, exp2, rsq, sigmoid, round.

A twin says *what* is summed and in which order the kernel does it; the make of Arith decides whether that order is
followed. Nothing in a twin branches on order, dtype, MFMA model or probes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch

from k3lab.arith.orders import Order
from k3lab.arith.plans import Plan
from k3lab.rounding import Alternative, pass_option, pass_through

LOG2E = math.log2(math.e)


class Arith(ABC):
    """Arithmetic for one run of one launch.

    Attributes:
        launch: prefix of the rounding points' names, e.g. `k1`.
        dtype: working dtype: values between rounding points are held in it.
    """

    name: str
    dtype: torch.dtype

    def __init__(self, launch: str) -> None:
        self.launch = launch
        self._products: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def round(self, point: str, value: torch.Tensor, fmt: str) -> torch.Tensor:
        """Narrow `value` to `fmt` at the point `LAUNCH.point`; same shape and working dtype."""
        return pass_through(f"{self.launch}.{point}", value, fmt)

    def option(self, point: str, value: torch.Tensor, **alternatives: Alternative) -> torch.Tensor:
        """`value`, unless a probe swaps `LAUNCH.point`, to a format or to a named alternative."""
        return pass_option(f"{self.launch}.{point}", value, alternatives)

    @abstractmethod
    def const(self, value: float) -> float:
        """A constant as this arithmetic holds it: rounded to fp32, or exact."""

    @abstractmethod
    def sum(self, x: torch.Tensor, order: Order) -> torch.Tensor:
        """`x: [..., n]` -> `[...]`, summed over the last axis as `order` says."""

    def matmul(self, x: torch.Tensor, w: torch.Tensor, plan: Plan) -> torch.Tensor:
        """`x: [..., S, K]` times `w: [..., N, K]` transposed -> `[..., S, N]`, accumulated as `plan` says.

        Ranks share replicated operands: the product of the same two tensor objects is formed once.
        """
        operands = (id(x), id(w))
        if operands not in self._products:
            self._products[operands] = (x, w, self._matmul(x, w, plan))  # holding x and w keeps their ids theirs
        return self._products[operands][2]

    @abstractmethod
    def _matmul(self, x: torch.Tensor, w: torch.Tensor, plan: Plan) -> torch.Tensor: ...

    @abstractmethod
    def exp2(self, x: torch.Tensor) -> torch.Tensor:
        """2^x."""

    @abstractmethod
    def rsq(self, x: torch.Tensor) -> torch.Tensor:
        """1 / sqrt(x)."""

    @property
    def log2e(self) -> float:
        return self.const(LOG2E)

    def exp(self, x: torch.Tensor) -> torch.Tensor:
        """e^x = exp2(x log2e)."""
        return self.exp2(x * self.log2e)

    def sigmoid(self, z: torch.Tensor) -> torch.Tensor:
        """1 / (1 + exp2(-z log2e)), with a true division."""
        return 1.0 / (1.0 + self.exp2(-z * self.log2e))

    def rms_scale(self, sumsq: torch.Tensor, width: int, eps: float) -> torch.Tensor:
        """rsq(sumsq (1 / width) + eps): the reciprocal width is a constant that multiplies."""
        return self.rsq(sumsq * self.const(1.0 / width) + self.const(eps))
