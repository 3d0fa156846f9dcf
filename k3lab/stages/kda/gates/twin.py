"""gates: the per-column decay, beta, and the l2-normed q and k of a KDA task."""

from __future__ import annotations

import torch

from k3lab.arith import Arith
from k3lab.arith.orders import HEAD_128
from k3lab.arith.plans import G1
from k3lab.geometry import HEAD_DIM
from k3lab.stages.kda.rows import by_head, split_proj
from k3lab.stages.tensors import Key, Tensors, Written

L2_EPS = 1e-6  # added to the sum of squares, not to its mean


def kda_gates(a: Arith, t: Tensors, key: Key) -> Written:
    """decay = exp(lower_bound sigmoid(exp(a_log) (f_b f_a + dt_bias))), beta = sigmoid, q and k l2-normed.

    PROJ: [S, NPROJ]; QK: [R, HEADS, L, 2, 128]; w_fb: [PROJ, 128] bf16; a_log: [HEADS] fp32; dt_bias: [PROJ] fp32.
    Writes decay [R, L, HEADS, 128] (per key column), beta [R, L, HEADS], qn and kn [R, L, HEADS, 128].
    """
    rows = split_proj(t.PROJ, key.geometry)
    g1 = a.round("gates.g1", a.matmul(rows.f_a, t.w_fb, G1), "bf16")
    rate = a.exp(t.a_log)[:, None]  # [HEADS, 1]
    gate = a.const(key.lower_bound) * a.sigmoid(rate * by_head(g1 + t.dt_bias, key))

    q, k = t.QK.movedim(2, 1).unbind(3)
    scale = a.const(HEAD_DIM**-0.5)
    return {
        "decay": a.exp(gate),
        "beta": a.option("gates.beta", a.sigmoid(rows.beta).view(key.requests, key.qlen, -1)),
        "qn": q * (_l2_factor(a, q) * scale),
        "kn": k * _l2_factor(a, k),
    }


def _l2_factor(a: Arith, x: torch.Tensor) -> torch.Tensor:
    return a.rsq(a.sum(x * x, HEAD_128) + a.const(L2_EPS))[..., None]
