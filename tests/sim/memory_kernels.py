"""Kernels of one wave for rarer accesses and operations, as in `micro_kernels`."""

import flydsl._mlir.dialects.rocdl as raw
import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm
from flydsl.expr import gpu, rocdl
from flydsl.expr.typing import Int32, Int64, T, Vector

from tests.sim.kernels import at, resource
from tests.sim.micro_kernels import BF16, F32, I16, LANES, Words, get, micro, put, value_of

ORDER, SYSTEM = fx.AtomicOrdering, ""
MATH = ("exp2", "log", "rsq", "rcp", "sqrt")


def intrinsic(kind, name, *operands):
    return llvm.call_intrinsic(kind, f"llvm.amdgcn.{name}", [value_of(x) for x in operands], [], [])


@micro
def generic_accesses(src, dst):
    """Volatile, non-temporal, and atomic loads and stores of system scope."""
    lane = fx.thread_idx.x
    a = fx.generic_load(at(Int32, src) + lane, volatile=True)
    b = fx.generic_load(at(Int32, src) + (64 + lane), nontemporal=True)
    c = fx.generic_load(at(Int64, src) + (64 + lane), memory_order=ORDER.Monotonic, syncscope=SYSTEM)
    put(dst, [Int32(a), Int32(b)])
    fx.generic_store(at(Int64, dst) + (64 + lane), Int64(c), memory_order=ORDER.Release, syncscope=SYSTEM)


@micro
def order_and_time(src, dst):
    """Hints and waits, which change nothing, and the clock, which does not go back."""
    before = Int64(intrinsic(T.i64, "s.memrealtime"))
    raw.s_setprio(1)
    rocdl.sched_barrier(0)
    rocdl.s_sleep(2)
    rocdl.s_waitcnt(vmcnt=0)
    rocdl.s_waitcnt(lgkmcnt=0)
    raw.s_setprio(0)
    after = Int64(intrinsic(T.i64, "s.memtime"))
    die = Int32(intrinsic(T.i32, "s.getreg", Int32(20 | (31 << 11))))
    size = Int32(raw.wavefrontsize(T.i32))
    identity = [fx.thread_idx.y, fx.thread_idx.z, fx.block_idx.y, fx.block_idx.z, fx.lane_id()]
    put(dst, [(after >= before).select(Int32(1), Int32(0)), die, size, *map(Int32, identity)])


@micro
def buffer_intrinsics(src, dst):
    """A vector moved by the intrinsics' own names, and words by a scalar load."""
    lane, zero = fx.thread_idx.x, Int32(0)
    vector = intrinsic(T.i32x4, "raw.ptr.buffer.load.v4i32", resource(src, 1000), lane * 16, zero, Int32(17))
    intrinsic(None, "raw.ptr.buffer.store.v4i32", vector, resource(dst), lane * 16, zero, Int32(17))
    table = rocdl.make_buffer_ptr(at(Int32, src), 260)
    four, one = rocdl.s_buffer_load(table, Int32(62), count=4), rocdl.s_buffer_load(table, Int32(5))
    put(dst + 1024, [four[0], four[1], four[2], four[3], one])


@micro
def clipped_buffer_to_lds(src, dst):
    """Lanes past the buffer's end find 0; bytes past those that were loaded are not touched."""
    row, lane = fx.SharedAllocator().allocate(Words).row.peek(), fx.thread_idx.x
    for i in range(4):
        row[lane + i * 64] = Int32(-1)
    gpu.barrier()
    rocdl.raw_ptr_buffer_load_lds(resource(src, 40 * 4), row.ptr.llvm_ptr, Int32(4), lane * 4, Int32(0), Int32(16), 0)
    rocdl.s_waitcnt(vmcnt=0)
    gpu.barrier()
    put(dst, [row[lane + i * 64] for i in range(2)])


@micro
def global_to_lds(src, dst):
    row, lane = fx.SharedAllocator().allocate(Words).row.peek(), fx.thread_idx.x
    source = (at(Int32, src) + (63 - lane)).llvm_ptr
    raw.global_load_lds(source, row.ptr.llvm_ptr, 4, 0, aux=ir.IntegerAttr.get(T.i32, 0))
    rocdl.s_waitcnt(vmcnt=0)
    gpu.barrier()
    put(dst, [row[lane]])


@micro
def generic_lds(src, dst):
    """Through a generic pointer: LDS in the odd lanes, global memory in the even ones."""
    row, lane = fx.SharedAllocator().allocate(Words).row.peek(), fx.thread_idx.x
    row[lane] = get(src, 0) + 1000
    gpu.barrier()
    generic = ir.Type.parse("!llvm.ptr")
    local = llvm.addrspacecast(generic, (row.ptr + lane).llvm_ptr)
    distant = llvm.addrspacecast(generic, (at(Int32, src) + lane).llvm_ptr)
    mixed = llvm.select(value_of(lane % 2 == 1), local, distant)
    got = Int32(llvm.load(T.i32, mixed))
    llvm.store(value_of(got * 2), mixed)
    put(dst, [got, row[lane]])


