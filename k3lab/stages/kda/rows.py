"""Rows of in_proj's output, and the shapes a KDA task sees them in."""

from __future__ import annotations

from typing import NamedTuple

import torch

from k3lab.geometry import HEAD_DIM, Geometry
from k3lab.stages.tensors import Key


class ProjRows(NamedTuple):
    """PROJ cut into its row groups, in the order a rank holds them."""

    qkv: torch.Tensor  # [S, 3 PROJ]: the conv's channels
    g: torch.Tensor  # [S, PROJ]: output gate
    f_a: torch.Tensor  # [S, 128]: low-rank input of the decay gate
    beta: torch.Tensor  # [S, HEADS]


def split_proj(proj: torch.Tensor, geometry: Geometry) -> ProjRows:
    """`proj: [S, NPROJ]` -> its row groups; the pad rows are dropped."""
    p, h = geometry.proj, geometry.heads
    return ProjRows(*proj.split([3 * p, p, HEAD_DIM, h, geometry.nproj_pad], dim=-1)[:4])


def by_head(x: torch.Tensor, key: Key) -> torch.Tensor:
    """`x: [S, HEADS 128]` -> `[R, L, HEADS, 128]`."""
    return x.view(key.requests, key.qlen, -1, HEAD_DIM)
