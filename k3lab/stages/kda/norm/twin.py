"""norm: the head's output norm and gate."""

from __future__ import annotations

from k3lab.arith import Arith
from k3lab.arith.orders import FROM_FIRST
from k3lab.geometry import HEAD_DIM
from k3lab.stages.kda.rows import by_head, split_proj
from k3lab.stages.tensors import Key, Tensors, Written


def kda_norm(a: Arith, t: Tensors, key: Key) -> Written:
    """core = o r on_w sigmoid(g).

    o: [R, L, HEADS, 128]; ONRM: [R, HEADS, L, 8]; PROJ: [S, NPROJ]; on_w: [128] bf16. Writes core_out [S, PROJ] bf16.
    """
    g = by_head(split_proj(t.PROJ, key.geometry).g, key)
    r = a.rms_scale(a.sum(t.ONRM.movedim(2, 1), FROM_FIRST), HEAD_DIM, key.onorm_eps)
    core = ((t.o * r[..., None]) * t.on_w) * a.sigmoid(g)
    return {"core_out": a.round("norm.core", core.reshape(key.tokens, -1), "bf16")}
