"""Which lane each lane reads under a DPP control or a swizzle offset: tables of 64 lanes, -1 where there is none."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from k3lab.sim.semantics.context import WAVE
from k3lab.sim.semantics.registry import Unsupported

Lanes = NDArray[np.int64]

LANE = np.arange(WAVE)
ROW = 16
HALF_ROW = 8
QUAD = 4
SWIZZLED = 32
NOWHERE = -1

FFT, ROTATE, QUADS = 0xE000, 0xC000, 0x8000
"""Where a swizzle offset's modes begin; below the last, lanes are masked."""


@cache
def dpp_lanes(control: int) -> Lanes:
    """The lane each lane reads under a DPP control of gfx9.

    Raises:
        Unsupported: for a control that gfx9 does not have.
    """
    start, place = LANE - LANE % ROW, LANE % ROW
    step = control & 0xF
    match control & ~0xF:
        case _ if control < 0x100:
            return _quads(control)
        case 0x100 if step:
            return _or_nowhere(LANE + step, place + step < ROW)
        case 0x110 if step:
            return _or_nowhere(LANE - step, place >= step)
        case 0x120 if step:
            return start + (place - step) % ROW
        case 0x150:
            return start + step
    match control:
        case 0x130:
            return _or_nowhere(LANE + 1, LANE + 1 < WAVE)
        case 0x134:
            return (LANE + 1) % WAVE
        case 0x138:
            return LANE - 1
        case 0x13C:
            return (LANE - 1) % WAVE
        case 0x140:
            return start + ROW - 1 - place
        case 0x141:
            return LANE - LANE % HALF_ROW + HALF_ROW - 1 - LANE % HALF_ROW
        case 0x142:
            return start - 1
        case 0x143:
            return _or_nowhere(np.full(WAVE, SWIZZLED - 1), LANE >= SWIZZLED)
    raise Unsupported(f"DPP control {control:#x}")


@cache
def dpp_written(row_mask: int, bank_mask: int) -> NDArray[np.bool_]:
    """The lanes that a DPP operation writes at all: their row's and their bank's bit are set."""
    row, bank = LANE // ROW, LANE % ROW // QUAD
    return ((row_mask >> row) & (bank_mask >> bank) & 1).astype(np.bool_)


@cache
def swizzle_lanes(offset: int) -> Lanes:
    """The lane each lane reads under a `ds_swizzle` offset."""
    place, half = LANE % SWIZZLED, LANE - LANE % SWIZZLED
    low, middle, high = offset & 0x1F, offset >> 5 & 0x1F, offset >> 10 & 0x1F
    if offset >= FFT:
        reversed_place = np.array([int(f"{lane:05b}"[::-1], 2) for lane in place])
        return half + (reversed_place >> low.bit_count() | place & low)
    if offset >= ROTATE:
        turned = place - middle if offset & 0x400 else place + middle
        return half + (place & low | turned & ~low & (SWIZZLED - 1))
    if offset >= QUADS:
        return _quads(offset & 0xFF)
    return half + ((place & low | middle) ^ high)


def _quads(order: int) -> Lanes:
    """Within each four lanes, the one that two bits of `order` name."""
    return LANE - LANE % QUAD + (order >> 2 * (LANE % QUAD) & 3)


def _or_nowhere(lanes: Lanes, exists: NDArray[np.bool_]) -> Lanes:
    return np.where(exists, lanes, NOWHERE)
