"""The AttnRes seam as a torch user writes it: softmax mix of the sources, then the layer norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F

Tensors = Mapping[str, torch.Tensor]
Key = Any


def prepare_seam(t: Tensors) -> dict[str, torch.Tensor]:
    """What is folded when a model is loaded: key_w = ares_nw ares_qk and norm_w = in_nw, [HIDDEN] fp32."""
    return {"key_w": t["ares_nw"].float() * t["ares_qk"].float(), "norm_w": t["in_nw"].float()}


def seam(key: Key, t: Tensors) -> torch.Tensor:
    """The mixed, normed rows x, [S, HIDDEN] bf16, from the prefix (updated before) and the first NB blocks.

    The sources are cast to fp32 once; products with them stay in fp32, as the kernels have it.
    """
    prefix = t["prefix"]
    v = torch.cat([t["blocks"][:, : key.nblocks], prefix[:, None]], dim=1).float()  # [S, NS, HIDDEN]
    width = v.shape[-1]
    mean_sq = torch.linalg.vector_norm(v, dim=-1).square() / width
    weights = torch.softmax((v @ t["key_w"]) * torch.rsqrt(mean_sq + key.eps), dim=-1)
    mixed = torch.bmm(weights[:, None], v)[:, 0]
    return F.rms_norm(mixed, (width,), t["norm_w"], key.out_eps).bfloat16()
