"""Reduction orders as data: which value is added to which, in what order.

An `Order` folds the last axis of a tensor in steps; each step folds the innermost `n` values of what is left. A
wave's butterfly leaves the same bits in every lane (addition commutes), so one value stands for all lanes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import torch
import torch.nn.functional as F

from k3lab.geometry import HEAD_DIM, LANES, SLICE_GROUPS


class Step(Protocol):
    """One fold of `x: [..., n]` to `[..., n / width]`."""

    def fold(self, x: torch.Tensor) -> torch.Tensor: ...

    def describe(self) -> str: ...


@dataclass(frozen=True)
class Chain:
    """((x0 + x1) + x2) + ... over `n` neighbours (all, if 0); from 0.0 or from the first value."""

    n: int = 0
    from_zero: bool = False

    def fold(self, x: torch.Tensor) -> torch.Tensor:
        groups = x.reshape(*x.shape[:-1], -1, self.n or x.shape[-1]).unbind(-1)
        # A sum that starts from 0.0 turns -0.0 into +0.0; one that starts from its first value keeps it.
        start = torch.zeros_like(groups[0]) if self.from_zero else groups[0]
        return reduce(torch.add, groups if self.from_zero else groups[1:], start)

    def describe(self) -> str:
        return f"{self.n or 'all'} in order from {'0.0' if self.from_zero else 'the first'}"


@dataclass(frozen=True)
class Strided:
    """x[l] + x[l + stride] + ...: `n` values that lie a whole row apart, in order from the first."""

    n: int

    def fold(self, x: torch.Tensor) -> torch.Tensor:
        return reduce(torch.add, x.reshape(*x.shape[:-1], self.n, -1).unbind(-2))

    def describe(self) -> str:
        return f"{self.n} a row apart in order"


@dataclass(frozen=True)
class Butterfly:
    """v = v + v[lane xor offset] for offsets lanes/2 .. 1; lanes past the last value hold +0.0."""

    lanes: int

    def fold(self, x: torch.Tensor) -> torch.Tensor:
        missing = -x.shape[-1] % self.lanes
        x = F.pad(x, (0, missing)).reshape(*x.shape[:-1], -1, self.lanes)
        while x.shape[-1] > 1:
            low, high = x.chunk(2, dim=-1)
            x = low + high
        return x.squeeze(-1)

    def describe(self) -> str:
        return f"butterfly over {self.lanes} lanes"


@dataclass(frozen=True)
class Order:
    """Steps applied one after the other to the last axis."""

    steps: tuple[Step, ...]

    def fold(self, x: torch.Tensor) -> torch.Tensor:
        """`x: [..., n]` -> `[...]`, every addition rounded to x's dtype.

        Raises:
            ValueError: when the steps leave more than one value, so `n` is not what the order is for.
        """
        for step in self.steps:
            x = step.fold(x)
        if x.shape[-1] != 1:
            raise ValueError(f"order {self.describe()!r} leaves {x.shape[-1]} values")
        return x.squeeze(-1)

    def describe(self) -> str:
        """The order in words, as reports and notebooks print it."""
        return ", then ".join(step.describe() for step in self.steps)


COLUMNS_128 = Order((Chain(4), Butterfly(32)))
"""128 columns on 32 threads of 4: a slice's sums, and a state row times k or q."""

LANES_64 = Order((Butterfly(LANES),))
"""One value a lane: the softmax denominator."""

HEAD_128 = Order((Strided(HEAD_DIM // LANES), Butterfly(LANES)))
"""A head's 128 values on 64 lanes, columns l and l + 64 a lane: the l2 norm."""

FROM_ZERO = Order((Chain(from_zero=True),))
"""In order from 0.0: the mix over sources, the conv taps, the 16 squares of a chunk."""

FROM_FIRST = Order((Chain(),))
"""In order from the first value: the 8 ONRM parts, the TP ranks."""


def waves_of_256(width: int) -> Order:
    """`width` columns on waves of 64 lanes with 4 columns a thread, the waves in order from the first."""
    return Order((Chain(4), Butterfly(LANES), Chain(width // (4 * LANES))))


def slices(na: int) -> Order:
    """The `na` slices: 8 groups of na / 8 consecutive ones, then the 8 group sums, each in order from the first."""
    return Order((Chain(na // SLICE_GROUPS), Chain(SLICE_GROUPS)))


def pairwise(count: int) -> Order:
    """A balanced tree over `count` neighbours, a power of two: (x0 + x1) + (x2 + x3) of 4."""
    return Order((Chain(2),) * (count.bit_length() - 1))
