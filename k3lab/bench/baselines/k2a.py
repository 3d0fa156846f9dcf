"""K2a in torch, all of its ranks on one GPU: o_proj, the ranks' sum, the MLP's seam.

What the ranks do is done for each of them, as the one launch does it: products, sum, seam. With one rank there is
nothing to sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from k3lab.bench.baselines.seam import Key, Tensors, prepare_seam, seam

WEIGHTS = ("w_o",)


def prepare(key: Key, t: Tensors) -> dict[str, torch.Tensor]:
    """The tensors a torch user holds."""
    return {**t, **prepare_seam(t)}


def step(key: Key, ranks: Sequence[Tensors]) -> list[dict[str, torch.Tensor]]:
    """One launch's work on every rank; returns x_out [S, HIDDEN] bf16. prefix changes in place."""
    partials = [F.linear(t["core"], t["w_o"]) for t in ranks]
    return [_of_rank(key, t, summed(partials)) for t in ranks]


def summed(partials: Sequence[torch.Tensor]) -> torch.Tensor:
    """The ranks' partials [S, HIDDEN] bf16, summed in fp32 and rounded once."""
    return partials[0] if len(partials) == 1 else torch.stack(list(partials)).sum(0, dtype=torch.float32).bfloat16()


def _of_rank(key: Key, t: Tensors, delta: torch.Tensor) -> dict[str, torch.Tensor]:
    if key.reset:
        t["prefix"].copy_(delta)
    else:
        t["prefix"].add_(delta)
    return {"x_out": seam(key, t)}
