"""Tiny kernels for the primitives of k3lab.device; FlyDSL reads their source, so they live in a file.

Each is one wave's straight-line code, from rows of 64 words to rows of 64 words.
"""

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import gpu

from k3lab.device import floats, matrix, memory, narrow, peers, wave
from k3lab.device.dsl import BF16, F32, I8, I16, Int32, Int64, Vector
from k3lab.device.memory import DEVICE, NON_TEMPORAL, PLAIN, SYSTEM, load, load_words, store, store_words

LANES = 64
AREA = 2048
ELEMENTS = (
    *((I8, count) for count in (1, 2, 4, 8, 16)),
    *((I16, count) for count in (1, 2, 4, 8)),
    *((BF16, count) for count in (1, 2, 4, 8)),
    *((Int32, count) for count in (1, 2, 3, 4)),
    *((F32, count) for count in (1, 2, 4)),
    *((Int64, count) for count in (1, 2)),
)
POLICIES = (PLAIN, NON_TEMPORAL, DEVICE, SYSTEM)
WORDS = (1, 2, 3, 4)
CONTROLS = (*wave.NEAR, 0x1B, 0x140, 0x141, 0x121, 0x12F)
CARVED = ((I8, 3), (BF16, 5), (F32, 7), (Int64, 2), (Int32, 64))
LDS_ROOM = 1024


def micro(body):
    """A launcher of `body(src, dst)`."""

    @flyc.kernel(name=body.__name__, known_block_size=[LANES, 1, 1])
    def kernel(src: Int64, dst: Int64):
        body(src, dst)

    @flyc.jit
    def launcher(src: Int64, dst: Int64):
        kernel(src, dst).launch(grid=(1,), block=(LANES,))

    return launcher


def get(src, row, kind=Int32):
    return load(kind, src, fx.thread_idx.x + row * LANES)


def give(dst, rows):
    for row, value in enumerate(rows):
        word = value if isinstance(value, Int32) else value.bitcast(Int32)
        store(Int32, word, dst, fx.thread_idx.x + row * LANES)


@micro
def elements(src, dst):
    """Every kind and count: lane l moves elements count l .. + count - 1 of an area of its own."""
    for area, (kind, count) in enumerate(ELEMENTS):
        place = fx.thread_idx.x * count
        store(kind, load(kind, src + area * AREA, place, count), dst + area * AREA, place)


@micro
def far_elements(src, dst):
    """An element number that takes 64 bits once it is in bytes; src lies that far below where it is read."""
    store(Int32, load(Int32, src - (1 << 33), Int64(fx.thread_idx.x) + (1 << 31)), dst, fx.thread_idx.x)


@micro
def pointers(src, dst):
    """Adding to a pointer counts elements; a wider alignment is the caller's promise."""
    lane = fx.thread_idx.x
    one = fx.ptr_load(memory.pointer(Int32, src) + (lane + 5), Int32)
    four = fx.ptr_load(memory.pointer(Int32, src + Int64(lane * 16), 16), fx.Int32x4)
    give(dst, [one, four[0], four[3]])


@micro
def words(src, dst):
    """Every policy and count through buffers."""
    one, other = memory.buffer(src), memory.buffer(dst)
    for number, policy in enumerate(POLICIES):
        for count in WORDS:
            place = fx.thread_idx.x * (4 * count) + (number * len(WORDS) + count - 1) * 1024
            store_words(load_words(one, place, count, policy), other, place, policy)


@micro
def drained(src, dst):
    store(Int32, get(src, 0), dst, fx.thread_idx.x)
    memory.drain()
    store(Int32, get(src, 0), dst, fx.thread_idx.x + LANES)


def converted(kind, x):
    return x.to(F32).to(kind) if kind in (BF16, F32) else kind(x) if kind is Int64 else x.to(kind)


