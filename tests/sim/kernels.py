"""Small FlyDSL kernels with known answers; FlyDSL needs their source on disk. Imported only where flydsl is there."""

from __future__ import annotations

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import gpu, range_constexpr, rocdl
from flydsl.expr.typing import Int32, Int64, T, Vector

GLOBAL = fx.AddressSpace.Global
DEVICE = 16  # cache policy bit SC1


def at(kind, address):
    """A typed global pointer to `address` in bytes."""
    return fx.inttoptr(fx.PointerType.get(kind.ir_type, GLOBAL, max(1, kind.width // 8)), address)


def resource(address, nbytes=None):
    """A buffer resource over `nbytes` at `address`."""
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(at(Int32, address), nbytes))


@flyc.kernel(name="reduction", known_block_size=[128, 1, 1])
def reduction_kernel(src: Int64, dst: Int64, n: Int32):
    @fx.struct
    class Lds:
        part: fx.Array[fx.Float32, 128, 16]

    part = fx.SharedAllocator().allocate(Lds).part.peek()
    thread, group = fx.thread_idx.x, fx.block_idx.x
    total = fx.Float32(0.0)
    for i in range(thread, n, 128):
        total = total + fx.ptr_load(at(fx.Float32, src) + group * n + i)
    part[thread] = total
    gpu.barrier()
    if thread == 0:
        whole = fx.Float32(0.0)
        for j in range(0, 128, 1):
            whole = whole + part[j]
        fx.ptr_store(whole, at(fx.Float32, dst) + group)


@flyc.jit
def reduction(src: Int64, dst: Int64, n: Int32, groups: Int32, stream: fx.Stream = fx.Stream(None)):
    reduction_kernel(src, dst, n).launch(grid=(groups,), block=(128,), stream=stream)


@flyc.kernel(name="scan", known_block_size=[256, 1, 1])
def scan_kernel(src: Int64, dst: Int64):
    """Inclusive prefix sum of 256 integers, doubling distances in LDS."""

    @fx.struct
    class Lds:
        row: fx.Array[fx.Int32, 256, 16]

    row = fx.SharedAllocator().allocate(Lds).row.peek()
    thread = fx.thread_idx.x
    row[thread] = fx.ptr_load(at(Int32, src) + thread)
    gpu.barrier()
    step = Int32(1)
    while step < 256:
        left = Int32(0)
        if thread >= step:
            left = row[thread - step]
        gpu.barrier()
        row[thread] = row[thread] + left
        gpu.barrier()
        step = step * 2
    fx.ptr_store(row[thread], at(Int32, dst) + thread)


@flyc.jit
def scan(src: Int64, dst: Int64, stream: fx.Stream = fx.Stream(None)):
    scan_kernel(src, dst).launch(grid=(1,), block=(256,), stream=stream)


@flyc.kernel(name="histogram", known_block_size=[64, 1, 1])
def histogram_kernel(src: Int64, dst: Int64, n: Int32):
    thread = fx.thread_idx.x + fx.block_idx.x * 64
    if thread < n:
        value = fx.ptr_load(at(Int32, src) + thread)
        fx.atomic_add(at(Int32, dst) + value, Int32(1))


@flyc.jit
def histogram(src: Int64, dst: Int64, n: Int32, groups: Int32, stream: fx.Stream = fx.Stream(None)):
    histogram_kernel(src, dst, n).launch(grid=(groups,), block=(64,), stream=stream)


@flyc.kernel(name="gemm", known_block_size=[64, 1, 1])
def gemm_kernel(a: Int64, b: Int64, c: Int64, k: Int32, width: Int32):
    """C [16, width] = A [16, k] B^T [width, k] in bf16, one MFMA tile of 16 columns a workgroup."""
    lane, group = fx.thread_idx.x, fx.block_idx.x
    row, part = lane & 15, lane >> 4
    acc = Vector.filled(4, 0.0, fx.Float32)
    for step in range(0, k, 32):
        left = fx.ptr_load(at(fx.BFloat16, a) + row * k + step + part * 8, fx.BFloat16x8)
        right = fx.ptr_load(at(fx.BFloat16, b) + (group * 16 + row) * k + step + part * 8, fx.BFloat16x8)
        acc = Vector(rocdl.mfma_f32_16x16x32_bf16(T.f32x4, [left, right, acc, 0, 0, 0]), dtype=fx.Float32)
    for i in range_constexpr(4):
        fx.ptr_store(acc[i], at(fx.Float32, c) + (part * 4 + i) * width + group * 16 + row)


@flyc.jit
def gemm(a: Int64, b: Int64, c: Int64, k: Int32, width: Int32, groups: Int32, stream: fx.Stream = fx.Stream(None)):
    gemm_kernel(a, b, c, k, width).launch(grid=(groups,), block=(64,), stream=stream)


@flyc.kernel(name="exchange", known_block_size=[64, 1, 1])
def exchange_kernel(data: Int64, flags: Int64, out: Int64, tag: Int32):
    """Workgroup 0 writes rows and then a tagged flag; workgroup 1 polls the flag, then reads the rows."""
    lane, group = fx.thread_idx.x, fx.block_idx.x
    rows, flag = resource(data), resource(flags, 4)
    if group == 0:
        rocdl_store(Int32(lane * 3 + 1), rows, lane * 4)
        rocdl.s_waitcnt(vmcnt=0)
        gpu.barrier()
        if lane == 0:
            rocdl_store(tag, flag, Int32(0))
    else:
        seen = Int32(rocdl.raw_ptr_buffer_load(T.i32, flag, Int32(0), Int32(0), aux=DEVICE))
        while seen != tag:
            rocdl.s_sleep(1)
            seen = Int32(rocdl.raw_ptr_buffer_load(T.i32, flag, Int32(0), Int32(0), aux=DEVICE))
        gpu.barrier()
        value = Int32(rocdl.raw_ptr_buffer_load(T.i32, rows, lane * 4, Int32(0), aux=DEVICE))
        fx.ptr_store(value, at(Int32, out) + lane)


def rocdl_store(value, rows, offset):
    """A device-scope dword store."""
    import flydsl._mlir.dialects.rocdl as raw
    from flydsl._mlir import ir

    policy = ir.IntegerAttr.get(T.i32, DEVICE)
    raw.raw_ptr_buffer_store(value.ir_value(), rows, Int32(offset).ir_value(), Int32(0).ir_value(), aux=policy)


@flyc.jit
def exchange(data: Int64, flags: Int64, out: Int64, tag: Int32, stream: fx.Stream = fx.Stream(None)):
    exchange_kernel(data, flags, out, tag).launch(grid=(2,), block=(64,), stream=stream)


@flyc.kernel(name="never", known_block_size=[64, 1, 1])
def never_kernel(data: Int64, flags: Int64, out: Int64, tag: Int32):
    """The planted deadlock: a flag nobody puts."""
    flag = resource(flags, 4)
    if fx.block_idx.x == 1:
        seen = Int32(rocdl.raw_ptr_buffer_load(T.i32, flag, Int32(0), Int32(0), aux=DEVICE))
        while seen != tag:
            rocdl.s_sleep(1)
            seen = Int32(rocdl.raw_ptr_buffer_load(T.i32, flag, Int32(0), Int32(0), aux=DEVICE))


@flyc.jit
def never(data: Int64, flags: Int64, out: Int64, tag: Int32, stream: fx.Stream = fx.Stream(None)):
    never_kernel(data, flags, out, tag).launch(grid=(2,), block=(64,), stream=stream)


@flyc.kernel(name="clamped", known_block_size=[64, 1, 1])
def clamped_kernel(src: Int64, dst: Int64):
    """A buffer of 16 dwords read by 64 lanes."""
    lane = fx.thread_idx.x
    value = Int32(rocdl.raw_ptr_buffer_load(T.i32, resource(src, 64), lane * 4, Int32(0), aux=0))
    fx.ptr_store(value, at(Int32, dst) + lane)


@flyc.jit
def clamped(src: Int64, dst: Int64, stream: fx.Stream = fx.Stream(None)):
    clamped_kernel(src, dst).launch(grid=(1,), block=(64,), stream=stream)


@flyc.kernel(name="unwritten", known_block_size=[128, 1, 1])
def unwritten_kernel(dst: Int64):
    """The planted read of LDS that nothing has written."""

    @fx.struct
    class Lds:
        row: fx.Array[fx.Int32, 128, 16]

    row, thread = fx.SharedAllocator().allocate(Lds).row.peek(), fx.thread_idx.x
    if thread < 64:
        row[thread] = thread
    gpu.barrier()
    fx.ptr_store(row[thread], at(Int32, dst) + thread)


@flyc.jit
def unwritten(dst: Int64, stream: fx.Stream = fx.Stream(None)):
    unwritten_kernel(dst).launch(grid=(1,), block=(128,), stream=stream)


@flyc.kernel(name="uneven", known_block_size=[128, 1, 1])
def uneven_kernel(dst: Int64):
    """The planted barrier that only half of a wave reaches."""
    thread = fx.thread_idx.x
    if thread < 32:
        gpu.barrier()
    fx.ptr_store(thread, at(Int32, dst) + thread)


@flyc.jit
def uneven(dst: Int64, stream: fx.Stream = fx.Stream(None)):
    uneven_kernel(dst).launch(grid=(1,), block=(128,), stream=stream)


@flyc.kernel(name="racing", known_block_size=[128, 1, 1])
def racing_kernel(dst: Int64):
    """The planted race: each wave reads what the other one writes, and no barrier lies between."""

    @fx.struct
    class Lds:
        row: fx.Array[fx.Int32, 128, 16]

    row, thread = fx.SharedAllocator().allocate(Lds).row.peek(), fx.thread_idx.x
    row[thread] = thread
    fx.ptr_store(row[thread ^ 64], at(Int32, dst) + thread)


@flyc.jit
def racing(dst: Int64, stream: fx.Stream = fx.Stream(None)):
    racing_kernel(dst).launch(grid=(1,), block=(128,), stream=stream)


@flyc.kernel(name="mended", known_block_size=[128, 1, 1])
def mended_kernel(dst: Int64):
    """The same with its barrier."""

    @fx.struct
    class Lds:
        row: fx.Array[fx.Int32, 128, 16]

    row, thread = fx.SharedAllocator().allocate(Lds).row.peek(), fx.thread_idx.x
    row[thread] = thread
    gpu.barrier()
    fx.ptr_store(row[thread ^ 64], at(Int32, dst) + thread)


@flyc.jit
def mended(dst: Int64, stream: fx.Stream = fx.Stream(None)):
    mended_kernel(dst).launch(grid=(1,), block=(128,), stream=stream)
