"""FlyDSL kernels with a fault planted on request, for the detectors; imported only where flydsl is there."""

from __future__ import annotations

from dataclasses import dataclass

import flydsl._mlir.dialects.rocdl as raw
import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl.expr import const_expr, gpu, range_constexpr, rocdl
from flydsl.expr.typing import Int32, Int64, T, Vector

from tests.sim.kernels import at, resource

PLAIN, NT, DEVICE = 0, 2, 16
PRODUCERS, CONSUMERS, THREADS = 4, 2, 128
STREAM = fx.Stream(None)
AGENT, ORDER = rocdl.SyncScope.Agent, fx.AtomicOrdering


def load(rows, offset, policy):
    """A dword at a byte offset."""
    return Int32(rocdl.raw_ptr_buffer_load(T.i32, rows, Int32(offset), Int32(0), aux=policy))


def load4(rows, offset, policy):
    """Four dwords at a byte offset."""
    return Vector(rocdl.raw_ptr_buffer_load(T.vec(4, T.i32), rows, Int32(offset), Int32(0), aux=policy), dtype=Int32)


def store(value, rows, offset, policy):
    """A value at a byte offset."""
    attr = ir.IntegerAttr.get(T.i32, policy)
    raw.raw_ptr_buffer_store(value.ir_value(), rows, Int32(offset).ir_value(), Int32(0).ir_value(), aux=attr)


@dataclass(frozen=True)
class Flagged:
    """How rows are handed over by flags; the defaults are right.

    Attributes:
        drains: which waves wait for their stores before the barrier: `all`, `first` or `none`.
        barrier: whether the producer has one before the flag.
        polls: which flags the consumer looks at: `all`, `last`, `none`, or `any` (all, but it takes any tag).
        put, get: cache policies of the flags; `rows`, `read`: of the rows.
        acquires: the consumer has an acquire fence of device scope after polling.
    """

    drains: str = "all"
    barrier: bool = True
    polls: str = "all"
    put: int = DEVICE
    get: int = DEVICE
    rows: int = DEVICE
    read: int = DEVICE
    acquires: bool = False


def stale(seen, tag, how: Flagged):
    """Whether a flag has not been put yet."""
    return seen == 0 if how.polls == "any" else seen != tag


def flagged(how: Flagged):
    """Producers write a row each and put a flag; consumers poll the flags, then add the rows up."""

    @flyc.kernel(name="flagged", known_block_size=[THREADS, 1, 1])
    def kernel(rows: Int64, flags: Int64, out: Int64, tag: Int32):
        thread, group = fx.thread_idx.x, fx.block_idx.x
        row, flag = resource(rows, PRODUCERS * THREADS * 4), resource(flags, PRODUCERS * 4)
        if group < PRODUCERS:
            store(thread * 3 + group * 1000 + tag, row, (group * THREADS + thread) * 4, how.rows)
            if const_expr(how.drains == "all"):
                rocdl.s_waitcnt(vmcnt=0)
            if const_expr(how.drains == "first"):  # noqa: SIM102, a constant `if` round a traced one
                if thread < 64:
                    rocdl.s_waitcnt(vmcnt=0)
            if const_expr(how.barrier):
                gpu.barrier()
            if thread == 0:
                store(tag, flag, group * 4, how.put)
        else:
            if const_expr(how.polls != "none"):  # noqa: SIM102
                if thread < 64:
                    slot = Int32((PRODUCERS - 1) * 4)
                    if const_expr(how.polls != "last"):
                        slot = (thread < PRODUCERS).select(thread, Int32(0)) * 4
                    waiting = Int64(rocdl.ballot(T.i64, stale(load(flag, slot, how.get), tag, how)))
                    while waiting != 0:
                        rocdl.s_sleep(1)
                        waiting = Int64(rocdl.ballot(T.i64, stale(load(flag, slot, how.get), tag, how)))
            gpu.barrier()
            if const_expr(how.acquires):
                fx.memory_fence(syncscope=AGENT, ordering=ORDER.Acquire)
            total = Int32(0)
            for i in range_constexpr(PRODUCERS):
                total = total + load(row, (i * THREADS + thread) * 4, how.read)
            fx.ptr_store(total, at(Int32, out) + (group - PRODUCERS) * THREADS + thread)

    @flyc.jit
    def launch(rows: Int64, flags: Int64, out: Int64, tag: Int32, stream: fx.Stream = STREAM):
        kernel(rows, flags, out, tag).launch(grid=(PRODUCERS + CONSUMERS,), block=(THREADS,), stream=stream)

    return launch


def pending(got, tag, tags: str):
    """Whether one of two pairs has another tag; with `tags` "last", only the second one is looked at."""
    late = got[3] ^ tag
    return (late if tags == "last" else late | (got[1] ^ tag)) != 0


