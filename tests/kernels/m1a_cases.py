"""Which M1a launches the kernel is held against the twin on: every pair of options, distributions and layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

import numpy as np
import torch

from k3lab import Case
from k3lab.arith import KernelOrder
from k3lab.arith.orders import waves_of_256
from k3lab.cases.ties import MANTISSAS
from k3lab.formats.tensor import bf16_round
from k3lab.geometry import MX_BLOCK
from tests.cover import Factors

Tensors = Mapping[str, torch.Tensor]

PREFIX: Factors = {"prefix": {"delta": {}, "plain": {"delta": False}}}
BUILDS: Factors = {
    "entry": {"fp8": {}, "bf16": {"qbf16": True}},
    "strides": {"contiguous": {}, "gaps": {"restride": True}},
    "stamps": {"off": {}, "on": {"timeline": True, "bounded": True}},
    "eps": {"default": {}, "other": {"eps": 3e-6, "out_eps": 1e-4, "q_eps": 1e-6, "kv_eps": 2e-3}},
}
FACTORS: Factors = {
    "values": {name: {"values": name} for name in ("outliers", "ties", "tiny")},
    "rows": {"S1": {"tokens": 1}, "S5": {"tokens": 5}},
    "sources": {"nb0": {"nblocks": 0}, "nb4": {"nblocks": 4}},
    "knobs": {
        "default": {},
        "few": {"blocks": 23, "token_tile": 2, "prefetch": 1},
        "many": {"blocks": 61, "prefetch": 2},
    },
    **PREFIX,
    **BUILDS,
}
"""For a quick run: nothing that fills a tile."""
LARGE: Factors = {
    "values": {
        name: {"values": name}
        for name in ("normal", "huge", "constant", "adversarial", "specials:zeros", "specials:infinities")
    },
    # S17 leaves one token in the last tile, which is also one more than there are attention CTAs.
    "rows": {"S2": {"tokens": 2}, "S16": {"tokens": 16}, "S17": {"tokens": 17}},
    "sources": {"nb1": {"nblocks": 1}, "nb3": {"nblocks": 3}, "nb8": {"nblocks": 8}},
    "knobs": {
        "default": {},
        "few": {"blocks": 27, "token_tile": 5},
        "all": {"blocks": 48, "token_tile": 16, "prefetch": 1},
    },
    **PREFIX,
    **BUILDS,
}


def gaps(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Every tensor of free strides inside a larger one or transposed; a cache entry begins at any byte."""
    return {
        "blocks": _inside(tensors["blocks"], (2, 3, 0)),
        "kv_cache": _inside(tensors["kv_cache"], (1, 3, 5)),
        "w_k_scale": tensors["w_k_scale"].movedim(2, 0).contiguous().movedim(0, 2),
    }


def _inside(tensor: torch.Tensor, more: tuple[int, ...]) -> torch.Tensor:
    larger = torch.zeros([size + extra for size, extra in zip(tensor.shape, more, strict=True)], dtype=tensor.dtype)
    view = larger[tuple(slice(size) for size in tensor.shape)]
    return view.copy_(tensor)


def mxfp4_edges(case: Case) -> Case:
    """W_K with every code, zero blocks and all scales; q_nope blocks of all magnitudes down to 0 and up to NaN."""
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 256, case.tensors["w_k"].shape, generator=generator, dtype=torch.uint8)
    scales = torch.randint(60, 200, case.tensors["w_k_scale"].shape, generator=generator, dtype=torch.uint8)
    codes[:, ::7], scales[:, ::7] = 0, 1
    codes[:, 1::7] = 0x88  # -0.0 throughout
    for place, scale in enumerate((0, 1, 254, 255)):
        scales[:, 3 + place :: 41] = scale
    w_qb = case.tensors["w_qb"].float()
    blocks = w_qb.unflatten(0, (-1, MX_BLOCK))
    spread = torch.arange(len(blocks)) * 251 // len(blocks) - 127  # the first just above 0
    blocks *= torch.exp2(spread.float())[:, None, None]
    blocks[1] = 0
    tensors = {**case.tensors, "w_k": codes, "w_k_scale": scales, "w_qb": w_qb.bfloat16()}
    return replace(case, tensors=tensors, allow_nonfinite=True)


def hunted_latents(case: Case, QA: torch.Tensor) -> Case:
    """q_nw chosen so that some bf16 q_c are others where the waves' sums of squares are added in reverse, and some
    where the weight multiplies the factor first."""
    width, eps, arith = case.key.geometry.q_lora, case.key.q_eps, KernelOrder("m1a")
    latent = QA[:, :width]
    waves, last = waves_of_256(width).steps[:-1], waves_of_256(width).steps[-1]
    sums = reduce(lambda x, step: step.fold(x), waves, latent * latent)
    scale, backwards = (arith.rms_scale(last.fold(s).squeeze(-1), width, eps)[:, None] for s in (sums, sums.flip(-1)))
    mantissas = torch.from_numpy(MANTISSAS)
    right, swapped = ((latent * r)[..., None] * mantissas for r in (scale, backwards))
    factored = latent[..., None] * (scale[..., None] * mantissas)
    swaps, factors = ((bf16_round(right) != bf16_round(rival)).any(0).numpy() for rival in (swapped, factored))
    chosen = np.where(swaps.any(-1, keepdims=True), swaps, factors)
    assert swaps.any() and (factors & ~swaps.any(-1, keepdims=True)).any()
    return replace(case, tensors={**case.tensors, "q_nw": torch.from_numpy(MANTISSAS[chosen.argmax(-1)]).bfloat16()})


def lone_slot(case: Case) -> Case:
    """All tokens are another rank's but one, which goes to the cache's last entry."""
    slots = torch.full_like(case.tensors["slots"], -1)
    slots[len(slots) // 2] = case.tensors["kv_cache"].shape[:2].numel() - 1
    return replace(case, tensors={**case.tensors, "slots": slots})
