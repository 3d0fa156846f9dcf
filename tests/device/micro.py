"""Runs the one-wave kernels of `device_kernels` and compares by bits."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from k3lab.lowering.capture import lower
from k3lab.lowering.ir import Module
from k3lab.sim.launch import simulate
from k3lab.sim.options import Options
from tests.device import device_kernels as kernels

LANE = np.arange(64)


@cache
def lowered(name: str) -> Module:
    return lower(getattr(kernels, name), 0, 0)


def run(name: str, source: Any, rows: int, **options: Any) -> np.ndarray:
    """The rows of 64 words that the kernel writes."""
    out = np.zeros((rows, 64), np.int32)
    with np.errstate(all="ignore"):
        simulate(lowered(name), np.ascontiguousarray(source), out, options=Options(**options))
    return out


def agree(got: np.ndarray, expected: Any, quiet_nans: bool = True) -> None:
    """Row by row, bit by bit; NaNs of fp32 rows are alike unless their bits count."""
    assert len(got) == len(expected)
    for row, (mine, wanted) in enumerate(zip(got, expected, strict=True)):
        wanted = np.broadcast_to(np.asarray(wanted), mine.shape)
        alike = np.zeros(mine.shape, bool)
        if wanted.dtype == np.float32:
            alike = np.isnan(mine.view(np.float32)) & np.isnan(wanted) & quiet_nans
            wanted = np.ascontiguousarray(wanted).view(np.int32)
        wrong = (mine != wanted.astype(mine.dtype)) & ~alike
        lane = int(wrong.argmax())
        assert not wrong.any(), f"row {row} lane {lane}: expected {wanted[lane]:#x}, got {mine[lane]:#x}"


def words(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**31), 2**31, shape).astype(np.int32)


def floats(seed: int, *shape: int) -> np.ndarray:
    """Values over 40 binades, so that every order of a sum gives bits of its own."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20, shape)).astype(np.float32)
