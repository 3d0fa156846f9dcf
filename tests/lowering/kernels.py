"""Small kernels for the tests; FlyDSL reads their source, so they live in a file.

`fx.struct` wants its annotations as objects, so they are not postponed here.
"""

import flydsl._mlir.dialects.rocdl as rd
import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm
from flydsl.expr import const_expr, gpu, rocdl
from flydsl.expr.typing import Int32, Int64, T, Vector

F32, BF16, I8 = fx.Float32, fx.BFloat16, fx.Int8
NT, SC1 = 2, 16


def at(dtype, address):
    return fx.inttoptr(fx.PointerType.get(dtype.ir_type, fx.AddressSpace.Global, dtype.width // 8), address)


def buffer(address):
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(at(Int32, address), None))


def load(rows, offset, dtype=None, aux=0):
    return rocdl.raw_ptr_buffer_load(dtype or T.i32, rows, Int32(offset), Int32(0), aux=aux)


def store(value, rows, offset, aux=0):
    raw = value.ir_value() if hasattr(value, "ir_value") else value
    where = Int32(offset).ir_value(), Int32(0).ir_value()
    rd.raw_ptr_buffer_store(raw, rows, *where, aux=ir.IntegerAttr.get(T.i32, aux))


@flyc.kernel(name="block_sum", known_block_size=[128, 1, 1])
def block_sum_kernel(src: Int64, dst: Int64, n: Int32):
    @fx.struct
    class Lds:
        parts: fx.Array[F32, 128, 16]

    parts = fx.SharedAllocator().allocate(Lds).parts.peek()
    t = fx.thread_idx.x
    acc = F32(0.0)
    for i in range(t, n, 128):
        acc = acc + fx.ptr_load(at(F32, src) + i)
    parts[t] = acc
    gpu.barrier()
    if t == 0:
        total = F32(0.0)
        for j in range(0, 128, 1):
            total = total + parts[j]
        fx.ptr_store(total, at(F32, dst))


@flyc.jit
def block_sum(src: Int64, dst: Int64, n: Int32, stream: fx.Stream = fx.Stream(None)):
    block_sum_kernel(src, dst, n).launch(grid=(2,), block=(128,), stream=stream)


@fx.struct
class Args:
    src: Int64
    dst: Int64
    n: Int32
    scale: F32


@flyc.kernel(name="constants", known_block_size=[64, 1, 1])
def constants_kernel(a: Args):
    t = fx.thread_idx.x
    bytes4 = Vector.from_elements([I8(1), I8(-2), I8(3), I8(-128)], I8)
    fx.ptr_store(bytes4, at(I8, a.dst) + t * 4)
    if t < a.n:
        value = fx.ptr_load(at(F32, a.src) + t)
        tenths = Vector.filled(8, 0.1, BF16)
        fx.ptr_store(tenths, at(BF16, a.dst) + t * 8)
        fx.ptr_store(value * a.scale + float("inf"), at(F32, a.dst) + t)


@flyc.jit
def constants(a: Args, rows: Int32, stream: fx.Stream = fx.Stream(None)):
    constants_kernel(a).launch(grid=(rows, 3), block=(64,), smem=1024, stream=stream)


def waiting(name, sleep):
    """A launcher that waits for a word; without the sleep the compiler takes the load out of the loop."""

    @flyc.kernel(name=name, known_block_size=[64, 1, 1])
    def wait(src: Int64, dst: Int64, tag: Int32):
        flags = buffer(src)
        seen = Int32(load(flags, 0, aux=SC1))
        while seen != tag:
            if const_expr(sleep):
                rocdl.s_sleep(1)
            seen = Int32(load(flags, 0, aux=SC1))
        fx.ptr_store(seen, at(Int32, dst) + fx.thread_idx.x)

    @flyc.jit
    def launch(src: Int64, dst: Int64, tag: Int32, stream: fx.Stream = fx.Stream(None)):
        wait(src, dst, tag).launch(grid=(1,), block=(64,), stream=stream)

    return launch


wait_well, wait_badly = waiting("wait_well", True), waiting("wait_badly", False)


def publishing(name, drain):
    """A launcher that loads weights, waits, multiplies, stores pairs and raises a flag, drained or not."""

    @flyc.kernel(name=name, known_block_size=[256, 1, 1])
    def publish(weights: Int64, flags: Int64, pairs: Int64, tag: Int32):
        t = fx.thread_idx.x
        polled, stored = buffer(flags), buffer(pairs)
        words = Vector(load(buffer(weights), t * 16, T.vec(4, T.i32), NT), dtype=Int32)
        seen = Int32(load(polled, 0, aux=SC1))
        while seen != tag:
            rocdl.s_sleep(1)
            seen = Int32(load(polled, 0, aux=SC1))
        scale = Int32(127)
        zero = Vector.filled(4, 0.0, F32)
        product = Vector(
            rocdl.mfma_scale_f32_16x16x128_f8f6f4(T.f32x4, [words, words, zero, 4, 4, 0, scale, 0, scale]), dtype=F32
        )
        value = product[0].bitcast(Int32)
        store(Vector.from_elements([value, tag], Int32), stored, t * 8, SC1)
        if const_expr(drain):
            rocdl.s_waitcnt(vmcnt=0)
        gpu.barrier()
        if t == 0:
            store(tag, polled, 64, SC1)

    @flyc.jit
    def launch(weights: Int64, flags: Int64, pairs: Int64, tag: Int32, stream: fx.Stream = fx.Stream(None)):
        publish(weights, flags, pairs, tag).launch(grid=(8,), block=(256,), stream=stream)

    return launch


publish_drained, publish_undrained = publishing("publish_drained", True), publishing("publish_undrained", False)


def elementwise(name, compute):
    """A launcher of `compute` on two numbers a thread."""

    @flyc.kernel(name=name, known_block_size=[64, 1, 1])
    def each(src: Int64, dst: Int64):
        t = fx.thread_idx.x
        result = compute(fx.ptr_load(at(F32, src) + t), fx.ptr_load(at(F32, src) + t + 64))
        fx.ptr_store(result, at(F32, dst) + t)

    @flyc.jit
    def launch(src: Int64, dst: Int64, stream: fx.Stream = fx.Stream(None)):
        each(src, dst).launch(grid=(1,), block=(64,), stream=stream)

    return launch


def stamp(a, b):
    clock = Int64(llvm.call_intrinsic(T.i64, "llvm.amdgcn.s.memrealtime", [], [], []))
    return a + b * F32(Int32(clock))


quotient = elementwise("quotient", lambda a, b: a / b + a * b)
fused = elementwise("fused", lambda a, b: fx.fma(a, b, a))
stamped = elementwise("stamped", stamp)
without_code = elementwise("without_code", lambda a, b: fx.tanh(a) + b)
without_bitcode = elementwise("without_bitcode", lambda a, b: fx.log2(a) + b)
misspelt = elementwise("misspelt", lambda a, b: a + undefined_name)  # noqa: F821


def lower_another():
    from k3lab.lowering.capture import lower

    lower(quotient, 0, 0)


@flyc.jit
def lowers_inside(src: Int64, stream: fx.Stream = fx.Stream(None)):
    lower_another()


@flyc.kernel(name="too_much_lds", known_block_size=[64, 1, 1])
def too_much_lds_kernel(src: Int64, dst: Int64):
    @fx.struct
    class Lds:
        words: fx.Array[F32, 50000, 16]

    words = fx.SharedAllocator().allocate(Lds).words.peek()
    t = fx.thread_idx.x
    words[t] = fx.ptr_load(at(F32, src) + t)
    gpu.barrier()
    fx.ptr_store(words[t ^ 5], at(F32, dst) + t)


@flyc.jit
def too_much_lds(src: Int64, dst: Int64, stream: fx.Stream = fx.Stream(None)):
    too_much_lds_kernel(src, dst).launch(grid=(1,), block=(64,), stream=stream)


@flyc.kernel(name="four_bytes", known_block_size=[64, 1, 1])
def four_bytes_kernel(src: Int64, dst: Int64):
    t = fx.thread_idx.x
    value = Vector(load(buffer(src), t * 4, T.vec(4, T.i8)), dtype=I8)
    fx.ptr_store(value, at(I8, dst) + t * 4)


@flyc.jit
def four_bytes(src: Int64, dst: Int64, stream: fx.Stream = fx.Stream(None)):
    four_bytes_kernel(src, dst).launch(grid=(1,), block=(64,), stream=stream)
