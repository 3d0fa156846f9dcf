"""Kernels of one wave, one for each kind of operation: they read rows of 64 words and write rows of 64 words."""

import flydsl._mlir.dialects.rocdl as raw
import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm
from flydsl.expr import gpu, rocdl
from flydsl.expr.typing import Int32, Int64, T, Vector

from tests.sim.kernels import at, resource

F32, BF16, I8, I16 = fx.Float32, fx.BFloat16, fx.Int8, fx.Int16
LANES = 64
DPP_CONTROLS = (0xB1, 0x4E, 0x1B, 0x141, 0x140, 0x111, 0x103, 0x124, 0x12F, 0x142, 0x143, 0x130, 0x138)
XOR_DISTANCES = (1, 2, 4, 8, 16, 32, 3, 7, 15)


def micro(body, threads=LANES, groups=1):
    """A launcher of `body(src, dst)`, which must be straight-line code."""

    @flyc.kernel(name=body.__name__, known_block_size=[threads, 1, 1])
    def kernel(src: Int64, dst: Int64):
        body(src, dst)

    @flyc.jit
    def launcher(src: Int64, dst: Int64):
        kernel(src, dst).launch(grid=(groups,), block=(threads,))

    return launcher


def get(src, row, kind=Int32):
    """This lane's word of a row."""
    return kind(fx.ptr_load(at(kind, src) + (row * LANES + fx.thread_idx.x)))


def put(dst, rows):
    """Write values, one row each: i32, or what has 32 bits."""
    for row, value in enumerate(rows):
        word = value if isinstance(value, Int32) else value.bitcast(Int32)
        fx.ptr_store(word, at(Int32, dst) + (row * LANES + fx.thread_idx.x))


def value_of(x):
    return x.ir_value() if hasattr(x, "ir_value") else x


