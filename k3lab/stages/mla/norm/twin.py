"""norm: the latent norms, and the token's cache entry."""

from __future__ import annotations

import torch

from k3lab.arith import Arith
from k3lab.arith.orders import waves_of_256
from k3lab.geometry import ROPE
from k3lab.stages.tensors import Key, Tensors, Written


def stage_norm(a: Arith, t: Tensors, key: Key) -> Written:
    """q_c = norm(q latent) q_nw; cache entry = fp8(norm(kv latent) kv_nw), then fp8(k_pe), neither normed nor rotated.

    QA: [S, QKV_A]; q_nw: [Q_LORA], kv_nw: [KV_LORA] bf16; kv_cache: [blocks, block_size, ENTRY] fp8; slots: [S] int64,
    -1 for another rank's token, whose entry is not written (its QC is). Writes QC [S, Q_LORA] bf16 and kv_cache; fp8
    saturates at +-448.
    """
    g = key.geometry
    q, kv, k_pe = t.QA.split([g.q_lora, g.kv_lora, ROPE], dim=-1)
    q_c = a.round("norm.q_c", _normed(a, q, key.q_eps) * t.q_nw, "bf16")
    normed = a.round("norm.kv", _normed(a, kv, key.kv_eps) * t.kv_nw, "bf16")
    kv_entry = a.round("norm.kv_entry", normed, "fp8_e4m3")
    k_pe_entry = a.round("norm.k_pe_entry", k_pe, "fp8_e4m3")
    return {"QC": q_c, "kv_cache": _stored(t.kv_cache, t.slots, torch.cat([kv_entry, k_pe_entry], dim=-1))}


def _normed(a: Arith, v: torch.Tensor, eps: float) -> torch.Tensor:
    """v r, the weight still to come: `v: [S, width]`."""
    sumsq = a.sum(v * v, waves_of_256(v.shape[-1]))
    return v * a.rms_scale(sumsq, v.shape[-1], eps)[:, None]


def _stored(kv_cache: torch.Tensor, slots: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
    kv_cache = kv_cache.clone()
    mine = slots >= 0
    block, offset = slots[mine] // kv_cache.shape[1], slots[mine] % kv_cache.shape[1]
    kv_cache[block, offset] = entries[mine]
    return kv_cache
