"""proj: the two projections of the normed row, fused_qkv_a and the output gate."""

from __future__ import annotations

from k3lab.arith import Arith
from k3lab.arith.plans import GEMV
from k3lab.stages.tensors import Key, Tensors, Written


def stage_proj(a: Arith, t: Tensors, key: Key) -> Written:
    """QA = x w_qkv^T; gate = sigmoid of bf16(x w_g^T).

    x: [S, HIDDEN] bf16; w_qkv: [QKV_A, HIDDEN] bf16 (rows q_c, kv_c, k_pe); w_g: [PROJ, HIDDEN] bf16. Writes QA
    [S, QKV_A] bf16 and gate_out [S, PROJ] bf16.
    """
    qa = a.round("proj.qa", a.matmul(t.x, t.w_qkv, GEMV), "bf16")
    g = a.round("proj.g", a.matmul(t.x, t.w_g, GEMV), "bf16")
    return {"QA": qa, "gate_out": a.round("proj.gate", a.sigmoid(g), "bf16")}