@micro
def private_memory(src, dst):
    """Every lane's own four words, picked by its number."""
    lane = fx.thread_idx.x
    private = ir.Type.parse("!llvm.ptr<5>")
    base = llvm.alloca(private, value_of(Int32(4)), T.i32)
    dynamic = ir.DenseI32ArrayAttr.get([-(2**31)])

    def word(index):
        return llvm.getelementptr(private, base, [value_of(index)], dynamic, T.i32, 0)

    for i in range(4):
        llvm.store(value_of(get(src, i)), word(Int32(i)))
    put(dst, [Int32(llvm.load(T.i32, word((lane + i) % 4))) for i in range(2)])


@micro
def packed_atomics(src, dst):
    """Pairs of bf16 added: through a pointer, then in a buffer; then a comparison in a buffer."""
    pair = Vector.from_elements([get(src, 0)], Int32).bitcast(BF16)
    words = at(Int32, dst)
    llvm.atomicrmw(ir.Attribute.parse("11 : i64"), (words + 0).llvm_ptr, value_of(pair), ir.Attribute.parse("2 : i64"))
    buffer, zero = resource(dst, 12), value_of(Int32(0))
    policy = ir.IntegerAttr.get(T.i32, 0)
    for place in (4, 12):  # the second one is beyond the end
        raw.raw_ptr_buffer_atomic_fadd(
            T.f32, value_of(get(src, 1, F32)), buffer, value_of(Int32(place)), zero, aux=policy
        )
    lane = fx.thread_idx.x
    found = raw.raw_ptr_buffer_atomic_cmpswap(
        T.i32, value_of(lane + 1), value_of(lane), buffer, value_of(Int32(8)), zero, aux=policy
    )
    put(dst + 256, [Int32(found)])


@micro
def hardware_functions(src, dst):
    put(dst, [F32(getattr(raw, name)(T.f32, value_of(get(src, 0, F32)))) for name in MATH])


@micro
def bytes_and_fields(src, dst):
    a, b = get(src, 0), get(src, 1)
    rows = [rocdl.perm_b32(a, b, get(src, 2))]
    rows += [intrinsic(T.i32, name, a, b & 15, Int32(9)) for name in ("ubfe.i32", "sbfe.i32")]
    rows += [intrinsic(T.i32, name, a, b, get(src, 2)) for name in ("alignbit", "alignbyte")]
    rows += [rocdl.cvt_pk_bf16_f32(get(src, 3, F32), get(src, 4, F32)), rocdl.cvt_off_f32_i4(a, 2)]
    rows += [intrinsic(T.i32, f"wave.reduce.{name}", a, Int32(0)) for name in ("umax", "umin")]
    put(dst, [x if isinstance(x, (Int32, F32)) else (F32 if x.type == T.f32 else Int32)(x) for x in rows])


def mixed_mfma(select_a, select_b):
    @micro
    def mfma_mixed(src, dst):
        """A B^T of 16 x 128: fp8 rows of 128 bytes, E2M1 rows of 64, then a word of scales a row and block each."""
        lane = fx.thread_idx.x
        row, part = lane & 15, lane >> 4
        a = fx.ptr_load(at(Int32, src) + (row * 32 + part * 8), fx.Int32x4)
        more = fx.ptr_load(at(Int32, src) + (row * 32 + part * 8 + 4), fx.Int32x4)
        a = Vector.from_elements([*(a[i] for i in range(4)), *(more[i] for i in range(4))], Int32)
        b = fx.ptr_load(at(Int32, src) + (512 + row * 16 + part * 4), fx.Int32x4)
        scales = [Int32(fx.ptr_load(at(Int32, src) + (768 + m * 64 + row * 4 + part))) for m in (0, 1)]
        operands = [a, b, Vector.filled(4, 0.0, F32), 0, 4, select_a, scales[0], select_b, scales[1]]
        acc = Vector(rocdl.mfma_scale_f32_16x16x128_f8f6f4(T.f32x4, operands), dtype=F32)
        for i in range(4):
            fx.ptr_store(acc[i], at(F32, dst) + ((part * 4 + i) * 16 + row))

    return mfma_mixed


@micro
def scaled_fp8(src, dst):
    """Pairs of bf16 to fp8 and back with a scale, by both halves of a word."""
    pair, scale = Vector.from_elements([get(src, 0)], Int32).bitcast(BF16), get(src, 1, F32)
    old = Vector.from_elements([Int32(0x11223344)], Int32).bitcast(I16)
    kind = ir.Type.parse("vector<2xi16>")
    packed = [
        raw.cvt_scalef32_pk_fp8_bf16(kind, value_of(old), value_of(pair), value_of(scale), half)
        for half in (False, True)
    ]
    words = [Vector(x, dtype=I16).bitcast(Int32)[0] for x in packed]
    codes = value_of(get(src, 2))
    wide = [
        Vector(raw.cvt_scalef32_pk_bf16_fp8(T.bf16x2, codes, value_of(scale), half), dtype=BF16).bitcast(Int32)[0]
        for half in (False, True)
    ]
    put(dst, [*words, *wide])


assert LANES == 64
