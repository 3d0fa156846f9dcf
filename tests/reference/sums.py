"""Sums in the launches' orders, as loops over lanes and waves; every addition rounds to float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


def from_first(values: Sequence[F32]) -> F32:
    """In order from the first value, so that a sum of -0.0 alone stays -0.0: slices, ONRM parts, TP ranks, waves of a
    latent norm."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def from_zero(values: Sequence[F32]) -> F32:
    """In order from +0.0, which makes +0.0 of -0.0: the MFMA waves, the mix over sources, the conv taps, the 16 squares
    of a value chunk."""
    total = np.zeros_like(values[0])
    for value in values:
        total = total + value
    return total


def butterfly(lanes: F32) -> F32:
    """`lanes: [..., n]`: for offsets n / 2, ..., 2, 1 every lane adds the value of the lane whose number differs in
    that bit."""
    number = np.arange(lanes.shape[-1])
    offset = len(number) // 2
    while offset:
        lanes = lanes + lanes[..., number ^ offset]
        offset //= 2
    return lanes[..., 0]


def threads_of_4(columns: F32) -> F32:
    """`columns: [..., n]` -> `[..., n / 4]`: a thread adds its 4 neighbouring columns in order."""
    c = columns.reshape(*columns.shape[:-1], -1, 4)
    return ((c[..., 0] + c[..., 1]) + c[..., 2]) + c[..., 3]


def row_of_128(columns: F32) -> F32:
    """`columns: [..., 128]`: 32 threads of 4 columns, then their butterfly."""
    return butterfly(threads_of_4(columns))


def slice_sums(x: F32) -> F32:
    """`x: [..., HIDDEN]` -> `[..., NA]`: a slice is 128 columns, summed like a row."""
    return row_of_128(x.reshape(*x.shape[:-1], -1, 128))


def over_slices(parts: F32) -> F32:
    """`parts: [NA, ...]`: 8 groups of NA / 8 consecutive slices, each in order; then the 8 group sums in order."""
    groups = [from_first(list(group)) for group in np.split(parts, 8)]
    return from_first(groups)


def head_squares(x: F32) -> F32:
    """`x: [..., 128]`: lane l squares columns l and l + 64 and adds the two; then a 64-lane butterfly."""
    low, high = x[..., :64], x[..., 64:]
    return butterfly(low * low + high * high)


def latent_squares(x: F32) -> F32:
    """`x: [S, width]`: threads of 4 columns, butterflies over waves of 64 threads, the waves in order."""
    waves = threads_of_4(x * x).reshape(len(x), -1, 64)
    return from_first([butterfly(waves[:, wave]) for wave in range(waves.shape[1])])
