"""q_b: the heads' queries from the latent, cut into the no-position and the "rope" part (K3 applies no rotation)."""

from __future__ import annotations

from k3lab.arith import Arith
from k3lab.arith.plans import GEMV
from k3lab.geometry import NOPE, ROPE
from k3lab.stages.tensors import Key, Tensors, Written


def stage_qb(a: Arith, t: Tensors, key: Key) -> Written:
    """q = QC w_qb^T, by head 128 nope columns, then 64 pe columns, which go to the query entry as they are.

    QC: [S, Q_LORA] bf16; w_qb: [HEADS 192, Q_LORA] bf16. Writes QN [S, HEADS, 128] bf16 and q_pe [S, HEADS, 64] (fp8
    values; bf16 with qbf16).
    """
    q = a.matmul(t.QC, t.w_qb, GEMV).unflatten(-1, (-1, NOPE + ROPE))
    nope, pe = q.split([NOPE, ROPE], dim=-1)
    q_nope = a.round("qb.q_nope", nope, "bf16")
    q_pe = a.round("qb.q_pe", pe, "bf16")
    return {"QN": q_nope, "q_pe": q_pe if key.qbf16 else a.round("qb.q_pe_entry", q_pe, "fp8_e4m3")}
