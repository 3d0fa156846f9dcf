"""reduce: the ranks' partials to one delta, in rank order."""

from __future__ import annotations

import torch

from k3lab.arith import Arith
from k3lab.arith.orders import FROM_FIRST, pairwise
from k3lab.stages.tensors import Key, Tensors, Written


def stage_reduce(a: Arith, t: Tensors, key: Key) -> Written:
    """delta = sum of the ranks' partials from rank 0's value on.

    partial: [ranks, S, HIDDEN] bf16, gathered. Writes delta [S, HIDDEN] bf16 and AR, the partials a one-shot reduce
    polls.

    Two-shot (`K2aKey.two_shot`: from 9 tokens on) lets the owner of each rank's HIDDEN / ranks columns sum and send the
    rounded result: the same sums, whoever forms them.
    The sentinel variant changes NaN payloads only (`k3lab.words.disarmed`).
    Orders that other all-reduces take are alternatives of the option: `rotated`, `pairwise` (a balanced tree over the
    ranks), `float64` (summed in float64, rounded to bf16 once).
    """
    in_order = a.sum(t.partial.movedim(0, -1), FROM_FIRST)
    total = a.option(
        "reduce.sum",
        in_order,
        rotated=lambda: _rotated(a, t.partial),
        pairwise=lambda: a.sum(t.partial.movedim(0, -1), pairwise(len(t.partial))),
        float64=lambda: t.partial.double().sum(0),
    )
    delta = a.round("reduce.delta", total, "bf16")
    return {"delta": delta.to(a.dtype), "AR": t.partial}  # a float64 sum has been rounded once, from float64


def _rotated(a: Arith, partial: torch.Tensor) -> torch.Tensor:
    """As common two-shot all-reduces sum: owner r's columns start at rank r and go round."""
    ranks = partial.shape[0]
    owned = [torch.roll(cols, -r, dims=0) for r, cols in enumerate(partial.chunk(ranks, dim=-1))]
    return a.sum(torch.cat(owned, dim=-1).movedim(0, -1), FROM_FIRST)
