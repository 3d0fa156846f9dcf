"""All-reduces over several ranks through mailboxes in peers' memory, with faults planted on request.

Every rank's mailbox has two halves; a launch takes the one that (epoch * uses + use) mod 2 says. Imported only where
flydsl is there.
"""

from __future__ import annotations

from dataclasses import dataclass

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import const_expr, gpu, range_constexpr, rocdl
from flydsl.expr.typing import Int32, Int64, T, Vector

from tests.sim.fault_kernels import load, store
from tests.sim.kernels import at, resource

DEVICE, SYSTEM = 16, 17
GROUPS, LANES = 2, 64
PART = GROUPS * LANES  # values a rank


def half_of(epoch, uses, use):
    """Which half of the mailbox a launch takes."""
    return (epoch * uses + use) & 1


def pairs_nbytes(ranks):
    return 2 * ranks * PART * 8


@dataclass(frozen=True)
class Pairs:
    """How values go as tagged pairs; the defaults are right.

    Attributes:
        put, get: cache policies.
        fresh: whether the tag must be this launch's, or just any but 0.
    """

    put: int = SYSTEM
    get: int = SYSTEM
    fresh: bool = True


def pairs_reduce(ranks: int, how: Pairs):
    """One shot: every rank puts its values into every mailbox, and adds up what is in its own."""

    @flyc.kernel(name="pairs_reduce", known_block_size=[LANES, 1, 1])
    def kernel(
        table: Int64,
        mine: Int64,
        src: Int64,
        dst: Int64,
        rank: Int32,
        tag: Int32,
        epoch: Int32,
        uses: Int32,
        use: Int32,
    ):
        place = fx.block_idx.x * LANES + fx.thread_idx.x
        half = half_of(epoch, uses, use) * (ranks * PART)
        value = Int32(fx.ptr_load(at(Int32, src) + place))
        for peer in range_constexpr(ranks):
            theirs = resource(fx.ptr_load(at(Int64, table) + peer), pairs_nbytes(ranks))
            store(Vector.from_elements([value, tag], Int32), theirs, (half + rank * PART + place) * 8, how.put)
        box = resource(mine, pairs_nbytes(ranks))
        total = Int32(0)
        for peer in range_constexpr(ranks):
            total = total * 3 + poll(box, (half + peer * PART + place) * 8, tag, how)
        fx.ptr_store(total, at(Int32, dst) + place)

    @flyc.jit
    def launch(
        table: Int64,
        mine: Int64,
        src: Int64,
        dst: Int64,
        rank: Int32,
        tag: Int32,
        epoch: Int32,
        uses: Int32,
        use: Int32,
    ):
        kernel(table, mine, src, dst, rank, tag, epoch, uses, use).launch(grid=(GROUPS,), block=(LANES,))

    return launch


def load2(rows, offset, policy):
    """Two dwords at a byte offset."""
    return Vector(rocdl.raw_ptr_buffer_load(T.vec(2, T.i32), rows, Int32(offset), Int32(0), aux=policy), dtype=Int32)


def late(seen, tag, fresh: bool):
    """Lanes whose tag is not there yet."""
    waits = seen != tag if fresh else seen == 0
    return Int64(rocdl.ballot(T.i64, waits))


@flyc.jit
def poll(box, offset, tag, how: fx.Constexpr):
    """The value of a pair once its tag is there."""
    got = load2(box, offset, how.get)
    waiting = late(got[1], tag, how.fresh)
    while waiting != 0:
        rocdl.s_sleep(1)
        got = load2(box, offset, how.get)
        waiting = late(got[1], tag, how.fresh)
    return got[0]


@dataclass(frozen=True)
class Rows:
    """How rows go, guarded by flags; the defaults are right.

    Attributes:
        drains: whether the stores to rows are drained before the flag is put.
        rows, read: cache policies of the rows; `put`, `get`: of the flags.
        fresh: whether the flag must be this launch's tag, or just any but 0.
    """

    drains: bool = True
    rows: int = SYSTEM
    read: int = SYSTEM
    put: int = SYSTEM
    get: int = SYSTEM
    fresh: bool = True


def rows_nbytes(ranks):
    return 2 * ranks * PART * 4


def flags_nbytes(ranks):
    return 2 * ranks * GROUPS * 4


