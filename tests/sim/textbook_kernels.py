"""Textbook kernels in FlyDSL; the block reductions of softmax exist with and without one barrier."""

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import const_expr, gpu, range_constexpr, rocdl
from flydsl.expr.typing import Int32, Int64, T, Vector

from tests.sim.kernels import at, resource

F32, BF16 = fx.Float32, fx.BFloat16
LANES, THREADS, WAVES = 64, 256, 4
ROW = 1000  # softmax's and LayerNorm's row length
TILE, K_STEP = 32, 32
RANKS, PART = 8, 64


@fx.struct
class Slots:
    of_wave: fx.Array[fx.Float32, 4, 16]


def wave_all(x, combine):
    """Combined over the wave, in every lane."""
    for distance in (1, 2, 4, 8, 16, 32):
        x = combine(x, gpu.shuffle_xor(x, distance, LANES))
    return x


@flyc.jit
def block_all(x, slots, combine: fx.Constexpr, first_barrier: fx.Constexpr):
    """Combined over the block, through a slot of LDS for every wave."""
    wave, lane = fx.thread_idx.x >> 6, fx.thread_idx.x & 63
    x = wave_all(x, combine)
    if const_expr(first_barrier):
        gpu.barrier()
    if lane == 0:
        slots[wave] = x
    gpu.barrier()
    whole = slots[0]
    for other in range_constexpr(1, WAVES):
        whole = combine(whole, slots[other])
    return whole


def plus(a, b):
    return a + b


def exp2(x):
    return F32(rocdl.exp2(T.f32, x.ir_value()))


