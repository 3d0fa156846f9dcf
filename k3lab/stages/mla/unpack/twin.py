"""unpack: every rank gathers all ranks' query heads."""

from __future__ import annotations

import torch

from k3lab.arith import Arith
from k3lab.stages.tensors import Key, Tensors, Written


def stage_unpack(a: Arith, t: Tensors, key: Key) -> Written:
    """q_out[t, HEADS src + h] = query of rank src's head h; pad slot g repeats gathered head g.

    query: [ranks, S, HEADS, ENTRY], gathered. Writes q_out [S, QH, ENTRY], and QG (what was gathered) beyond one rank.
    """
    heads = t.query.movedim(0, 1).flatten(1, 2)  # [S, ranks HEADS, ENTRY]
    q_out = torch.cat([heads, heads[:, : key.q_heads - heads.shape[1]]], dim=1)
    return {"q_out": q_out} if key.ranks == 1 else {"q_out": q_out, "QG": t.query}
