"""Time stamps of a CTA: kept in LDS and written out once, at the end; with the timeline off they trace to nothing."""

from typing import Any

from flydsl._mlir.dialects import llvm
from flydsl.expr import const_expr

from k3lab.device.dsl import Int64, T, located, traced
from k3lab.device.memory import store


@located
def clock() -> Any:
    """The device's real time counter, Int64: 100 MHz on gfx950."""
    return Int64(llvm.call_intrinsic(T.i64, "llvm.amdgcn.s.memrealtime", [], [], []))


@located
@traced
def start_stamps(c: Any) -> None:
    """Clear this CTA's stamps, so that a stage it skips leaves 0."""
    if const_expr(c.key.timeline):
        if c.tid < len(c.points):
            c.stamps.store(Int64(0), c.tid)
        stamp(c, c.points[0])


@located
@traced
def stamp(c: Any, point: str) -> None:
    """Note the time at `point`, when the CTA's first thread gets here."""
    if const_expr(c.key.timeline):
        if c.tid == 0:
            c.stamps.store(clock(), c.points.index(point))


@located
@traced
def write_stamps(c: Any) -> None:
    """`tl: [BLOCKS, points] int64`: this CTA's row. The first thread wrote all of it, so that no barrier is needed."""
    if const_expr(c.key.timeline):
        if c.tid == 0:
            for point in range(len(c.points)):
                store(Int64, c.stamps.load(point), c.args.tl, c.cta * len(c.points) + point)