def carving(start, nbytes=LDS_ROOM):
    """LDS zeroed, the arrays of `CARVED` filled from number 1 on, and all bytes of it written out."""

    def carved(src, dst):
        lane = fx.thread_idx.x
        lds = memory.Lds(memory.lds_base(nbytes), nbytes)
        whole = memory.LdsArray(lds.base, Int32, 0)
        for row in range(LDS_ROOM // 4 // LANES):
            whole.store(Int32(0), lane + row * LANES)
        gpu.barrier()
        for number, (array, (kind, count)) in enumerate(zip(lds.carve(*CARVED, start=start), CARVED, strict=True)):
            place = fx.min(lane, Int32(count - 1))
            array.store(converted(kind, place + (number * 16 + 1)), place)
        gpu.barrier()
        four = whole.load(lane * 4, 4)
        for i in range(4):
            store(Int32, four[i], dst, lane * 4 + i)

    return micro(carved)


@micro
def lds_vectors(src, dst):
    """Vectors of two kinds to LDS and back, through arrays that lie over each other."""
    lane = fx.thread_idx.x
    lds = memory.Lds(memory.lds_base(LDS_ROOM), LDS_ROOM)
    (wide,), (narrow,) = lds.carve((Int32, 256)), lds.carve((BF16, 512))
    wide.store(load(Int32, src, lane * 4, 4), lane * 4)
    gpu.barrier()
    eight = narrow.load((lane ^ 1) * 8, 8)
    store(BF16, eight, dst, lane * 8)
    store(BF16, narrow.load(lane), dst, lane + 512)


@micro
def uniforms(src, dst):
    lane = fx.thread_idx.x
    small, large = wave.uniform(get(src, 0)), wave.uniform64(load(Int64, src + 256, lane))
    store(Int64, large + Int64(lane), dst, lane)
    varied, chosen = get(src, 3), wave.uniform(get(src, 4))
    rows = [small + lane, wave.lane_value(varied, 0), wave.lane_value(varied, 63), wave.lane_value(varied, chosen)]
    give(dst + 512, rows)


@micro
def not_uniform(src, dst):
    give(dst, [wave.uniform(get(src, 0))])


@micro
def ballots(src, dst):
    a, b = get(src, 0), get(src, 1)
    for row, vote in enumerate([a < b, a == a, a != a]):
        votes = wave.ballot(vote)
        give(dst + row * 512, [Int32(votes), Int32(votes >> Int64(32))])


@micro
def turns(src, dst):
    """DPP of an Int32 and of an fp32."""
    a, x = get(src, 0), get(src, 1, F32)
    give(dst, [*(wave.dpp(a, control) for control in CONTROLS), *(wave.dpp(x, control) for control in wave.NEAR)])


@micro
def swaps(src, dst):
    a, b = get(src, 0), get(src, 1)
    give(dst, [*wave.swap(16, a, b), *wave.swap(32, a, b), *wave.swap(16, a, a), *wave.swap(32, a, a)])


@micro
def butterflies(src, dst):
    x = get(src, 0, F32)
    give(dst, [wave.bfly32(x), wave.bfly64(x), wave.bfly32(x, fx.max), wave.bfly64(x, fx.max)])


@micro
def sums(src, dst):
    a = [get(src, row, F32) for row in range(4)]
    give(dst, [floats.sum4(a), floats.in_order(a[:1]), floats.in_order([*a, *a[:2]]), floats.from_zero(a)])
    give(dst + 1024, [floats.from_zero(a[:1])])


@micro
def functions(src, dst):
    x = get(src, 0, F32)
    rows = [floats.exp2(x), floats.rsq(x), floats.exp(x), floats.sigmoid(x)]
    give(dst, [*rows, floats.rms_scale(x, 7168, 1e-5), floats.rms_scale(x, 128, 1e-6)])


@micro
def narrowed(src, dst):
    a = [get(src, row, F32) for row in range(4)]
    packed = floats.bf16_words(a)
    give(dst, [floats.rnd(a[0]), packed[0], packed[1]])


@micro
def widened(src, dst):
    pair = Vector.from_elements([get(src, 0), get(src, 1)], Int32)
    give(dst, [*floats.from_words(pair, 2), floats.low_bf16(get(src, 0))])


@micro
def product(src, dst):
    """A [16, 32] and B^T [16, 32] in bf16, then C [16, 16] in fp32: C + A B, then A B alone."""
    lane = fx.thread_idx.x
    row, part = lane & 15, lane >> 4
    a, b = (load(BF16, src, row * 32 + part * 8 + m * 512, 8) for m in (0, 1))
    c = Vector.from_elements([load(F32, src, (part * 4 + i) * 16 + row + 512) for i in range(4)], F32)
    for number, start in enumerate((c, matrix.zero_tile())):
        d = matrix.mma_bf16(a, b, start)
        for i in range(4):
            store(F32, d[i], dst, (part * 4 + i) * 16 + row + number * 256)


@micro
def fp8(src, dst):
    give(dst, [narrow.fp8_word([get(src, row, F32) for row in range(4)])])


@micro
def mxfp4(src, dst):
    """A block of 16 bf16 pairs a lane: its code, then its 4 words."""
    pairs = [get(src, row) for row in range(16)]
    code = narrow.even_code(pairs)
    packed = narrow.fp4_words(pairs, code)
    give(dst, [code, *(packed[i] for i in range(4))])


@micro
def scaled_product(src, dst):
    """A B^T of 16 x 128 E2M1 matrices of 64 bytes a row; then their E8M0 codes, 4 words a row."""
    lane = fx.thread_idx.x
    row, part = lane & 15, lane >> 4
    a, b = (load(Int32, src, row * 16 + part * 4 + m * 256, 4) for m in (0, 1))
    scales = [load(Int32, src, row * 4 + part + 512 + m * 64) for m in (0, 1)]
    d = matrix.mma_scaled(a, b, matrix.zero_tile(), *scales)
    for i in range(4):
        store(F32, d[i], dst, (part * 4 + i) * 16 + row)


@micro
def disarming(src, dst):
    give(dst, [peers.disarmed(get(src, 0))])