def rows_reduce(ranks: int, how: Rows):
    """The same with plain rows in every mailbox and a flag for each sender's workgroup."""

    @flyc.kernel(name="rows_reduce", known_block_size=[LANES, 1, 1])
    def kernel(
        rows: Int64,
        flags: Int64,
        my_rows: Int64,
        my_flags: Int64,
        src: Int64,
        dst: Int64,
        rank: Int32,
        tag: Int32,
        half: Int32,
    ):
        lane, group = fx.thread_idx.x, fx.block_idx.x
        place = group * LANES + lane
        value = Int32(fx.ptr_load(at(Int32, src) + place))
        for peer in range_constexpr(ranks):
            theirs = resource(fx.ptr_load(at(Int64, rows) + peer), rows_nbytes(ranks))
            store(value, theirs, ((half * ranks + rank) * PART + place) * 4, how.rows)
        if const_expr(how.drains):
            rocdl.s_waitcnt(vmcnt=0)
        gpu.barrier()
        if lane < ranks:
            for peer in range_constexpr(ranks):
                if lane == peer:
                    theirs = resource(fx.ptr_load(at(Int64, flags) + peer), flags_nbytes(ranks))
                    store(tag, theirs, ((half * ranks + rank) * GROUPS + group) * 4, how.put)
        box, row = resource(my_flags, flags_nbytes(ranks)), resource(my_rows, rows_nbytes(ranks))
        await_flags(box, half * ranks, group, tag, ranks, how)
        gpu.barrier()
        total = Int32(0)
        for peer in range_constexpr(ranks):
            total = total * 3 + load(row, ((half * ranks + peer) * PART + place) * 4, how.read)
        fx.ptr_store(total, at(Int32, dst) + place)

    @flyc.jit
    def launch(
        rows: Int64,
        flags: Int64,
        my_rows: Int64,
        my_flags: Int64,
        src: Int64,
        dst: Int64,
        rank: Int32,
        tag: Int32,
        half: Int32,
    ):
        kernel(rows, flags, my_rows, my_flags, src, dst, rank, tag, half).launch(grid=(GROUPS,), block=(LANES,))

    return launch


@flyc.jit
def await_flags(box, first, group, tag, ranks: fx.Constexpr, how: fx.Constexpr):
    """Wait for one flag of every rank, a lane each."""
    lane = fx.thread_idx.x
    place = ((first + (lane < ranks).select(lane, Int32(0))) * GROUPS + group) * 4
    waiting = late(load(box, place, how.get), tag, how.fresh)
    while waiting != 0:
        rocdl.s_sleep(1)
        waiting = late(load(box, place, how.get), tag, how.fresh)


@flyc.kernel(name="scaled", known_block_size=[LANES, 1, 1])
def scaled_kernel(src: Int64, dst: Int64, factor: Int32):
    """A second kernel for chains: what the one before left, times a factor, through LDS."""

    @fx.struct
    class Lds:
        row: fx.Array[fx.Int32, 64, 16]

    row = fx.SharedAllocator().allocate(Lds).row.peek()
    lane = fx.thread_idx.x
    place = fx.block_idx.x * LANES + lane
    row[lane] = Int32(fx.ptr_load(at(Int32, src) + place))
    gpu.barrier()
    fx.ptr_store(row[63 - lane] * factor, at(Int32, dst) + place)


@flyc.jit
def scaled(src: Int64, dst: Int64, factor: Int32):
    scaled_kernel(src, dst, factor).launch(grid=(GROUPS,), block=(LANES,))


@flyc.kernel(name="rotated", known_block_size=[LANES, 1, 1])
def rotated_kernel(data: Int64, out: Int64):
    """Every workgroup reads what its neighbour wrote in the launch before, and writes elsewhere."""
    lane, group = fx.thread_idx.x, fx.block_idx.x
    value = Int32(fx.ptr_load(at(Int32, data) + ((group + 1) % GROUPS) * LANES + lane))
    fx.ptr_store(value + 1, at(Int32, out) + group * LANES + lane)


@flyc.jit
def rotated(data: Int64, out: Int64):
    rotated_kernel(data, out).launch(grid=(GROUPS,), block=(LANES,))


@flyc.kernel(name="leftover", known_block_size=[LANES, 1, 1])
def leftover_kernel(dst: Int64, writes: Int32):
    """Writes LDS if told to, and reads it."""

    @fx.struct
    class Lds:
        row: fx.Array[fx.Int32, 64, 16]

    row = fx.SharedAllocator().allocate(Lds).row.peek()
    lane = fx.thread_idx.x
    if writes != 0:
        row[lane] = lane + 5
    gpu.barrier()
    fx.ptr_store(row[lane], at(Int32, dst) + lane)


@flyc.jit
def leftover(dst: Int64, writes: Int32):
    leftover_kernel(dst, writes).launch(grid=(1,), block=(LANES,))


@flyc.kernel(name="gathering", known_block_size=[LANES, 1, 1])
def gathering_kernel(counts: Int64, groups: Int32):
    """A barrier of the whole grid: every workgroup counts itself in and waits until all have."""
    place = at(Int32, counts)
    scope = rocdl.SyncScope.Agent
    seen = Int32(0)
    if fx.thread_idx.x == 0:
        fx.atomic_add(place, Int32(1), syncscope=scope)
        seen = Int32(rocdl.raw_ptr_buffer_load(T.i32, resource(counts, 4), Int32(0), Int32(0), aux=DEVICE))
        while seen != groups:
            rocdl.s_sleep(1)
            seen = Int32(rocdl.raw_ptr_buffer_load(T.i32, resource(counts, 4), Int32(0), Int32(0), aux=DEVICE))
    gpu.barrier()


@flyc.jit
def gathering(counts: Int64, groups: Int32):
    gathering_kernel(counts, groups).launch(grid=(groups,), block=(LANES,))
