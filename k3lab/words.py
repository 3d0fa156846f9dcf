"""Values to 32-bit words and back, as regions hold them: the one place where packing happens. NumPy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from k3lab.formats import FP8_E4M3, bf16_bits, bf16_values

F32 = NDArray[np.float32]
U32 = NDArray[np.uint32]

SENTINEL = np.uint32(0xFFFFFFFF)
"""The word an armed all-reduce slot holds: a bf16 pair of NaNs that no producer may write."""

DISARMED = np.uint32(0x7FFFFFFF)
"""What a producer writes in its stead: NaN stays NaN, only the high one's sign changes."""


def fp32_words(values: F32) -> U32:
    """`values: [..., n]` -> their bits, [..., n]."""
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def bf16_pair_words(values: F32) -> U32:
    """`values: [..., 2 n]`, bf16 values in fp32 -> [..., n], the even column in the low half."""
    bits = bf16_bits(np.ascontiguousarray(values, np.float32)).astype(np.uint32)
    return np.asarray(bits[..., 0::2] | bits[..., 1::2] << np.uint32(16))


def bf16_pair_values(words: U32) -> F32:
    """The inverse of `bf16_pair_words`; every NaN payload survives."""
    halves = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=-1).astype(np.uint16)
    return bf16_values(halves.reshape(*words.shape[:-1], -1))


def fp8_words(values: F32) -> U32:
    """`values: [..., 4 n]`, e4m3 values in fp32 -> [..., n], the first in the low byte."""
    return np.ascontiguousarray(FP8_E4M3.encode(values)).view("<u4")


def disarmed(words: U32) -> U32:
    """Words a sentinel producer stores: the sentinel itself is replaced, so that it does not look unwritten."""
    return np.where(words == SENTINEL, DISARMED, words)
