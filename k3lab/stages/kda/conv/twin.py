"""conv: the short convolution over q, k and v, and the conv state it leaves behind."""

from __future__ import annotations

import torch

from k3lab.arith import Arith
from k3lab.arith.orders import FROM_ZERO
from k3lab.geometry import CONV_WIDTH, HEAD_DIM
from k3lab.stages.kda.rows import split_proj
from k3lab.stages.kda.slots import accepted, conv_slots, readable
from k3lab.stages.tensors import Key, Tensors, Written

CARRIED = CONV_WIDTH - 2  # window entries that are still in the window of the next token


def kda_conv(a: Arith, t: Tensors, key: Key) -> Written:
    """o = silu(sum over 4 taps of w seq), and conv_state = the last entries of the sequence.

    PROJ: [S, NPROJ]; conv_state: [slots, 3 PROJ, L + 2] bf16; conv_w: [3 PROJ, 4] fp32, oldest tap first;
    st_idx: [R, >= L]; num_acc: [R]. Writes QK [R, HEADS, L, 2, 128] (q, k), v [R, L, HEADS, 128] and conv_state.

    A null conv slot (<= 0) reads slot 0's window and skips only the store.
    """
    fresh = split_proj(t.PROJ, key.geometry).qkv.view(key.requests, key.qlen, -1)  # [R, L, channels]
    slot = conv_slots(t.st_idx)
    window = _windows(t.conv_state[readable(slot)], accepted(t.num_acc))  # [R, 3, channels]
    sequence = torch.cat([window, fresh], dim=1)

    taps = sequence.unfold(1, CONV_WIDTH, 1)  # [R, L, channels, 4]
    z = a.sum(taps * t.conv_w, FROM_ZERO)
    out = a.round("conv.out", (z * a.sigmoid(z)).flatten(0, 1), "bf16")  # [S, channels]
    q, k, v = out.view(key.requests, key.qlen, 3, -1, HEAD_DIM).unbind(2)

    stored = a.round("conv.state", fresh.flatten(0, 1), "bf16").view_as(fresh)
    state = torch.cat([window[:, -CARRIED:], stored], dim=1).mT  # [R, channels, L + 2]
    return {
        "QK": torch.stack([q, k], dim=3).movedim(1, 2),
        "v": v,
        "conv_state": _stored(t.conv_state, slot, state),
    }


def _windows(state: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """`state: [R, channels, state_len]` -> entries last .. last + 2 of each request, [R, 3, channels]."""
    entries = last[:, None] + torch.arange(CONV_WIDTH - 1, device=last.device)
    return state.mT.gather(1, entries[:, :, None].expand(-1, -1, state.shape[1]))


def _stored(conv_state: torch.Tensor, slot: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    conv_state = conv_state.clone()
    live = slot > 0
    conv_state[slot[live]] = state[live]
    return conv_state
