"""M1a in torch, for a rank on its own: latent projections and norms, q_b, absorbed query, cache entry and gate."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from k3lab.bench.baselines.seam import Key, Tensors, prepare_seam, seam
from k3lab.errors import expect
from k3lab.formats.tensor import mxfp4_values
from k3lab.geometry import NOPE, ROPE

WEIGHTS = ("w_x", "w_qb", "w_uk")
FP8_MOST = 448.0
"""Largest e4m3 value: a cast alone would make NaN of what lies above."""


def prepare(key: Key, t: Tensors) -> dict[str, torch.Tensor]:
    """The tensors a torch user holds: both projections as one matrix, W_UK dequantised to bf16 (4 times MXFP4's bytes).

    w_x: [QKV_A + PROJ, HIDDEN] bf16; w_uk: [HEADS, 128, KV_LORA] bf16, exact (E2M1 times a power of two); entries:
    the cache as rows [slots, ENTRY] of bytes.

    Raises:
        BadInput: for tokens of other ranks, or more ranks than one.
    """
    expect(key.ranks == 1, "ranks of M1a's baseline", "1 (a gather needs the other ranks' GPUs)", key.ranks)
    own = bool((t["slots"] >= 0).all())
    expect(own, "slots of a baseline", "a slot for every token", "-1", "make the case with null='none'")
    expect(t["kv_cache"].is_contiguous(), "kv_cache of a baseline", "a contiguous cache", "gaps")
    w_k = mxfp4_values(t["w_k"], t["w_k_scale"], torch.float32)  # [HEADS, KV_LORA, 128]
    return {
        **t,
        **prepare_seam(t),
        "w_x": torch.cat([t["w_qkv"], t["w_g"]]),
        "w_uk": w_k.mT.contiguous().bfloat16(),
        "entries": t["kv_cache"].view(-1, key.geometry.entry),
    }


def step(key: Key, ranks: Sequence[Tensors]) -> list[dict[str, torch.Tensor]]:
    """One launch's work; returns gate_out [S, PROJ] bf16 and q_out [S, HEADS, ENTRY], fp8 as bytes or bf16.

    prefix and kv_cache change in place. The query's no-position part stays in bf16 where the kernel rounds it to MXFP4:
    there is no such product in torch, and rounding for its own sake would cost time.
    """
    return [_of_rank(key, t) for t in ranks]


def _of_rank(key: Key, t: Tensors) -> dict[str, torch.Tensor]:
    if key.delta:
        t["prefix"].add_(t["delta"])
    g = key.geometry
    q_c, kv, k_pe, gate = F.linear(seam(key, t), t["w_x"]).split([g.q_lora, g.kv_lora, ROPE, g.proj], dim=-1)
    normed = F.rms_norm(kv, (g.kv_lora,), t["kv_nw"], key.kv_eps)
    entry = fp8(torch.cat([normed, k_pe], dim=-1))
    t["entries"].index_copy_(0, t["slots"], entry)

    q = F.linear(F.rms_norm(q_c, (g.q_lora,), t["q_nw"], key.q_eps), t["w_qb"]).unflatten(-1, (-1, NOPE + ROPE))
    absorbed = torch.bmm(q[..., :NOPE].transpose(0, 1), t["w_uk"]).transpose(0, 1)  # [S, HEADS, KV_LORA]
    query = torch.cat([absorbed, q[..., NOPE:]], dim=-1)
    return {"gate_out": torch.sigmoid(gate), "q_out": query if key.qbf16 else fp8(query)}


def fp8(x: torch.Tensor) -> torch.Tensor:
    """x as e4m3 bytes (uint8), saturating."""
    return x.clamp(-FP8_MOST, FP8_MOST).to(torch.float8_e4m3fn).view(torch.uint8)