def paired(tags: str, put: int = DEVICE, rows: bool = False):
    """Two producers hand values over as tagged pairs; a consumer reads both pairs in one access.

    Args:
        tags: which tags the consumer waits for: `both`, or `last` alone.
        rows: producers also write a row each, drained before their pair, and the consumer reads those.
    """

    @flyc.kernel(name="paired", known_block_size=[64, 1, 1])
    def kernel(row: Int64, pairs: Int64, out: Int64, tag: Int32):
        lane, group = fx.thread_idx.x, fx.block_idx.x
        pair, plain = resource(pairs, 64 * 16), resource(row, 128 * 4)
        if group < 2:
            if const_expr(rows):
                store(lane + group + tag, plain, (group * 64 + lane) * 4, DEVICE)
                rocdl.s_waitcnt(vmcnt=0)
            value = Vector.from_elements([lane * 2 + group + tag, tag], Int32)
            store(value, pair, (lane * 2 + group) * 8, put)
        else:
            got = load4(pair, lane * 16, DEVICE)
            waiting = Int64(rocdl.ballot(T.i64, pending(got, tag, tags)))
            while waiting != 0:
                rocdl.s_sleep(1)
                got = load4(pair, lane * 16, DEVICE)
                waiting = Int64(rocdl.ballot(T.i64, pending(got, tag, tags)))
            total = got[0] * 1000 + got[2]
            if const_expr(rows):
                total = total + load(plain, lane * 4, DEVICE) + load(plain, (64 + lane) * 4, DEVICE)
            fx.ptr_store(total, at(Int32, out) + lane)

    @flyc.jit
    def launch(row: Int64, pairs: Int64, out: Int64, tag: Int32, stream: fx.Stream = STREAM):
        kernel(row, pairs, out, tag).launch(grid=(3,), block=(64,), stream=stream)

    return launch


def counted(atomic: bool):
    """Workgroups write a row each; the last one to come, by an atomic count, adds them up (or simply the last one)."""

    @flyc.kernel(name="counted", known_block_size=[64, 1, 1])
    def kernel(rows: Int64, count: Int64, out: Int64):
        lane, group = fx.thread_idx.x, fx.block_idx.x
        row = resource(rows, 3 * 64 * 4)
        store(lane * (group + 1), row, (group * 64 + lane) * 4, DEVICE)
        rocdl.s_waitcnt(vmcnt=0)
        turn = group
        if const_expr(atomic):
            if lane == 0:
                turn = fx.atomic_add(at(Int32, count), Int32(1), syncscope=AGENT)
            turn = Int32(rocdl.ds_bpermute(T.i32, Int32(0), turn))  # lane 0's
        if turn == 2:
            total = Int32(0)
            for i in range_constexpr(3):
                total = total + load(row, (i * 64 + lane) * 4, DEVICE)
            fx.ptr_store(total, at(Int32, out) + lane)

    @flyc.jit
    def launch(rows: Int64, count: Int64, out: Int64, stream: fx.Stream = STREAM):
        kernel(rows, count, out).launch(grid=(3,), block=(64,), stream=stream)

    return launch


def shifted(apart: bool):
    """Every workgroup reads its right neighbour's values and stores its own: in place, or elsewhere."""

    @flyc.kernel(name="shifted", known_block_size=[64, 1, 1])
    def kernel(src: Int64, dst: Int64):
        lane, group = fx.thread_idx.x, fx.block_idx.x
        value = fx.ptr_load(at(Int32, src) + (group + 1) * 64 + lane)
        target = at(Int32, dst) if const_expr(apart) else at(Int32, src)
        fx.ptr_store(value, target + group * 64 + lane)

    @flyc.jit
    def launch(src: Int64, dst: Int64, stream: fx.Stream = STREAM):
        kernel(src, dst).launch(grid=(2,), block=(64,), stream=stream)

    return launch


def softmax(barrier: bool):
    """Shares of a row of 128 integers in its maximum and sum; both reductions use the same LDS slots."""

    @flyc.kernel(name="softmax", known_block_size=[THREADS, 1, 1])
    def kernel(src: Int64, dst: Int64):
        @fx.struct
        class Lds:
            part: fx.Array[fx.Float32, 2, 16]

        part = fx.SharedAllocator().allocate(Lds).part.peek()
        thread = fx.thread_idx.x
        value = fx.ptr_load(at(fx.Float32, src) + thread)
        most = wave_reduce(value, lambda a, b: (a > b).select(a, b))
        if thread & 63 == 0:
            part[thread >> 6] = most
        gpu.barrier()
        most = (part[0] > part[1]).select(part[0], part[1])
        if const_expr(barrier):
            gpu.barrier()
        total = wave_reduce(value - most, lambda a, b: a + b)
        if thread & 63 == 0:
            part[thread >> 6] = total
        gpu.barrier()
        fx.ptr_store((value - most) / (part[0] + part[1]), at(fx.Float32, dst) + thread)

    @flyc.jit
    def launch(src: Int64, dst: Int64, stream: fx.Stream = STREAM):
        kernel(src, dst).launch(grid=(1,), block=(THREADS,), stream=stream)

    return launch


def wave_reduce(value, combine):
    """Butterfly over a wave's lanes."""
    lane = fx.thread_idx.x & 63
    for step in (32, 16, 8, 4, 2, 1):
        word = Int32(rocdl.ds_bpermute(T.i32, (lane ^ step) * 4, value.bitcast(Int32)))
        value = combine(value, word.bitcast(fx.Float32))
    return value
