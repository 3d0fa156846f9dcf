"""slice: the prefix takes in the delta; each slice of each source gives its two partial sums."""

from __future__ import annotations

import torch

from k3lab.arith import Arith
from k3lab.stages.attnres.slices import slice_sums
from k3lab.stages.tensors import Key, Tensors, Written


def stage_slice(a: Arith, t: Tensors, key: Key) -> Written:
    """Sources of the mix and, per slice, sum v^2 and sum v (nw qk).

    prefix, delta: [S, HIDDEN] bf16; blocks: [S, >= NB, HIDDEN] bf16; ares_nw, ares_qk: [HIDDEN] bf16. Writes prefix
    [S, HIDDEN] (it restarts at the delta in a reset launch), vals [S, NS, HIDDEN] (the prefix last), PART
    [NA, S, NS, 2] (sq, dot), and blocks when the key has a write_idx.
    """
    prefix, source = _prefix(a, t, key)
    vals = torch.cat([t.blocks[:, : key.nblocks], source[:, None]], dim=1)

    sq = slice_sums(a, vals * vals)
    dot = slice_sums(a, vals * (t.ares_nw * t.ares_qk))
    part = torch.stack([sq, dot], dim=-1).movedim(2, 0)

    written = {"prefix": prefix, "vals": vals, "PART": part}
    if key.write_idx >= 0:
        blocks = t.blocks.clone()
        blocks[:, key.write_idx] = prefix
        written["blocks"] = blocks
    return written


def _prefix(a: Arith, t: Tensors, key: Key) -> tuple[torch.Tensor, torch.Tensor]:
    """The prefix that is stored, and the value the mix takes as its last source."""
    if key.reset:
        return t.delta, t.delta
    if not key.delta:
        return t.prefix, t.prefix
    total = t.prefix + t.delta
    prefix = a.round("slice.prefix", total, "bf16")
    return prefix, a.option("slice.source", prefix, unrounded=lambda: total)
