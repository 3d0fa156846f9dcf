"""W_UK: the absorbed query, q_nope in MXFP4 times W_K in MXFP4, one scaled MFMA a 16 x 16 tile."""

from __future__ import annotations

import torch

from k3lab.arith import Arith
from k3lab.arith.plans import SCALED
from k3lab.formats.tensor import mxfp4_values
from k3lab.geometry import NOPE
from k3lab.stages.tensors import Key, Tensors, Written


def stage_uk(a: Arith, t: Tensors, key: Key) -> Written:
    """query = (fp8(bf16(mxfp4(q_nope) W_K^T)), q_pe).

    QN: [S, HEADS, 128] bf16; w_k: [HEADS, KV_LORA, 64] bytes of two E2M1, low nibble first; w_k_scale: [HEADS,
    KV_LORA, 4] E8M0; q_pe: [S, HEADS, 64]; w_kv_b: [HEADS 256, KV_LORA] bf16, for the option. Writes query
    [S, HEADS, ENTRY]: fp8 values, or bf16 with qbf16.

    A NaN in q_nope has no E2M1 code and becomes +0, and its bits set a scale so high that its block vanishes with it:
    the head looks finite.
    """
    q_nope = a.round("uk.q_nope", t.QN, "mxfp4:even")
    w_k = a.option("uk.w_k", mxfp4_values(t.w_k, t.w_k_scale, a.dtype), unquantised=lambda: w_uk(t.w_kv_b))
    latent = a.matmul(q_nope.movedim(1, 0), w_k, SCALED).movedim(0, 1)  # heads are the batch
    q = a.round("uk.q", latent, "bf16")
    q = q if key.qbf16 else a.round("uk.q_entry", q, "fp8_e4m3")
    return {"query": torch.cat([q, t.q_pe], dim=-1)}


def w_uk(w_kv_b: torch.Tensor) -> torch.Tensor:
    """kv_b_proj `[HEADS 256, KV_LORA]` -> W_UK `[HEADS, KV_LORA, 128]`: each head's K rows, transposed."""
    return w_kv_b.unflatten(0, (-1, 2, NOPE))[:, 0].mT