@micro
def integers(src, dst):
    a, b = get(src, 0), get(src, 1)
    low = b & 31
    ua, ub = fx.Uint32(a), fx.Uint32(b)
    put(dst, [a + b, a - b, a * b, a & b, a | b, a ^ b, a << low, a >> low, Int32(ua >> fx.Uint32(low))])
    more = [a // b, a % b, Int32(ua // ub), Int32(ua % ub), fx.min(a, b), fx.max(a, b)]
    more += [(a < b).select(a, b), (ua < ub).select(a, b), (a == b).select(Int32(1), Int32(2)), -a]
    put(dst + 9 * LANES * 4, more)


@micro
def long_integers(src, dst):
    a, b = Int64(get(src, 0)), Int64(get(src, 1))
    for row, value in enumerate([a * b, a + (b << Int64(31)), (a * b) >> Int64(17), a - b]):
        fx.ptr_store(value, at(Int64, dst) + (row * LANES + fx.thread_idx.x))


@micro
def floats(src, dst):
    a, b = get(src, 0, F32), get(src, 1, F32)
    put(dst, [a + b, a - b, a * b, a / b, fx.max(a, b), fx.min(a, b), -a, fx.fma(a, b, a)])
    put(dst + 8 * LANES * 4, [(compare).select(Int32(1), Int32(0)) for compare in (a < b, a <= b, a == b, a != b)])


@micro
def small_floats_to_integers(src, dst):
    a = get(src, 0, F32)
    put(dst, [a.to(Int32), Int32(a.to(Int64)), get(src, 1).to(F32)])


@micro
def vectors(src, dst):
    a, b = get(src, 0), get(src, 1)
    pair = Vector.from_elements([a, b], Int32)
    halves = pair.bitcast(I16)
    turned = Vector.from_elements([halves[3], halves[0], halves[1], halves[2]], I16).bitcast(Int32)
    octets = pair.bitcast(I8)
    wide = pair.bitcast(Int64)[0]
    mixed = Vector.from_elements([octets[i] for i in (7, 0, 6, 1)], I8).bitcast(Int32)
    shuffled = pair.shuffle(Vector.from_elements([b, a], Int32), [3, 1])
    put(dst, [turned[0], turned[1], mixed[0], Int32(wide >> Int64(16)), shuffled[0], shuffled[1]])


@micro
def bf16_conversions(src, dst):
    word = get(src, 0)
    rounded = Vector.from_elements([word.bitcast(F32)], F32).to(BF16).bitcast(I16)[0]
    widened = get(src, 1).bitcast(F32)
    pair = Vector.from_elements([get(src, 1)], Int32).bitcast(BF16)
    put(dst, [Int32(rounded) & 0xFFFF, pair[0].to(F32), pair[1].to(F32), (pair[0] + pair[1]).to(F32), widened])


@micro
def bf16_moves(src, dst):
    """Half-words moved without a float operation."""
    lane = fx.thread_idx.x
    one = fx.ptr_load(at(BF16, src) + lane)
    fx.ptr_store(one, at(BF16, dst) + lane)
    four = fx.ptr_load(at(BF16, src) + lane * 4, fx.BFloat16x4)
    fx.ptr_store(Vector.from_elements([four[i] for i in (3, 2, 1, 0)], BF16), at(BF16, dst) + (64 + lane * 4))
    half = BF16(rocdl.raw_ptr_buffer_load(BF16.ir_type, resource(src), lane * 2, Int32(0), aux=0))
    fx.ptr_store(half, at(BF16, dst) + (320 + lane))


def dpp(x, old, control, rows=0xF, banks=0xF, bound=True):
    held = value_of(x)
    return Int32(raw.update_dpp(held.type, value_of(old), held, control, rows, banks, bound))


@micro
def dpp_patterns(src, dst):
    a, old = get(src, 0), get(src, 1)
    moved = [dpp(a, old, control) for control in DPP_CONTROLS]
    kept = [dpp(a, old, control, bound=False) for control in DPP_CONTROLS]
    put(dst, [*moved, *kept, dpp(a, old, 0xB1, rows=0x5), dpp(a, old, 0xB1, banks=0x3)])


def swap(op, a, b):
    pair = ir.Type.parse("!llvm.struct<(i32, i32)>")
    both = op(pair, value_of(a), value_of(b), False, False)
    return [Int32(llvm.extractvalue(T.i32, both, [place])) for place in (0, 1)]


@micro
def crossing(src, dst):
    a, b = get(src, 0), get(src, 1)
    rows = [*swap(raw.permlane16_swap, a, b), *swap(raw.permlane32_swap, a, b)]
    rows += [Int32(rocdl.ds_bpermute(T.i32, b * 4, a)), Int32(rocdl.readfirstlane(T.i32, Int32(77)))]
    rows += [Int32(rocdl.readlane(T.i32, a, Int32(5)))]
    votes = Int64(rocdl.ballot(T.i64, a < b))
    put(dst, [*rows, Int32(votes), Int32(votes >> Int64(32))])


@micro
def xor_shuffles(src, dst):
    a = get(src, 0)
    put(dst, [gpu.shuffle_xor(a, distance, LANES) for distance in XOR_DISTANCES])


@micro
def other_shuffles(src, dst):
    a, b = get(src, 0), get(src, 1)
    put(dst, [gpu.shuffle_up(a, 3, LANES), gpu.shuffle_down(a, 5, LANES), gpu.shuffle_idx(a, b, LANES)])


@micro
def not_uniform(src, dst):
    put(dst, [Int32(rocdl.readfirstlane(T.i32, get(src, 0)))])


@fx.struct
class Octets:
    row: fx.Array[fx.Int8, 1088, 16]


@fx.struct
class Words:
    row: fx.Array[fx.Int32, 256, 16]


@micro
def unaligned_lds(src, dst):
    """16 bytes at any byte of LDS, as the hardware's unaligned mode allows."""
    row, lane = fx.SharedAllocator().allocate(Octets).row.peek(), fx.thread_idx.x
    word = Vector.from_elements([get(src, row) for row in range(4)], Int32).bitcast(I8)
    fx.ptr_store(word, row.ptr + lane * 16)
    fx.ptr_store(Vector.from_elements([Int32(0)], Int32).bitcast(I8), row.ptr + (1024 + lane % 16 * 4))
    gpu.barrier()
    moved = fx.ptr_load(row.ptr + lane * 15, fx.Int8x16).bitcast(Int32)
    gpu.barrier()
    put(dst, [moved[i] for i in range(4)])


def buffer_load(kind, src, offset, policy=0, nbytes=None):
    return rocdl.raw_ptr_buffer_load(kind, resource(src, nbytes), Int32(offset), Int32(0), aux=policy)


@micro
def buffer_loads(src, dst):
    lane = fx.thread_idx.x
    small = [Int32(I8(buffer_load(T.i8, src, lane))), Int32(I16(buffer_load(T.i16, src, lane * 2)))]
    half = BF16(buffer_load(BF16.ir_type, src, lane * 2)).to(F32)
    rows = [*small, half, Int32(buffer_load(T.i32, src, lane * 4))]
    for count in (2, 3, 4):
        vector = Vector(buffer_load(T.vec(count, T.i32), src, lane * 4), dtype=Int32)
        rows += [vector[i] for i in range(count)]
    put(dst, rows)


@micro
def clipped_buffer(src, dst):
    """A buffer that ends within a lane's vector: its dwords past the end are 0, and stores there are dropped."""
    lane = fx.thread_idx.x
    vector = Vector(buffer_load(T.vec(4, T.i32), src, lane * 16, nbytes=408), dtype=Int32)
    put(dst, [vector[i] for i in range(4)])
    target = resource(dst + 4 * LANES * 4, 408)
    policy = ir.IntegerAttr.get(T.i32, 0)
    raw.raw_ptr_buffer_store(value_of(vector + 1), target, value_of(Int32(lane * 16)), value_of(Int32(0)), aux=policy)


@micro
def buffer_to_lds(src, dst):
    row, lane = fx.SharedAllocator().allocate(Words).row.peek(), fx.thread_idx.x
    target = row.ptr.llvm_ptr
    rocdl.raw_ptr_buffer_load_lds(resource(src), target, Int32(16), lane * 16, Int32(0), Int32(0), 0)
    rocdl.s_waitcnt(vmcnt=0)
    gpu.barrier()
    put(dst, [row[lane * 4 + i] for i in range(4)])


@micro
def pointer_table(src, dst):
    """Each lane reads through the entry of a table of addresses that its number picks."""
    lane = fx.thread_idx.x
    peer = fx.ptr_load(at(Int64, src) + lane % 3)
    fx.ptr_store(fx.ptr_load(at(Int32, peer) + lane), at(Int32, dst) + lane)


@micro
def atomics(src, dst):
    """Counters in dst: sum, maximum, minimum, bits, float sum; then who was first to change a word from 0."""
    lane, a = fx.thread_idx.x, get(src, 0)
    words = at(Int32, dst)
    before = fx.atomic_add(words, a)
    fx.atomic_max(words + 1, a)
    fx.atomic_min(words + 2, a)
    fx.atomic_or(words + 3, a)
    fx.atomic_xor(words + 4, a)
    fx.atomic_add(at(F32, dst) + 5, a.to(F32))
    found, _ = fx.atomic_cas(words + 6 + lane % 2, Int32(0), lane + 1)
    put(dst + 64 * 4, [Int32(before), Int32(found)])


@micro
def fp8_conversions(src, dst):
    a, b = get(src, 0, F32), get(src, 1, F32)
    word = Int32(rocdl.cvt_pk_fp8_f32(T.i32, a, b, Int32(0x55667788), False))
    word = Int32(rocdl.cvt_pk_fp8_f32(T.i32, b, a, word, True))
    back = [
        Vector(rocdl.cvt_pk_f32_fp8(T.f32x2, get(src, 2), half), dtype=F32)[i] for half in (False, True) for i in (0, 1)
    ]
    one = F32(raw.cvt_f32_fp8(T.f32, value_of(get(src, 2)), 2))
    put(dst, [word, *back, one])


@micro
def fp4_conversions(src, dst):
    a, b, scale = get(src, 0, F32), get(src, 1, F32), get(src, 3, F32)
    word = Int32(0x76543210)
    for place in (1, 3):
        word = Int32(rocdl.cvt_scalef32_pk_fp4_f32(T.i32, word, a, b, scale, place))
    pair = Vector.from_elements([a, b], F32).to(BF16)
    packed = Int32(raw.cvt_scalef32_pk_fp4_bf16(T.i32, value_of(Int32(0)), value_of(pair), value_of(scale), 2))
    codes = get(src, 2)
    wide = Vector(rocdl.cvt_scalef32_pk_f32_fp4(T.f32x2, codes, scale, 3), dtype=F32)
    half = Vector(rocdl.cvt_scalef32_pk_bf16_fp4(T.bf16x2, codes, scale, 1), dtype=BF16).bitcast(Int32)
    put(dst, [word, packed, wide[0], wide[1], half[0]])


@micro
def mfma_bf16(src, dst):
    """C + A B^T of 16 x 32 bf16 matrices: A, then B; C in float32 comes after."""
    lane = fx.thread_idx.x
    row, part = lane & 15, lane >> 4
    a, b = (fx.ptr_load(at(BF16, src) + (m * 512 + row * 32 + part * 8), fx.BFloat16x8) for m in (0, 1))
    c = [fx.ptr_load(at(F32, src) + (512 + (part * 4 + i) * 16 + row)) for i in range(4)]
    acc = Vector.from_elements(c, F32)
    acc = Vector(rocdl.mfma_f32_16x16x32_bf16(T.f32x4, [a, b, acc, 0, 0, 0]), dtype=F32)
    for i in range(4):
        fx.ptr_store(acc[i], at(F32, dst) + ((part * 4 + i) * 16 + row))


@micro
def mfma_fp4(src, dst):
    """A B^T of 16 x 128 E2M1 matrices of 64 bytes a row, E8M0 scales for 32 slots: A, B, scales of A, of B."""
    lane = fx.thread_idx.x
    row, part = lane & 15, lane >> 4
    a, b = (fx.ptr_load(at(Int32, src) + (m * 256 + row * 16 + part * 4), fx.Int32x4) for m in (0, 1))
    scales = [Int32(fx.ptr_load(at(I8, src) + (2048 + m * 64 + row * 4 + part))) & 255 for m in (0, 1)]
    zero = Vector.filled(4, 0.0, F32)
    operands = [a, b, zero, 4, 4, 1, scales[0] << 8, 2, scales[1] << 16]
    acc = Vector(rocdl.mfma_scale_f32_16x16x128_f8f6f4(T.f32x4, operands), dtype=F32)
    for i in range(4):
        fx.ptr_store(acc[i], at(F32, dst) + ((part * 4 + i) * 16 + row))


@micro
def unknown_operations(src, dst):
    """Two operations that no simulator of this machine needs."""
    a = get(src, 0, F32)
    sine = F32(raw.sin(T.f32, value_of(a)))
    cosine = F32(raw.cos(T.f32, value_of(sine)))
    put(dst, [cosine])
