"""gemv: the normed rows times in_proj, one MFMA tile of 16 weight rows a task."""

from __future__ import annotations

from k3lab.arith import Arith
from k3lab.arith.plans import GEMV
from k3lab.stages.tensors import Key, Tensors, Written


def stage_gemv(a: Arith, t: Tensors, key: Key) -> Written:
    """proj = x w_in^T.

    x: [S, HIDDEN] bf16; w_in: [NPROJ, HIDDEN] bf16. Writes PROJ [S, NPROJ] bf16.
    """
    return {"PROJ": a.round("gemv.proj", a.matmul(t.x, t.w_in, GEMV), "bf16")}
