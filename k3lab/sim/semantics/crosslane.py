"""Values that move between the lanes of a wave: permutes, swizzles, DPP and row swaps.

Reading a lane that is not active is reported; what comes of it is what the hardware gives, 0 or the old value.
"""

from __future__ import annotations

import numpy as np

from k3lab.lowering.ir import Op
from k3lab.sim.semantics.context import WAVE, WaveContext
from k3lab.sim.semantics.lanes import gather, report_inactive, same_everywhere, spread_lanes
from k3lab.sim.semantics.patterns import NOWHERE, dpp_lanes, dpp_written, swizzle_lanes
from k3lab.sim.semantics.registry import Compute, wave
from k3lab.sim.semantics.values import Array

ROWS = {"rocdl.permlane16.swap": 16, "rocdl.permlane32.swap": 32}


@wave("rocdl.ds_bpermute", "llvm.amdgcn.ds.bpermute")
def ds_bpermute(op: Op) -> Compute:
    """The value of the lane whose number times 4 is the first operand; 0 from an inactive lane."""

    def run(ctx: WaveContext, index: Array, value: Array) -> Array:
        if same_everywhere(ctx, value):
            return value
        return _read(ctx, value, (index >> 2) & (WAVE - 1), "ds_bpermute")

    return run


@wave("llvm.amdgcn.ds.permute")
def ds_permute(op: Op) -> Compute:
    """The value sent by the (last) active lane whose first operand is 4 times this lane; 0 where none sends."""

    def run(ctx: WaveContext, index: Array, value: Array) -> Array:
        waves = max(index.shape[0], value.shape[0], 1 if ctx.mask is None else ctx.n)
        target = np.broadcast_to((index >> 2) & (WAVE - 1), (waves, WAVE))
        sent = np.broadcast_to(value, (waves, WAVE))
        row, lane = np.nonzero(np.broadcast_to(True if ctx.mask is None else ctx.mask, (waves, WAVE)))
        received = np.zeros((waves, WAVE), value.dtype)
        received[row, target[row, lane]] = sent[row, lane]
        return received

    return run


@wave("rocdl.ds_swizzle", "llvm.amdgcn.ds.swizzle")
def ds_swizzle(op: Op) -> Compute:
    """The value of the lane that a constant pattern names; 0 from an inactive lane."""

    def run(ctx: WaveContext, value: Array, offset: Array) -> Array:
        if same_everywhere(ctx, value):
            return value
        return _read(ctx, value, swizzle_lanes(int(offset.flat[0]) & 0xFFFF)[None, :], "ds_swizzle")

    return run


def _read(ctx: WaveContext, value: Array, lanes: Array, what: str) -> Array:
    readable = report_inactive(ctx, lanes, what)
    moved = gather(value, lanes)
    return moved if readable is None or readable.all() else np.where(readable, moved, value.dtype.type(0))


@wave("rocdl.update.dpp")
def update_dpp(op: Op) -> Compute:
    """The value of the lane that the control names.

    Lanes whose row or bank is masked out keep the old value. A lane that names none, or an inactive one, gets 0 with
    `boundCtrl` and keeps the old value without.
    """
    lanes = dpp_lanes(op.attrs["dppCtrl"])
    written = dpp_written(op.attrs["rowMask"], op.attrs["bankMask"])
    exists = lanes != NOWHERE
    zero_fill = bool(op.attrs["boundCtrl"])
    sources = np.where(exists & written, lanes, np.arange(WAVE))[None, :]  # the rest read themselves: never reported
    complete = bool((exists & written).all())

    def run(ctx: WaveContext, old: Array, value: Array) -> Array:
        if complete and same_everywhere(ctx, value):
            return value
        readable = report_inactive(ctx, sources, "DPP")
        moved = gather(value, sources)
        if complete and readable is None:
            return moved
        arrived = exists if readable is None else readable & exists
        fallback = value.dtype.type(0) if zero_fill else old
        return np.where(written, np.where(arrived, moved, fallback), old)

    return run


@wave(*ROWS)
def permlane_swap(op: Op) -> Compute:
    """Both operands after the first's odd rows changed places with the second's even rows."""
    rows = ROWS[op.name]
    partner = (np.arange(WAVE) ^ rows)[None, :]
    name = op.name.removeprefix("rocdl.")

    def run(ctx: WaveContext, first: Array, second: Array) -> tuple[Array, Array]:
        if first is second and same_everywhere(ctx, first):
            return first, second
        report_inactive(ctx, partner, name)
        waves = max(first.shape[0], second.shape[0])
        shape = (waves, WAVE // (2 * rows), 2, rows)
        first, second = (np.broadcast_to(spread_lanes(x), (waves, WAVE)).reshape(shape) for x in (first, second))
        even, odd = np.empty(shape, first.dtype), np.empty(shape, first.dtype)
        even[:, :, 0], even[:, :, 1] = first[:, :, 0], second[:, :, 0]
        odd[:, :, 0], odd[:, :, 1] = first[:, :, 1], second[:, :, 1]
        return even.reshape(waves, WAVE), odd.reshape(waves, WAVE)

    return run
