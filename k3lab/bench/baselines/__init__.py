"""What the launches are held against: the same work as a torch user would write it, on tensors that lie on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from k3lab.bench.baselines import k1, k2a, m1a
from k3lab.bench.baselines.seam import Key, Tensors
from k3lab.cases.case import Case
from k3lab.errors import expect

Outputs = list[dict[str, torch.Tensor]]
"""By rank, outputs by name that are no inputs; the others have been changed in place."""


@dataclass(frozen=True)
class Baseline:
    """A launch in torch.

    Attributes:
        prepare: (key, a rank's inputs) -> the tensors that `step` works on, inputs among them: once, before any step.
        step: (key, every rank's prepared tensors) -> outputs.
        weights: names of the prepared matrices that a step reads whole.
    """

    prepare: Callable[[Key, Tensors], dict[str, torch.Tensor]]
    step: Callable[[Key, Sequence[Tensors]], Outputs]
    weights: tuple[str, ...]


BASELINES = {
    "k1": Baseline(k1.prepare, k1.step, k1.WEIGHTS),
    "m1a": Baseline(m1a.prepare, m1a.step, m1a.WEIGHTS),
    "k2a": Baseline(k2a.prepare, k2a.step, k2a.WEIGHTS),
}


def prepared(case: Case, device: str) -> list[dict[str, torch.Tensor]]:
    """Copies of every rank's tensors on `device`, as the case's baseline takes them.

    Raises:
        BadInput: for a case that the baseline does not do: null slots, or M1a's gather.
    """
    expect(case.launch in BASELINES, "launch", f"one of {', '.join(BASELINES)}", case.launch)
    make = BASELINES[case.launch].prepare
    copies = [{name: tensor.to(device, copy=True) for name, tensor in rank.items()} for rank in case.ranks]
    return [make(case.key, held) for held in copies]


def baseline(case: Case) -> Callable[[Sequence[Tensors]], Outputs]:
    """The case's launch in torch: a function of prepared tensors, which it changes in place as the launch does."""
    step, key = BASELINES[case.launch].step, case.key
    return lambda ranks: step(key, ranks)
