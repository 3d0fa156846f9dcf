"""A producer / GEMV launch of 256 workgroups x 512 threads at K1's width, in FlyDSL: what the simulator is timed on.

Workgroups 0 .. 55 write a slice of the rows each and publish a flag; 56 .. 252 keep two tasks of 16 weight rows, wait
for every flag, stage the rows in LDS, multiply with MFMA and add their waves' sums in order.
"""

from __future__ import annotations

import flydsl._mlir.dialects.rocdl as raw
import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl.expr import gpu, range_constexpr, rocdl
from flydsl.expr.typing import Int32, Int64, T, Vector

HIDDEN, ROWS, TOKENS, PRODUCERS, TASKS = 7168, 6288, 4, 56, 393
THREADS, WAVES, PAD = 512, 8, 8
NT, DEVICE = 2, 16
GLOBAL = fx.AddressSpace.Global


def at(kind, address):
    """A typed global pointer to `address` in bytes."""
    return fx.inttoptr(fx.PointerType.get(kind.ir_type, GLOBAL, max(1, kind.width // 8)), address)


def resource(address, nbytes):
    """A buffer resource over `nbytes` at `address`."""
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(at(Int32, address), nbytes))


def load4(rows, offset, policy):
    """Four dwords at a byte offset."""
    return Vector(rocdl.raw_ptr_buffer_load(T.vec(4, T.i32), rows, Int32(offset), Int32(0), aux=policy), dtype=Int32)


def store(value, rows, offset, policy):
    """One value at a byte offset."""
    attr = ir.IntegerAttr.get(T.i32, policy)
    raw.raw_ptr_buffer_store(value.ir_value(), rows, Int32(offset).ir_value(), Int32(0).ir_value(), aux=attr)


def mfma(a, b, c):
    """One 16 x 16 x 32 bf16 MFMA."""
    return Vector(rocdl.mfma_f32_16x16x32_bf16(T.f32x4, [a, b, c, 0, 0, 0]), dtype=fx.Float32)


@flyc.kernel(name="producer_gemv", known_block_size=[THREADS, 1, 1])
def producer_gemv_kernel(src: Int64, x: Int64, flags: Int64, w: Int64, out: Int64, tag: Int32):
    @fx.struct
    class Lds:
        x: fx.Array[fx.BFloat16, TOKENS * (HIDDEN + PAD), 16]
        part: fx.Array[fx.Float32, WAVES * 256, 16]

    memory = fx.SharedAllocator().allocate(Lds)
    rows, part = memory.x.peek(), memory.part.peek()
    thread, group = fx.thread_idx.x, fx.block_idx.x
    x_rows, flag = resource(x, TOKENS * HIDDEN * 2), resource(flags, PRODUCERS * 4)
    if group < PRODUCERS:
        token, column = thread >> 7, group * 128 + (thread & 127)
        value = fx.ptr_load(at(fx.Float32, src) + token * HIDDEN + column) * 0.5
        store(value.to(fx.BFloat16), x_rows, (token * HIDDEN + column) * 2, DEVICE)
        rocdl.s_waitcnt(vmcnt=0)
        gpu.barrier()
        if thread == 0:
            store(tag, flag, group * 4, DEVICE)
    else:
        first = (group - PRODUCERS) * 2
        if first < TASKS:
            wave, lane = Int32(rocdl.readfirstlane(T.i32, thread >> 6)), thread & 63
            row, part_of_k = lane & 15, lane >> 4
            weights = resource(w, ROWS * HIDDEN * 2)
            if wave == 0:
                slot = (lane < PRODUCERS).select(lane, Int32(0)) * 4
                seen = Int32(rocdl.raw_ptr_buffer_load(T.i32, flag, slot, Int32(0), aux=DEVICE))
                stale = Int64(rocdl.ballot(T.i64, seen != tag))
                while stale != 0:
                    rocdl.s_sleep(1)
                    seen = Int32(rocdl.raw_ptr_buffer_load(T.i32, flag, slot, Int32(0), aux=DEVICE))
                    stale = Int64(rocdl.ballot(T.i64, seen != tag))
            gpu.barrier()
            for i in range_constexpr(TOKENS * HIDDEN // 8 // THREADS):
                item = thread + i * THREADS
                token, place = item // (HIDDEN // 8), item % (HIDDEN // 8)
                words = load4(x_rows, item * 16, DEVICE)
                fx.ptr_store(words.bitcast(fx.BFloat16), rows.ptr + token * (HIDDEN + PAD) + place * 8)
            gpu.barrier()
            for t in range_constexpr(2):
                task = ((first + t) < TASKS).select(first + t, Int32(TASKS - 1))
                acc = Vector.filled(4, 0.0, fx.Float32)
                for r in range_constexpr(HIDDEN // 128 // WAVES):
                    for q in range_constexpr(4):
                        k = (r * WAVES + wave) * 128 + q * 32 + part_of_k * 8
                        left = load4(weights, ((task * 16 + row) * HIDDEN + k) * 2, NT).bitcast(fx.BFloat16)
                        right = fx.ptr_load(rows.ptr + (row & 3) * (HIDDEN + PAD) + k, fx.BFloat16x8)
                        acc = mfma(left, right, acc)
                for i in range_constexpr(4):
                    part[wave * 256 + (part_of_k * 4 + i) * 16 + row] = acc[i]
                gpu.barrier()
                if thread < 64:
                    total = fx.Float32(0.0)
                    for v in range_constexpr(WAVES):
                        total = total + part[v * 256 + (thread >> 2) * 16 + (thread & 3)]
                    if first + t < TASKS:
                        target = at(fx.BFloat16, out) + (thread & 3) * ROWS + task * 16 + (thread >> 2)
                        fx.ptr_store(total.to(fx.BFloat16), target)
                gpu.barrier()


@flyc.jit
def producer_gemv(
    src: Int64, x: Int64, flags: Int64, w: Int64, out: Int64, tag: Int32, stream: fx.Stream = fx.Stream(None)
):
    producer_gemv_kernel(src, x, flags, w, out, tag).launch(grid=(256,), block=(THREADS,), stream=stream)
