"""Matrix products: which columns go to which wave and which instruction of its chain."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from k3lab.hardware import mfma
from tests.reference.sums import from_zero

F32 = NDArray[np.float32]


def _chain(model: str, x: list[F32], w: list[F32]) -> F32:
    return mfma.get(model).chain([np.ascontiguousarray(step) for step in x], [np.ascontiguousarray(step) for step in w])


def _columns(rows: F32, chunk: int, q: int) -> F32:
    """The 32 columns that instruction q of a chunk takes."""
    first = 128 * chunk + 32 * q
    return rows[:, first : first + 32]


def gemv(x: F32, w: F32, model: str) -> F32:
    """`x: [S, K]` times `w: [N, K]`: wave v takes the chunks v, v + 8, ... of 128 columns, four instructions each.

    All waves do the same number of rounds. A wave that has no chunk left reads the last chunk's weights again and
    multiplies them by zeros. The 8 waves' sums are added in wave order from 0.0.
    """
    chunks = x.shape[1] // 128
    steps_x, steps_w = [], []
    for first in range(0, chunks, 8):
        for q in range(4):
            wave_x = [_columns(x, chunk, q) for chunk in range(first, min(first + 8, chunks))]
            wave_x += [np.zeros_like(wave_x[0])] * (8 - len(wave_x))
            wave_w = [_columns(w, min(chunk, chunks - 1), q) for chunk in range(first, first + 8)]
            steps_x.append(np.stack(wave_x))
            steps_w.append(np.stack(wave_w))
    return from_zero(list(_chain(model, steps_x, steps_w)))


def one_wave_of_128(x: F32, w: F32, model: str) -> F32:
    """`x: [S, 128]` times `w: [N, 128]` (g1): slot 8 g + e of instruction q is column 32 g + 8 q + e."""
    steps = [[32 * g + 8 * q + e for g in range(4) for e in range(8)] for q in range(4)]
    return _chain(model, [x[:, columns] for columns in steps], [w[:, columns] for columns in steps])


def scaled(x: F32, w: F32, model: str) -> F32:
    """`x: [S, 128]` times `w: [N, 128]`, both MXFP4, in one scaled instruction."""
    return _chain(mfma.get(model).scaled_model, [x], [w])
