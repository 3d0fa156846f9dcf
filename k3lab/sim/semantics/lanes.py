"""Who a lane is, who is active, and values that one lane gives to the whole wave."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from k3lab.lowering.ir import Op
from k3lab.sim.semantics.context import WAVE, WaveContext
from k3lab.sim.semantics.registry import Compute, Unsupported, pure, wave
from k3lab.sim.semantics.values import Array, dtype_of, full, raw

AXES = {"x": 0, "y": 1, "z": 2}
LANES = np.arange(WAVE, dtype=np.int64)[None, :]

BELOW = (np.uint64(1) << LANES.astype(np.uint64)) - np.uint64(1)  # bits of the lanes below each lane
BELOW_IN_LOW_HALF = (BELOW & np.uint64(0xFFFFFFFF)).astype(np.uint32)
BELOW_IN_HIGH_HALF = (BELOW >> np.uint64(32)).astype(np.uint32)

SIZES: dict[str, Callable[[WaveContext], tuple[int, int, int]]] = {
    "__ockl_get_num_groups": lambda ctx: ctx.grid,
    "__ockl_get_local_size": lambda ctx: ctx.block_dim,
}
"""Device library calls that ask for a size along an axis."""


@wave(*(f"rocdl.workitem.id.{axis}" for axis in AXES))
def workitem_id(op: Op) -> Compute:
    """A thread's index in its block."""
    axis = AXES[op.name[-1]]
    return lambda ctx: ctx.thread_xyz[axis]


@wave(*(f"rocdl.workgroup.id.{axis}" for axis in AXES))
def workgroup_id(op: Op) -> Compute:
    """A block's index in the grid."""
    axis = AXES[op.name[-1]]
    return lambda ctx: ctx.block_xyz[axis]


@wave(*(f"rocdl.workgroup.dim.{axis}" for axis in AXES))
def workgroup_dim(op: Op) -> Compute:
    """Threads of a block along an axis."""
    axis, kind = AXES[op.name[-1]], op.result_types[0]
    return lambda ctx: full(kind, ctx.block_dim[axis])


@wave(*(f"rocdl.grid.dim.{axis}" for axis in AXES))
def grid_dim(op: Op) -> Compute:
    """Blocks of the grid along an axis."""
    axis, kind = AXES[op.name[-1]], op.result_types[0]
    return lambda ctx: full(kind, ctx.grid[axis])


@wave("llvm.call")
def size_call(op: Op) -> Compute:
    """A call of the device library that asks for a size; there are no other functions."""
    callee = str(op.attrs.get("callee", "a pointer"))
    sizes = SIZES.get(callee)
    if sizes is None:
        raise Unsupported(f"of {callee}")
    result = dtype_of(op.result_types[0])
    return lambda ctx, axis: np.array(sizes(ctx), result)[np.clip(axis, 0, 2)]


@pure("rocdl.mbcnt.lo", "llvm.amdgcn.mbcnt.lo")
def mbcnt_lo(op: Op) -> Compute:
    """The second operand plus the set bits of a mask of lanes 0 .. 31 that stand for lower lanes."""
    return lambda mask, base: _count_below(mask, BELOW_IN_LOW_HALF) + base


@pure("rocdl.mbcnt.hi", "llvm.amdgcn.mbcnt.hi")
def mbcnt_hi(op: Op) -> Compute:
    """The same for lanes 32 .. 63."""
    return lambda mask, base: _count_below(mask, BELOW_IN_HIGH_HALF) + base


def _count_below(mask: Array, below: Array) -> Array:
    return np.bitwise_count(mask.view(np.uint32) & below).astype(np.int32)


@wave("rocdl.ballot", "llvm.amdgcn.ballot")
def ballot(op: Op) -> Compute:
    """A bit for every lane: active, and its condition holds."""
    result = dtype_of(op.result_types[0])

    def run(ctx: WaveContext, condition: Array) -> Array:
        active = condition if ctx.mask is None else condition & ctx.mask
        lanes = np.broadcast_to(active, (active.shape[0], WAVE))
        return np.packbits(lanes, axis=1, bitorder="little").view(np.int64).astype(result, copy=False)

    return run


