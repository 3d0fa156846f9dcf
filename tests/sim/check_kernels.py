"""FlyDSL kernels for the trace and for checks of single accesses; imported only where flydsl is there."""

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import gpu, rocdl
from flydsl.expr.typing import Int32, Int64, T

from tests.sim.kernels import at

STREAM = fx.Stream(None)


@flyc.kernel(name="winding", known_block_size=[128, 1, 1])
def winding_kernel(src: Int64, dst: Int64, n: Int32):
    """A loop and a branch that some lanes take."""
    thread = fx.thread_idx.x + fx.block_idx.x * 128
    value = fx.ptr_load(at(Int32, src) + thread)
    total = Int32(0)
    for i in range(0, n, 1):
        total = total + value * i  # in the loop
    if value > 40:
        total = total - value * 100  # in the branch
    four = fx.ptr_load(at(Int32, src) + (thread & 31) * 4, fx.Int32x4)  # a vector
    fx.ptr_store(total + four[2], at(Int32, dst) + thread)  # the end


@flyc.jit
def winding(src: Int64, dst: Int64, n: Int32, stream: fx.Stream = STREAM):
    winding_kernel(src, dst, n).launch(grid=(2,), block=(128,), stream=stream)


@flyc.kernel(name="shifting", known_block_size=[64, 1, 1])
def shifting_kernel(src: Int64, dst: Int64, guarded: Int32):
    """A shift that may be too far; with `guarded`, such a result is not stored."""
    lane = fx.thread_idx.x
    amount = fx.ptr_load(at(Int32, src) + lane)
    moved = lane >> amount
    if guarded != 0:
        if amount < 32:
            fx.ptr_store(moved, at(Int32, dst) + lane)
    else:
        fx.ptr_store(moved, at(Int32, dst) + lane)


@flyc.jit
def shifting(src: Int64, dst: Int64, guarded: Int32, stream: fx.Stream = STREAM):
    shifting_kernel(src, dst, guarded).launch(grid=(1,), block=(64,), stream=stream)


@flyc.kernel(name="scratch", known_block_size=[64, 1, 1])
def scratch_kernel(rows: Int64, dst: Int64, written: Int32):
    """The first `written` lanes write a word of scratch each; then all read theirs."""
    lane = fx.thread_idx.x
    if lane < written:
        fx.ptr_store(lane * 3, at(Int32, rows) + lane)
    rocdl.s_waitcnt(vmcnt=0)
    gpu.barrier()
    fx.ptr_store(fx.ptr_load(at(Int32, rows) + lane), at(Int32, dst) + lane)


@flyc.jit
def scratch(rows: Int64, dst: Int64, written: Int32, stream: fx.Stream = STREAM):
    scratch_kernel(rows, dst, written).launch(grid=(1,), block=(64,), stream=stream)


@flyc.kernel(name="reaching", known_block_size=[64, 1, 1])
def reaching_kernel(src: Int64, dst: Int64, distance: Int32):
    """Each lane moves a word from and to `distance` words further on."""
    lane = fx.thread_idx.x
    word = fx.ptr_load(at(Int32, src) + lane + distance)
    fx.ptr_store(word, at(Int32, dst) + lane + distance)


@flyc.jit
def reaching(src: Int64, dst: Int64, distance: Int32, stream: fx.Stream = STREAM):
    reaching_kernel(src, dst, distance).launch(grid=(1,), block=(64,), stream=stream)


@flyc.kernel(name="wide", known_block_size=[64, 1, 1])
def wide_kernel(src: Int64, dst: Int64, offset: Int32):
    """Loads through a pointer that promises 4 bytes of alignment, `offset` bytes on."""
    lane = fx.thread_idx.x
    word = fx.ptr_load(at(Int32, src + Int64(offset)) + lane)
    fx.ptr_store(word, at(Int32, dst) + lane)


@flyc.jit
def wide(src: Int64, dst: Int64, offset: Int32, stream: fx.Stream = STREAM):
    wide_kernel(src, dst, offset).launch(grid=(1,), block=(64,), stream=stream)


@flyc.kernel(name="local", known_block_size=[64, 1, 1])
def local_kernel(dst: Int64, written: Int32, distance: Int32):
    """The first `written` lanes write a word of LDS; all read the word `distance` on, by pairs of bytes."""

    @fx.struct
    class Lds:
        row: fx.Array[fx.Int32, 64, 16]

    row, lane = fx.SharedAllocator().allocate(Lds).row.peek(), fx.thread_idx.x
    if lane < written:
        row[lane] = lane * 5
    gpu.barrier()
    fx.ptr_store(row[lane + distance], at(Int32, dst) + lane)


@flyc.jit
def local(dst: Int64, written: Int32, distance: Int32, stream: fx.Stream = STREAM):
    local_kernel(dst, written, distance).launch(grid=(1,), block=(64,), stream=stream)


@flyc.kernel(name="crooked", known_block_size=[64, 1, 1])
def crooked_kernel(dst: Int64, offset: Int32):
    """A dword of LDS at any byte, through a pointer that promises whole dwords."""

    @fx.struct
    class Lds:
        row: fx.Array[fx.Int8, 512, 16]

    row, lane = fx.SharedAllocator().allocate(Lds).row.peek(), fx.thread_idx.x
    place = fx.recast_iter(fx.PointerType.get(T.i32, fx.AddressSpace.Shared, 4), row.ptr + (lane * 4 + offset))
    fx.ptr_store(lane, place)
    fx.ptr_store(fx.ptr_load(place), at(Int32, dst) + lane)


@flyc.jit
def crooked(dst: Int64, offset: Int32, stream: fx.Stream = STREAM):
    crooked_kernel(dst, offset).launch(grid=(1,), block=(64,), stream=stream)
