"""What waves of a workgroup cost each other that run a block together: on one SIMD, and at the one LDS."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


def shared(waves: I64, end: F64, size: int, simds: int, busy: float, lds: Any) -> F64:
    """When waves leave a block that would each leave at `end: [n]` by themselves.

    In the order in which they come, a wave leaves no sooner than the one before it on its SIMD plus `busy` (ns of the
    vector unit or the matrix core), and than the one before it in its workgroup plus its own time at the LDS.

    Args:
        waves: [n] ascending; wave w is the w mod `size`-th of its workgroup, on SIMD (w mod size) mod simds.
        lds: ns, a number for all waves or [n].
    """
    if size == 1 or (busy == 0.0 and not np.any(lds)):
        return end
    groups, places = waves // size, waves % size
    whole = -(-size // simds) * simds
    number = np.cumsum(np.diff(groups, prepend=groups[0]) > 0)
    grid = np.full((int(number[-1]) + 1, whole), -np.inf)
    grid[number, places] = end
    if busy and whole > simds:
        by_simd = grid.reshape(len(grid), -1, simds)
        order = by_simd.argsort(1, kind="stable")
        sorted_ends = np.take_along_axis(by_simd, order, 1)
        np.put_along_axis(by_simd, order, _one_after_the_other(sorted_ends, np.full((1, whole // simds, 1), busy)), 1)
    if np.any(lds):
        times = np.zeros(grid.shape)
        times[number, places] = lds
        order = grid.argsort(1, kind="stable")
        sorted_ends = np.take_along_axis(grid, order, 1)
        np.put_along_axis(grid, order, _one_after_the_other(sorted_ends, np.take_along_axis(times, order, 1)), 1)
    out: F64 = grid[number, places]
    return out


def _one_after_the_other(ends: F64, times: F64) -> F64:
    """Along axis 1, `ends` pushed apart so that each is no sooner than the one before plus its own of `times`."""
    out = ends.copy()
    for i in range(1, ends.shape[1]):
        np.maximum(out[:, i], out[:, i - 1] + times[:, i], out=out[:, i])
    return out
