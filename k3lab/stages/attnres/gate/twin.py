"""gate: a token's softmax weights over its sources."""

from __future__ import annotations

import torch

from k3lab.arith import Arith
from k3lab.arith.orders import LANES_64
from k3lab.stages.attnres.slices import over_slices
from k3lab.stages.tensors import Key, Tensors, Written


def stage_gate(a: Arith, t: Tensors, key: Key) -> Written:
    """Unnormalised weights e_s = exp2(logit_s - max) and their sum.

    PART: [NA, S, NS, 2]. Writes WGT [S, NS + 1], the denominator last.
    """
    sq, dot = over_slices(a, t.PART).unbind(-1)
    rstd = a.rms_scale(sq, key.geometry.hidden, key.eps)
    logit = (dot * rstd) * a.log2e
    e = a.exp2(logit - logit.amax(-1, keepdim=True))
    den = a.sum(e, LANES_64)
    return {"WGT": torch.cat([e, den[:, None]], dim=-1)}
