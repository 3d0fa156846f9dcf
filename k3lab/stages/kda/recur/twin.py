"""recur: the gated delta rule, token by token, on a 128 x 128 state a head."""

from __future__ import annotations

import torch

from k3lab.arith import Arith
from k3lab.arith.orders import COLUMNS_128, FROM_ZERO
from k3lab.geometry import V_CHUNKS
from k3lab.stages.kda.slots import initial_slots, readable
from k3lab.stages.tensors import Key, Tensors, Written


def kda_recur(a: Arith, t: Tensors, key: Key) -> Written:
    """state *= decay; u = (v - state k) beta; state += u k; o = state q.

    rstate: [slots, HEADS, 128 v, 128 k] fp32; st_idx: [R, >= L]; num_acc: [R]; decay, qn, kn, v: [R, L, HEADS, 128];
    beta: [R, L, HEADS]. Writes o [R, L, HEADS, 128] bf16, ONRM [R, HEADS, L, 8] (sums of o^2 by value chunk), rstate.
    """
    first = initial_slots(t.st_idx, t.num_acc)
    live = first > 0
    mask = live[:, None, None, None]
    state = torch.where(mask, t.rstate[readable(first)], 0.0)
    rstate = t.rstate.clone()
    outs = []
    for j in range(key.qlen):
        state, out = _token(a, state, t.decay[:, j], t.beta[:, j], t.qn[:, j], t.kn[:, j], t.v[:, j])
        outs.append(out)
        target = t.st_idx[:, j].long()
        kept = live & (target > 0)
        rstate[target[kept]] = state[kept]

    o = a.round("recur.o", torch.where(mask, torch.stack(outs, dim=1), 0.0), "bf16")
    onrm = a.sum((o * o).unflatten(-1, (V_CHUNKS, -1)), FROM_ZERO)  # [R, L, HEADS, 8]
    return {"o": o, "ONRM": onrm.movedim(1, 2), "rstate": rstate}


def _token(
    a: Arith,
    state: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of `state: [R, HEADS, 128 v, 128 k]`; returns it and its output [R, HEADS, 128 v]."""
    state = state * decay[:, :, None, :]
    predicted = a.sum(state * k[:, :, None, :], COLUMNS_128)
    u = (v - predicted) * beta[:, :, None]
    state = state + u[..., None] * k[:, :, None, :]
    return state, a.sum(state * q[:, :, None, :], COLUMNS_128)
