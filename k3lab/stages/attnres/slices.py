"""The slice view: attention CTA c owns hidden columns 128 c .. 128 c + 127."""

from __future__ import annotations

import torch

from k3lab.arith import Arith
from k3lab.arith.orders import COLUMNS_128, slices
from k3lab.geometry import COLS


def sliced(x: torch.Tensor) -> torch.Tensor:
    """`x: [..., HIDDEN]` -> `[..., NA, 128]`."""
    return x.unflatten(-1, (-1, COLS))


def slice_sums(a: Arith, x: torch.Tensor) -> torch.Tensor:
    """`x: [..., HIDDEN]` -> `[..., NA]`: each slice's sum over its 128 columns."""
    return a.sum(sliced(x), COLUMNS_128)


def over_slices(a: Arith, parts: torch.Tensor) -> torch.Tensor:
    """`parts: [NA, ...]` -> `[...]`: the slices' sums joined, 8 groups of NA / 8."""
    return a.sum(parts.movedim(0, -1), slices(parts.shape[0]))
