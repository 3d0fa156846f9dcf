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
from k3lab.formats import E2M1, E8M0
from k3lab.formats.tensor import bf16_round
from k3lab.geometry import MX_BLOCK, NOPE
from tests.cover import Factors

Tensors = Mapping[str, torch.Tensor]

ONE = int(E2M1.encode(np.float32(1)))

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
        "few": {"blocks": 23, "token_tile": 2, "prefetch": 1, "qb0": 0},
        "many": {"blocks": 61, "prefetch": 2, "qb0": 40, "uk_ctas": 45},
        "everyone": {"gemv_all": True, "prefetch": 1, "ahead": 1, "uk_ctas": 99},
        "held": {"gemv_all": True, "blocks": 40, "token_tile": 3, "k_parts": 2, "at_once": 2, "ahead": 3},
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
        "few": {"blocks": 27, "token_tile": 5, "uk_ctas": 3},
        "all": {"blocks": 48, "token_tile": 16, "prefetch": 1, "qb0": 47, "uk_ctas": 1},
        "everyone": {"gemv_all": True, "blocks": 45, "prefetch": 1, "ahead": 1},
        "held": {"blocks": 61, "token_tile": 7, "k_parts": 2, "at_once": 3, "prefetch": 1},
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


def w_k_of_unity(case: Case) -> Case:
    """W_K that copies: row r of the latent is q_nope's column r, for the first 128, and the others are 0."""
    codes = torch.zeros_like(case.tensors["w_k"])
    columns = torch.arange(NOPE)
    codes[:, columns, columns // 2] = (ONE << 4 * (columns % 2)).to(torch.uint8)
    scales = torch.full_like(case.tensors["w_k_scale"], E8M0.bias)
    return replace(case, tensors={**case.tensors, "w_k": codes, "w_k_scale": scales})


TOP = 2.0**126
"""The scale of the largest magnitudes, codes 253."""
LOW = 2.0**-126
"""The scale of code 1."""
STATED_BLOCKS: dict[str, tuple[list[float], list[float]]] = {
    "all zero": ([0.0], [0.0]),
    "all minus zero": ([-0.0] * MX_BLOCK, [0.0]),
    "amax a subnormal": ([1.5 * LOW / 4, -LOW / 2, LOW / 4], [LOW / 2, -LOW / 2, 0.0]),
    "amax below code 1's reach": ([1.75 / 2 * LOW, 0.75 * LOW], [LOW, LOW]),
    "amax below 1.75": ([1.7421875, 1.25, -0.375, -0.0], [1.5, 1.0, -0.375, 0.0]),
    "amax 1.75": ([1.75, 1.25, -0.375, -0.0], [2.0, 1.0, -0.5, 0.0]),
    "amax -1.75": ([-1.75, 1.25], [-2.0, 1.0]),
    "saturates": ([13.9375, -13.5, 13.0, 0.5], [12.0, -12.0, 12.0, 0.0]),
    "the largest bf16": ([255 / 128 * 2 * TOP, 2.5 * TOP, TOP], [np.inf, 2.0 * TOP, TOP]),
    "NaN": ([np.nan, 1.0, -3.0 * TOP], [0.0, 0.0, -3.0 * TOP]),
    "infinity": ([np.inf, 1.0], [np.inf, 0.0]),
    "minus infinity and NaN": ([-np.inf, np.nan, 3.0 * TOP], [-np.inf, 0.0, 3.0 * TOP]),
}
"""Blocks of q_nope, zeros left out at the end, and what MXFP4 holds of them; 4 x 2^126 and more is infinite in fp32."""


def stated_blocks(shape: torch.Size) -> tuple[torch.Tensor, torch.Tensor]:
    """`STATED_BLOCKS`, given and held, each in a head of its own with 3 blocks of 0; `shape: [S, HEADS, 128]`."""
    given, held = torch.zeros(2, *shape)
    for place, (values, kept) in enumerate(STATED_BLOCKS.values()):
        head, begin = divmod(place, shape[1]), place % (NOPE // MX_BLOCK) * MX_BLOCK
        given[head][begin : begin + len(values)] = torch.tensor(values)
        held[head][begin : begin + len(kept)] = torch.tensor(kept)
    return given, held