def load_row(src, kind, fill):
    """This thread's share of the workgroup's row; `fill` past its end."""
    base = fx.block_idx.x * ROW
    places = [fx.thread_idx.x + i * THREADS for i in range(-(-ROW // THREADS))]
    loaded = [fx.ptr_load(at(kind, src) + (base + (place < ROW).select(place, Int32(0)))) for place in places]
    return base, places, [(place < ROW).select(x, F32(fill)) for place, x in zip(places, loaded, strict=True)]


@flyc.jit
def store_row(values, places, base, dst):
    for i in range_constexpr(len(places)):
        if places[i] < ROW:
            fx.ptr_store(values[i], at(F32, dst) + (base + places[i]))


def softmax_launcher(name, careful):
    @flyc.kernel(name=name, known_block_size=[THREADS, 1, 1])
    def kernel(src: Int64, dst: Int64):
        slots = fx.SharedAllocator().allocate(Slots).of_wave.peek()
        base, places, x = load_row(src, F32, float("-inf"))
        largest = x[0]
        for value in x[1:]:
            largest = fx.max(largest, value)
        largest = block_all(largest, slots, fx.max, False)
        powers = [exp2((value - largest) * 1.4426950408889634) for value in x]
        total = powers[0]
        for value in powers[1:]:
            total = total + value
        total = block_all(total, slots, plus, careful)
        store_row([value / total for value in powers], places, base, dst)

    @flyc.jit
    def launcher(src: Int64, dst: Int64, rows: Int32):
        kernel(src, dst).launch(grid=(rows,), block=(THREADS,))

    return launcher


softmax = softmax_launcher("softmax", careful=True)
hasty_softmax = softmax_launcher("hasty_softmax", careful=False)
"""The planted race: the sums go to the slots that slower waves may still read the maxima from."""


@flyc.kernel(name="layer_norm", known_block_size=[THREADS, 1, 1])
def layer_norm_kernel(src: Int64, gain: Int64, dst: Int64):
    slots = fx.SharedAllocator().allocate(Slots).of_wave.peek()
    base, places, x = load_row(src, F32, 0.0)
    total = x[0]
    for value in x[1:]:
        total = total + value
    mean = block_all(total, slots, plus, False) * (1.0 / ROW)
    apart = [(place < ROW).select(value - mean, F32(0.0)) for place, value in zip(places, x, strict=True)]
    square = apart[0] * apart[0]
    for value in apart[1:]:
        square = square + value * value
    variance = block_all(square, slots, plus, True) * (1.0 / ROW)
    scale = F32(rocdl.rsq(T.f32, (variance + 1e-5).ir_value()))
    gains = [fx.ptr_load(at(F32, gain) + (place < ROW).select(place, Int32(0))) for place in places]
    store_row([value * scale * g for value, g in zip(apart, gains, strict=True)], places, base, dst)


@flyc.jit
def layer_norm(src: Int64, gain: Int64, dst: Int64, rows: Int32):
    layer_norm_kernel(src, gain, dst).launch(grid=(rows,), block=(THREADS,))


@fx.struct
class Tiles:
    a: fx.Array[fx.BFloat16, 1024, 16]
    b: fx.Array[fx.BFloat16, 1024, 16]


@flyc.kernel(name="tiled_gemm", known_block_size=[THREADS, 1, 1])
def tiled_gemm_kernel(a: Int64, b: Int64, c: Int64, k: Int32, width: Int32):
    """C = A B^T in bf16; a workgroup of 4 waves does a tile of 32 x 32, staging 32 slots of K in LDS at a time."""
    tiles = fx.SharedAllocator().allocate(Tiles)
    left, right = tiles.a.peek(), tiles.b.peek()
    thread = fx.thread_idx.x
    wave, lane = thread >> 6, thread & 63
    row, part = lane & 15, lane >> 4
    my_row, my_slot = thread >> 3, (thread & 7) * 4
    first_row, first_column = fx.block_idx.y * TILE, fx.block_idx.x * TILE
    down, across = (wave >> 1) * 16, (wave & 1) * 16
    acc = Vector.filled(4, 0.0, F32)
    for step in range(0, k, K_STEP):
        some_a = fx.ptr_load(at(BF16, a) + ((first_row + my_row) * k + step + my_slot), fx.BFloat16x4)
        some_b = fx.ptr_load(at(BF16, b) + ((first_column + my_row) * k + step + my_slot), fx.BFloat16x4)
        gpu.barrier()
        fx.ptr_store(some_a, left.ptr + (my_row * K_STEP + my_slot))
        fx.ptr_store(some_b, right.ptr + (my_row * K_STEP + my_slot))
        gpu.barrier()
        mine = fx.ptr_load(left.ptr + ((down + row) * K_STEP + part * 8), fx.BFloat16x8)
        other = fx.ptr_load(right.ptr + ((across + row) * K_STEP + part * 8), fx.BFloat16x8)
        acc = Vector(rocdl.mfma_f32_16x16x32_bf16(T.f32x4, [mine, other, acc, 0, 0, 0]), dtype=F32)
    for i in range_constexpr(4):
        place = (first_row + down + part * 4 + i) * width + first_column + across + row
        fx.ptr_store(acc[i], at(F32, c) + place)


@flyc.jit
def tiled_gemm(a: Int64, b: Int64, c: Int64, k: Int32, width: Int32, across: Int32, down: Int32):
    tiled_gemm_kernel(a, b, c, k, width).launch(grid=(across, down), block=(THREADS,))


@fx.struct
class Square:
    words: fx.Array[fx.Int32, 1056, 16]


@flyc.kernel(name="transpose", known_block_size=[THREADS, 1, 1])
def transpose_kernel(src: Int64, dst: Int64, rows: Int32, columns: Int32):
    """32 x 32 words through LDS, rows padded to 33."""
    square = fx.SharedAllocator().allocate(Square).words.peek()
    x, y = fx.thread_idx.x & 31, fx.thread_idx.x >> 5
    for i in range_constexpr(4):
        row, column = fx.block_idx.y * TILE + y + i * 8, fx.block_idx.x * TILE + x
        square[(y + i * 8) * 33 + x] = fx.ptr_load(at(Int32, src) + (row * columns + column))
    gpu.barrier()
    for i in range_constexpr(4):
        row, column = fx.block_idx.x * TILE + y + i * 8, fx.block_idx.y * TILE + x
        fx.ptr_store(square[x * 33 + y + i * 8], at(Int32, dst) + (row * rows + column))


@flyc.jit
def transpose(src: Int64, dst: Int64, rows: Int32, columns: Int32, across: Int32, down: Int32):
    transpose_kernel(src, dst, rows, columns).launch(grid=(across, down), block=(THREADS,))


@flyc.jit
def wait_for(flags, place, tag):
    """Read a flag until it is `tag`."""
    seen = Int32(rocdl.raw_ptr_buffer_load(T.i32, flags, place, Int32(0), aux=16))
    while seen != tag:
        rocdl.s_sleep(1)
        seen = Int32(rocdl.raw_ptr_buffer_load(T.i32, flags, place, Int32(0), aux=16))


@flyc.kernel(name="all_reduce", known_block_size=[LANES, 1, 1])
def all_reduce_kernel(inputs: Int64, flags: Int64, outputs: Int64, tag: Int32):
    """One workgroup a rank, each with its own buffers: tell every peer, wait for all, add their inputs in order."""
    rank, lane = fx.block_idx.x, fx.thread_idx.x
    if lane < RANKS:
        theirs = fx.ptr_load(at(Int64, flags) + lane)
        order, scope = fx.AtomicOrdering.Release, rocdl.SyncScope.Agent
        fx.generic_store(at(Int32, theirs) + rank, tag, memory_order=order, syncscope=scope)
    mine = resource(fx.ptr_load(at(Int64, flags) + rank), RANKS * 4)
    for peer in range_constexpr(RANKS):
        wait_for(mine, Int32(peer * 4), tag)
    gpu.barrier()
    total = F32(0.0)
    for peer in range_constexpr(RANKS):
        total = total + fx.ptr_load(at(F32, fx.ptr_load(at(Int64, inputs) + peer)) + lane)
    fx.ptr_store(total, at(F32, fx.ptr_load(at(Int64, outputs) + rank)) + lane)


@flyc.jit
def all_reduce(inputs: Int64, flags: Int64, outputs: Int64, tag: Int32):
    all_reduce_kernel(inputs, flags, outputs, tag).launch(grid=(RANKS,), block=(LANES,))
