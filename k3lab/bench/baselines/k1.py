"""K1 in torch: one step of a KDA layer, from the seam to the gated core output, with states updated in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from k3lab.bench.baselines.seam import Key, Tensors, prepare_seam, seam
from k3lab.errors import expect
from k3lab.geometry import CONV_WIDTH, HEAD_DIM

WEIGHTS = ("w_in", "w_fb")
"""Matrices that a step reads whole."""
L2_EPS = 1e-6


def prepare(key: Key, t: Tensors) -> dict[str, torch.Tensor]:
    """The tensors a torch user holds: parameters folded at load time, indices made once a step for all layers.

    rate: exp(a_log) by column [PROJ]; conv_slot: [R]; window: [R, 1, 3], entries of the conv window; first: [R] state
    slots; targets: [L, R] slots of the tokens' states. All int64.

    Raises:
        BadInput: for null slots: this baseline is for live requests alone.
    """
    slots = t["st_idx"][:, : key.qlen].long()
    expect(bool((slots > 0).all()), "st_idx of a baseline", "no null slots", "some", "make the case with null='none'")
    last = t["num_acc"].long() - 1
    return {
        **t,
        **prepare_seam(t),
        "rate": t["a_log"].exp().repeat_interleave(HEAD_DIM),
        "norm_o": t["on_w"].float(),
        "conv_slot": slots[:, 0].contiguous(),
        "window": (last[:, None] + torch.arange(CONV_WIDTH - 1, device=last.device))[:, None],
        "first": slots.gather(1, last[:, None])[:, 0],
        "targets": slots.mT.contiguous(),
    }


def step(key: Key, ranks: Sequence[Tensors]) -> list[dict[str, torch.Tensor]]:
    """One launch's work; returns core_out [S, PROJ] bf16. prefix, blocks, conv_state and rstate change in place."""
    return [_of_rank(key, t) for t in ranks]


def _of_rank(key: Key, t: Tensors) -> dict[str, torch.Tensor]:
    if key.delta:
        t["prefix"].add_(t["delta"])
    if key.write_idx >= 0:
        t["blocks"][:, key.write_idx].copy_(t["prefix"])
    width, heads = key.geometry.proj, key.geometry.heads
    proj = F.linear(seam(key, t), t["w_in"])
    qkv, g, f_a, beta, _ = proj.split([3 * width, width, HEAD_DIM, heads, key.geometry.nproj_pad], dim=-1)
    q, k, v = convolved(key, t, qkv)
    o = recurrence(t, *gates(key, t, f_a, beta, q, k), v)
    normed = F.rms_norm(o.bfloat16().float(), (HEAD_DIM,), t["norm_o"], key.onorm_eps)
    core = normed.view(key.tokens, width) * torch.sigmoid(g.float())
    return {"core_out": core.bfloat16()}


def convolved(key: Key, t: Tensors, qkv: torch.Tensor) -> Sequence[torch.Tensor]:
    """`qkv: [S, 3 PROJ]` bf16 -> q, k, v after convolution and silu, each [R, L, HEADS, 128] bf16; conv_state moves."""
    slot, taps = t["conv_slot"], t["conv_w"][:, None]
    held = t["conv_state"].index_select(0, slot)  # [R, CONV, L + 2]
    window = held.gather(2, t["window"].expand(-1, held.shape[1], -1))
    sequence = torch.cat([window, qkv.view(key.requests, key.qlen, -1).mT], dim=2)  # [R, CONV, L + 3]
    t["conv_state"].index_copy_(0, slot, sequence[:, :, 1:])
    out = F.silu((sequence.unfold(2, CONV_WIDTH, 1) * taps).sum(-1)).bfloat16().mT  # [R, L, CONV]
    return out.unflatten(-1, (3, -1, HEAD_DIM)).unbind(2)


def gates(
    key: Key, t: Tensors, f_a: torch.Tensor, beta: torch.Tensor, q: torch.Tensor, k: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """decay [R, L, HEADS, 128], beta [R, L, HEADS], l2-normed q (scaled) and k [R, L, HEADS, 128]; fp32."""
    g1 = F.linear(f_a, t["w_fb"])
    decay = torch.exp(key.lower_bound * torch.sigmoid(t["rate"] * (g1 + t["dt_bias"])))
    return (
        decay.view(key.requests, key.qlen, -1, HEAD_DIM),
        torch.sigmoid(beta.float()).view(key.requests, key.qlen, -1),
        unit(q.float()) * HEAD_DIM**-0.5,
        unit(k.float()),
    )


def unit(x: torch.Tensor) -> torch.Tensor:
    """x over the root of its sum of squares in the last axis, and eps."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def recurrence(
    t: Tensors, decay: torch.Tensor, beta: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """The gated delta rule token by token -> [R, L, HEADS, 128] fp32; each token's state goes to its slot of rstate."""
    state = t["rstate"].index_select(0, t["first"])  # [R, HEADS, 128 v, 128 k] fp32, ours to change
    outs = []
    for j in range(decay.shape[1]):
        state.mul_(decay[:, j, :, None])
        predicted = (state @ k[:, j, :, :, None])[..., 0]
        u = (v[:, j] - predicted) * beta[:, j, :, None]
        state.addcmul_(u[..., None], k[:, j, :, None])
        outs.append((state @ q[:, j, :, :, None])[..., 0])
        t["rstate"].index_copy_(0, t["targets"][j], state)
    return torch.stack(outs, dim=1)
