"""push: a rank's K slice of o_proj, rounded and sent to the ranks that sum it."""

from __future__ import annotations

from k3lab.arith import Arith
from k3lab.arith.plans import GEMV
from k3lab.stages.tensors import Key, Tensors, Written


def stage_o(a: Arith, t: Tensors, key: Key) -> Written:
    """partial = core w_o^T.

    core: [S, PROJ] bf16; w_o: [HIDDEN, PROJ] bf16. Writes partial [S, HIDDEN] bf16.
    """
    return {"partial": a.round("o.partial", a.matmul(t.core, t.w_o, GEMV), "bf16")}
