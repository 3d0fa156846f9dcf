"""Hardware registers, bit fields and byte permutes, sums over a wave, and the assembly lines FlyDSL writes itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from k3lab.formats import bf16_bits
from k3lab.lowering.ir import Op
from k3lab.sim.semantics.casts import clamped, widener
from k3lab.sim.semantics.context import WAVE, WaveContext
from k3lab.sim.semantics.registry import Compute, Unsupported, pure, wave
from k3lab.sim.semantics.values import Array, dtype_of, signed, unsigned

XCC_ID = 20
DIES = 8  # to which workgroups go in turn

U32 = np.uint32


@wave("llvm.amdgcn.s.getreg")
def getreg(op: Op) -> Compute:
    """A field of the hardware register XCC_ID: the number of the workgroup modulo the dies. Others are refused."""

    def run(ctx: WaveContext, field: Array) -> Array:
        code = int(field.flat[0])
        register, first, width = code & 0x3F, code >> 6 & 0x1F, (code >> 11 & 0x1F) + 1
        if register != XCC_ID:
            raise Unsupported(f"hardware register {register}")
        x, y, z = (axis.astype(np.int64) for axis in ctx.block_xyz)
        number = (z * ctx.grid[1] + y) * ctx.grid[0] + x
        return np.asarray((number % DIES) >> first & ((1 << width) - 1), np.int32)

    return run


@pure("llvm.amdgcn.perm")
def perm(op: Op) -> Compute:
    """Four bytes, each picked by a byte of the selector.

    0 .. 3 pick from the second word, 4 .. 7 from the first, 8 .. 11 give the sign of a 16-bit half (of the second word,
    then of the first) in all bits, 12 gives 0, and more than that 0xFF.
    """

    def run(high: Array, low: Array, selector: Array) -> Array:
        shape = np.broadcast_shapes(high.shape, low.shape, selector.shape)
        words = [np.broadcast_to(x, shape).astype(np.int32, order="C") for x in (low, high, selector)]
        octets = np.concatenate([word[..., None].view(np.uint8) for word in words[:2]], axis=-1)
        signs = np.where(octets[..., 1::2] & 0x80, np.uint8(255), np.uint8(0))
        table = np.concatenate([octets, signs, np.zeros((*shape, 1), np.uint8)], axis=-1)
        picks = words[2][..., None].view(np.uint8).astype(np.int64)
        found = np.take_along_axis(table, np.minimum(picks, 12), axis=-1)
        return np.where(picks > 12, np.uint8(255), found).view(np.int32)[..., 0]

    return run


@pure("llvm.amdgcn.ubfe", "llvm.amdgcn.sbfe")
def bit_field(op: Op) -> Compute:
    """`width` bits from `first` on, zero- or sign-extended; amounts are taken modulo 32, no bits are 0."""
    fill_sign = "sbfe" in str(op.attrs["intrin"])
    _only_i32(op)

    def run(value: Array, first: Array, width: Array) -> Array:
        spare = np.int32(32) - (width & 31)
        moved = value >> (first & 31) if fill_sign else signed(unsigned(value) >> unsigned(first & 31))
        high = moved << (spare & 31)
        field = high >> (spare & 31) if fill_sign else signed(unsigned(high) >> unsigned(spare & 31))
        return np.where(width & 31 == 0, np.int32(0), field)

    return run


@pure("llvm.amdgcn.alignbit", "llvm.amdgcn.alignbyte")
def align(op: Op) -> Compute:
    """The low word of two side by side, shifted right by bits (modulo 32) or bytes (modulo 4)."""
    _only_i32(op)
    by_bytes = "alignbyte" in str(op.attrs["intrin"])

    def run(high: Array, low: Array, amount: Array) -> Array:
        step = unsigned((amount & 3) << 3 if by_bytes else amount & 31).astype(np.uint64)
        wide = unsigned(high).astype(np.uint64) << np.uint64(32) | unsigned(low)
        return (wide >> step).astype(U32).view(np.int32)

    return run


@pure("llvm.amdgcn.mul.u24")
def product_24(op: Op) -> Compute:
    """The low 32 bits of the product of the low 24 bits."""
    _only_i32(op)
    return lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)


def _only_i32(op: Op) -> None:
    if dtype_of(op.operand_types[0]) != np.int32:
        raise Unsupported("other than i32")


# -- over a wave -------------------------------------------------------------------------------------------------------

NEUTRAL: dict[str, tuple[Callable[..., Any], int, bool]] = {
    "add": (np.add, 0, False),
    "and": (np.bitwise_and, -1, False),
    "or": (np.bitwise_or, 0, False),
    "xor": (np.bitwise_xor, 0, False),
    "umin": (np.minimum, -1, True),
    "umax": (np.maximum, 0, True),
    "min": (np.minimum, 2**31 - 1, False),
    "max": (np.maximum, -(2**31), False),
}
"""How a reduction combines, what it takes for lanes that are not active, and whether it is one of unsigned numbers."""

REDUCE = "llvm.amdgcn.wave.reduce."


@wave(*(REDUCE + name for name in NEUTRAL))
def wave_reduce(op: Op) -> Compute:
    """The active lanes' values combined, in every lane; the second operand only says how."""
    _only_i32(op)
    name = str(op.attrs["intrin"]).removeprefix(REDUCE).split(".")[0]
    combine, neutral, as_unsigned = NEUTRAL[name]

    def run(ctx: WaveContext, value: Array, *_: Array) -> Array:
        waves = value.shape[0] if ctx.mask is None else ctx.n
        lanes = np.broadcast_to(value, (waves, WAVE))
        if ctx.mask is not None:
            lanes = np.where(ctx.mask, lanes, np.int32(neutral))
        lanes = unsigned(np.ascontiguousarray(lanes)) if as_unsigned else lanes
        reduced = combine.reduce(lanes, axis=1, dtype=lanes.dtype, keepdims=True)  # type: ignore[attr-defined]
        return signed(reduced) if as_unsigned else np.asarray(reduced)

    return run