@wave("rocdl.readfirstlane", "llvm.amdgcn.readfirstlane")
def readfirstlane(op: Op) -> Compute:
    """The first active lane's value; a strict run reports a value that the active lanes do not share."""

    def run(ctx: WaveContext, value: Array) -> Array:
        if value.shape[1] == 1:
            return value
        first = first_active(ctx)
        chosen = value[:, :1] if first is None else gather(value, first)
        if ctx.strict:
            _report_differing(ctx, value, chosen)
        return chosen

    return run


def _report_differing(ctx: WaveContext, value: Array, chosen: Array) -> None:
    differing = raw(value) != raw(chosen)
    if differing.ndim == 3:
        differing = differing.any(axis=2)
    if ctx.mask is not None:
        differing = differing & ctx.mask
    if differing.any():
        ctx.report("not-uniform", "readfirstlane of a value that differs between the wave's active lanes", differing)


@wave("rocdl.readlane", "llvm.amdgcn.readlane")
def readlane(op: Op) -> Compute:
    """The value of the lane that the second operand names."""

    def run(ctx: WaveContext, value: Array, lane: Array) -> Array:
        source = (lane if lane.shape[1] == 1 else readfirst(ctx, lane)) & (WAVE - 1)
        report_inactive(ctx, source, "readlane")
        return gather(value, source)

    return run


@wave("llvm.amdgcn.writelane")
def writelane(op: Op) -> Compute:
    """The third operand with one lane's value replaced by the first operand, whether that lane is active or not."""

    def run(ctx: WaveContext, value: Array, lane: Array, old: Array) -> Array:
        target = readfirst(ctx, lane) & (WAVE - 1)
        return np.where(target == LANES, readfirst(ctx, value), old)

    return run


def first_active(ctx: WaveContext) -> Array | None:
    """Each wave's first active lane [n, 1]; None where all are active, so that it is lane 0."""
    return None if ctx.mask is None else ctx.mask.argmax(axis=1)[:, None]


def readfirst(ctx: WaveContext, value: Array) -> Array:
    """The first active lane's value [n or 1, 1]."""
    first = first_active(ctx)
    if value.shape[1] == 1:
        return value
    return value[:, :1] if first is None else gather(value, first)


def gather(value: Array, lanes: Array) -> Array:
    """`value` [waves, lanes, ...] at the `lanes` [waves, lanes] of the same wave."""
    if value.shape[1] == 1:
        return value
    if lanes.shape[0] == 1:
        return np.take(value, lanes[0], axis=1, mode="wrap")
    shape = (max(value.shape[0], lanes.shape[0]), WAVE, *value.shape[2:])
    flat = np.broadcast_to(value, shape).reshape(-1, *value.shape[2:])
    starts = np.arange(0, shape[0] * WAVE, WAVE)[:, None]
    return np.take(flat, lanes + starts, axis=0, mode="wrap")


def report_inactive(ctx: WaveContext, lanes: Array, what: str) -> Array | None:
    """Report active lanes that read inactive ones; returns where `lanes` are active, None if all are."""
    if ctx.mask is None:
        return None
    readable = gather(ctx.mask, lanes)
    bad = ctx.mask & ~readable
    if bad.any():
        ctx.report("inactive-lane", f"{what} reads lanes that are not active", bad)
    return readable


def spread_lanes(value: Array) -> Array:
    """`value` with all 64 lanes."""
    return value if value.shape[1] == WAVE else np.broadcast_to(value, (value.shape[0], WAVE, *value.shape[2:]))


def same_everywhere(ctx: WaveContext, *values: Array) -> bool:
    """Whether all lanes hold the same values and all are active, so that moving them between lanes changes nothing."""
    return ctx.mask is None and all(value.shape[1] == 1 for value in values)
