"""Which K1 launches the kernel is held against the twin on: every pair of options, distributions and layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from tests.cover import Factors

Tensors = Mapping[str, torch.Tensor]

FACTORS: Factors = {
    "values": {
        name: {"values": name} for name in ("outliers", "adversarial", "ties", "tiny", "specials", "specials:zeros")
    },
    # S9L3 and S33L1 have ragged last rows; S20L4 and S33L1 more tokens than an MFMA tile; L2 .. L4 all null slot rules.
    "rows": {
        "S1L1": {"tokens": 1, "qlen": 1},
        "S6L2": {"tokens": 6, "qlen": 2},
        "S9L3": {"tokens": 9, "qlen": 3},
        "S20L4": {"tokens": 20, "qlen": 4},
        "S16L16": {"tokens": 16, "qlen": 16},
        "S33L1": {"tokens": 33, "qlen": 1},
    },
    "prefix": {
        "delta": {},
        "delta+write": {"write_idx": 8},
        "plain": {"delta": False},
        "plain+write": {"delta": False, "write_idx": 8},
    },
    "sources": {"nb1": {"nblocks": 1}, "nb4": {"nblocks": 4}, "nb8": {"nblocks": 8}},
    "strides": {"contiguous": {}, "transposed": {"restride": "transposed"}, "gaps": {"restride": "gaps"}},
    "gate": {"shared": {}, "local": {"gate_local": True}},
    "knobs": {
        "default": {},
        "few": {"blocks": 17, "token_tile": 3, "prefetch": 1},
        "many": {"blocks": 61, "kda0": 5, "prefetch": 2},
        "all": {"kda0": 47, "token_tile": 16},
        "everyone": {"gemv_all": True, "prefetch": 1, "ahead": 1},
        "held": {"gemv_all": True, "blocks": 40, "token_tile": 7, "k_parts": 2, "at_once": 2, "ahead": 3},
    },
    "stamps": {"off": {}, "on": {"timeline": True}},
    "eps": {"default": {}, "other": {"eps": 3e-6, "out_eps": 1e-6, "onorm_eps": 1e-4, "lower_bound": -3.0}},
}

MORE = ("normal", "huge", "constant", "specials:infinities", "specials:nans", "specials:extremes")


def transposed(tensors: Tensors) -> dict[str, torch.Tensor]:
    """conv_state with its channels innermost, as a [slots, entries, channels] cache gives it."""
    return {"conv_state": tensors["conv_state"].mT.contiguous().mT}


def gaps(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Every tensor of free strides inside a larger one: blocks, conv_state in all dimensions, rstate by slot."""
    return {
        "blocks": _inside(tensors["blocks"], (2, 3, 0)),
        "conv_state": _inside(tensors["conv_state"], (1, 2, 5)),
        "rstate": _inside(tensors["rstate"], (1, 1, 0, 0)),
    }


def _inside(tensor: torch.Tensor, more: tuple[int, ...]) -> torch.Tensor:
    larger = torch.zeros([size + extra for size, extra in zip(tensor.shape, more, strict=True)], dtype=tensor.dtype)
    view = larger[tuple(slice(size) for size in tensor.shape)]
    return view.copy_(tensor)


RESTRIDES: Mapping[str, Callable[[Tensors], dict[str, torch.Tensor]]] = {"transposed": transposed, "gaps": gaps}