# -- saturating conversion ---------------------------------------------------------------------------------------------


@pure("llvm.intr.fptosi.sat", "llvm.intr.fptoui.sat")
def saturating(op: Op) -> Compute:
    """Truncated toward zero; out of range the nearest end of it, 0 for NaN."""
    target = dtype_of(op.result_types[0].scalar)
    wanted = target if "fptosi" in op.name else unsigned(np.zeros(1, target)).dtype
    widen = widener(op.operand_types[0].scalar)
    return lambda x: clamped(widen(x), wanted).view(target)


# -- assembly ----------------------------------------------------------------------------------------------------------


def _packed_bf16(first: Array, second: Array) -> Array:
    low, high = (bf16_bits(x).astype(U32) for x in (first, second))
    return (low | high << U32(16)).view(np.int32)


def _sixteenths(word: Array) -> Array:
    return np.asarray((word << 28 >> 28).astype(np.float32) / np.float32(16))


ASSEMBLY: dict[str, Compute] = {
    "v_cvt_pk_bf16_f32 $0, $1, $2": _packed_bf16,
    "v_cvt_off_f32_i4 $0, $1": _sixteenths,
    **{
        f"v_cvt_off_f32_i4_sdwa $0, $1 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_{place}": (
            lambda word, shift=8 * place: _sixteenths(word >> shift)
        )
        for place in range(4)
    },
}
"""The lines of assembly that FlyDSL's helpers write."""


@pure("llvm.inline_asm")
def inline_assembly(op: Op) -> Compute:
    """A known line of assembly; an empty one that ties its result to its operand gives that."""
    text = str(op.attrs.get("asm_string", "")).strip()
    if text in ASSEMBLY:
        return ASSEMBLY[text]
    if not text and len(op.results) == len(op.operands) == 1 and op.operand_types == op.result_types:
        return lambda value: value
    raise Unsupported(f"assembly {text!r}")
