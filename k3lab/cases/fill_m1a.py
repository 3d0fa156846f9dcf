"""M1a's own tensors: kv_b_proj and W_K in MXFP4 made from it, the paged cache, the tokens' cache slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3lab.cases.fill import LaunchFill
from k3lab.cases.stream import F32
from k3lab.cases.values import Normal, Wanted
from k3lab.formats import bf16_bits, bf16_values, mx
from k3lab.geometry import NOPE

BLOCK_SIZE = 16  # cache entries a block
CONTEXT = 64  # entries of earlier tokens that a decode attention over the case can read
INTERLEAVE = 1  # consecutive positions a rank owns (decode context parallel)


def w_uk_of(w_kv_b: F32, heads: int) -> F32:
    """kv_b_proj `[HEADS 256, KV_LORA]` (a head's 128 K rows, then 128 V rows) -> W_UK `[HEADS, KV_LORA, 128]`."""
    rows = w_kv_b.reshape(heads, -1, w_kv_b.shape[-1])
    return np.ascontiguousarray(rows[:, :NOPE].transpose(0, 2, 1))


def quantised_w_k(w_kv_b: F32, heads: int, rule: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """W_K as M1a reads it: E2M1 codes two a byte and E8M0 scales along the 128 nope values, by scale rule `rule`."""
    codes, scales = mx.quantise(w_uk_of(w_kv_b, heads), rule)
    return mx.pack_nibbles(codes), scales


def fill_w_kv_b(values: Normal, w: Wanted) -> F32:
    """The rank's kv_b_proj rows."""
    return values.weight(w)


def fill_w_k(values: Normal, w: Wanted) -> NDArray[np.uint8]:
    """Codes of the same kv_b_proj that `fill_w_kv_b` draws."""
    return _quantised(values, w)[0]


def fill_w_k_scale(values: Normal, w: Wanted) -> NDArray[np.uint8]:
    """Scales of the same kv_b_proj."""
    return _quantised(values, w)[1]


def _quantised(values: Normal, w: Wanted) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    sizes, heads = w.key.sizes, w.key.geometry.heads
    drawn = fill_w_kv_b(values, w.sibling("w_kv_b", (sizes["KV_B"], sizes["KV_LORA"])))
    return quantised_w_k(bf16_values(bf16_bits(drawn)), heads, w.scale_rule)


def fill_kv_cache(values: Normal, w: Wanted) -> F32:
    """What earlier tokens left in the cache."""
    return values.activation(w)


def fill_slots(values: Normal, w: Wanted) -> NDArray[np.int64]:
    """Distinct slots of the tokens a rank owns, -1 for the others (position p belongs to rank p mod ranks).

    A rank alone owns every token, but for one in three or more with null slots.
    """
    tokens, ranks = w.key.tokens, w.key.ranks
    slots = w.stream.choose(tokens, w.slots).astype(np.int64)
    position = np.arange(tokens)
    if ranks > 1:
        slots[position // INTERLEAVE % ranks != w.rank] = -1
    elif w.null == "mixed" and tokens >= 3:
        slots[tokens // 2] = -1
    return slots


def least_slots(key: Any) -> int:
    """A slot for every token, and the context."""
    return int(key.tokens) + CONTEXT


def free_sizes(slots: int) -> Mapping[str, int]:
    """The cache's blocks for `slots` entries."""
    return {"blocks": -(-slots // BLOCK_SIZE), "block_size": BLOCK_SIZE}


FILL = LaunchFill(
    defaults={"tokens": 4, "nblocks": 4, "delta": True},
    least_slots=least_slots,
    free_sizes=free_sizes,
    fills={
        "w_kv_b": fill_w_kv_b,
        "w_k": fill_w_k,
        "w_k_scale": fill_w_k_scale,
        "kv_cache": fill_kv_cache,
        "slots": fill_slots,
    },
)
