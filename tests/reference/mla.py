"""M1a: the seam, the latent projections and norms, q_b, the absorbed query, the gather."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from k3lab import Case
from k3lab.formats import FP8_E4M3
from k3lab.launches import LaunchKey
from tests.reference.products import gemv, scaled
from tests.reference.seam import seam
from tests.reference.sums import latent_squares
from tests.reference.values import Trace, from_mxfp4, rms_factor, sigmoid, stored

F32 = NDArray[np.float32]
Rank = Mapping[str, torch.Tensor]


def m1a(case: Case, model: str = "fused") -> list[Trace]:
    """Every rank's trace: what only depends on replicated tensors is computed once and shared."""
    key, ranks = case.key, case.ranks
    shared = Trace()
    x = seam(key, ranks[0], stored(ranks[0]["delta"]) if key.delta else None, shared)
    latents = shared.bf16("proj.qa", gemv(x, stored(ranks[0]["w_qkv"]), model))
    q_c, entry = latent_norms(key, ranks[0], latents, shared)
    shared.exposed |= {"QA": latents, "QC": q_c}

    traces = []
    for rank in ranks:
        trace = Trace(dict(shared.exposed), dict(shared.points))
        g = trace.bf16("proj.g", gemv(x, stored(rank["w_g"]), model))
        trace.exposed["gate_out"] = trace.bf16("proj.gate", sigmoid(g))  # the sigmoid of the rounded projection
        trace.exposed["kv_cache"] = with_entries(rank, entry)
        trace.exposed["query"] = query(key, rank, q_c, trace, model)
        traces.append(trace)

    gathered = np.stack([trace.exposed["query"] for trace in traces])
    for trace in traces:
        trace.exposed["q_out"] = unpacked(key, gathered)
        if len(ranks) > 1:
            trace.exposed["QG"] = gathered
    return traces


def latent_norms(key: LaunchKey, tensors: Rank, latents: F32, trace: Trace) -> tuple[F32, F32]:
    """q_c = bf16((v r) q_nw) and the cache entry: fp8 of bf16((v r) kv_nw), then fp8 of k_pe as it is. Each norm has
    its own eps."""
    q_width, kv_width = key.geometry.q_lora, key.geometry.kv_lora
    q, kv, k_pe = np.split(latents, [q_width, q_width + kv_width], axis=1)
    r = rms_factor(latent_squares(q), q_width, key.q_eps)[:, None]
    q_c = trace.bf16("norm.q_c", (q * r) * stored(tensors["q_nw"]))
    r = rms_factor(latent_squares(kv), kv_width, key.kv_eps)[:, None]
    kv = trace.bf16("norm.kv", (kv * r) * stored(tensors["kv_nw"]))
    return q_c, np.concatenate([trace.fp8("norm.kv_entry", kv), trace.fp8("norm.k_pe_entry", k_pe)], axis=1)


def with_entries(tensors: Rank, entries: F32) -> F32:
    """The cache after token t's entry went to block slot // block_size, offset slot % block_size; a negative slot
    writes nothing."""
    cache = FP8_E4M3.decode(tensors["kv_cache"].contiguous().numpy()).astype(np.float32)
    for slot, entry in zip(tensors["slots"].tolist(), entries, strict=True):
        if slot >= 0:
            cache[slot // cache.shape[1], slot % cache.shape[1]] = entry
    return cache


def query(key: LaunchKey, tensors: Rank, q_c: F32, trace: Trace, model: str) -> F32:
    """The rank's query entries [S, H, 576]: the absorbed no-position part, then the pe part.

    q_nope is rounded to bf16, then to MXFP4, and multiplied by the head's MXFP4 W_K; the product goes to bf16, then to
    fp8, or with qbf16 stays there, as the pe part does.
    """
    heads = key.geometry.heads
    q = gemv(q_c, stored(tensors["w_qb"]), model).reshape(len(q_c), heads, 192)
    nope = trace.bf16("qb.q_nope", q[..., :128])
    pe = trace.bf16("qb.q_pe", q[..., 128:])
    narrow = trace.mxfp4("uk.q_nope", nope)
    products = [scaled(narrow[:, h], w_k(tensors, h), model) for h in range(heads)]
    absorbed = trace.bf16("uk.q", np.stack(products, axis=1))
    if not key.qbf16:
        pe, absorbed = trace.fp8("qb.q_pe_entry", pe), trace.fp8("uk.q_entry", absorbed)
    trace.exposed |= {"QN": nope, "q_pe": pe}
    return np.concatenate([absorbed, pe], axis=-1)


def w_k(tensors: Rank, head: int) -> F32:
    """A head's W_K [KV_LORA, 128]: two codes a byte, the even element in the low nibble."""
    packed, scales = tensors["w_k"][head].numpy(), tensors["w_k_scale"][head].contiguous().numpy()
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), 128)
    return from_mxfp4(codes, scales)


def unpacked(key: LaunchKey, gathered: F32) -> F32:
    """q_out: rank r's head h in head slot r H + h; pad slot g after them repeats slot g."""
    heads = [head for rank in gathered for head in rank.transpose(1, 0, 2)]
    return np.stack([heads[slot % len(heads)] for slot in range(key.q_heads)], axis=1)
