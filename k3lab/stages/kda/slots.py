"""State slots: which slot a request reads and writes, and the three null rules (slot <= 0).

A null conv slot skips only the *store* of the conv state; a null initial slot starts the state at 0 and silences the
request; a null target slot skips only that token's state store.
"""

from __future__ import annotations

import torch


def accepted(num_acc: torch.Tensor) -> torch.Tensor:
    """`num_acc: [R]` in 1 .. L -> index a = num_acc - 1 of the last accepted token, int64."""
    return num_acc.long() - 1


def conv_slots(st_idx: torch.Tensor) -> torch.Tensor:
    """`st_idx: [R, >= L]` -> the conv state's slot of each request, [R] int64."""
    return st_idx[:, 0].long()


def initial_slots(st_idx: torch.Tensor, num_acc: torch.Tensor) -> torch.Tensor:
    """The slot that holds the state after the last accepted token, [R] int64."""
    return st_idx.long().gather(1, accepted(num_acc)[:, None])[:, 0]


def readable(slots: torch.Tensor) -> torch.Tensor:
    """Null slots read slot 0."""
    return slots.clamp(min=0)
