"""What is supported, what is refused and how, and which operand values are poison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from k3lab.lowering.ir import Block, Kernel, Loc, Op
from k3lab.sim.decode import access
from k3lab.sim.decode.intrinsics import canonical
from k3lab.sim.decode.program import BARRIERS, SILENT, TERMINATORS
from k3lab.sim.semantics import (
    HANDLED_BY_ENGINE,
    NO_EFFECT,
    find,
    handled_by_engine,
    lookup,
    poison_check,
    supported_names,
    unsupported,
)
from tests.sim.test_semantics_kit import op, row


def at(line: int, made: Op) -> Op:
    return Op(
        made.name, made.results, made.operands, made.result_types, made.operand_types, made.attrs, (), Loc("k.py", line)
    )


def test_unsupported_lists_everything_with_its_place() -> None:
    ops = (
        at(1, op("llvm.add", "(i32, i32) -> i32")),
        at(2, op("llvm.intr.sin", "(f32) -> f32")),
        at(3, op("llvm.add", "(i128, i128) -> i128")),
        at(4, op("llvm.load", "(!llvm.ptr<1>) -> i32")),
        at(5, op("llvm.call_intrinsic", "() -> i64", intrin="llvm.amdgcn.s.memrealtime")),
        at(6, op("llvm.call_intrinsic", "(f32) -> f32", intrin="llvm.amdgcn.sin.f32")),
        at(7, op("llvm.inline_asm", "() -> void")),
        at(8, op("rocdl.sched.barrier", "() -> void")),
        at(9, op("llvm.call_intrinsic", "(f32) -> f32", intrin="llvm.amdgcn.rsq.f32")),
    )
    kernel = Kernel("k", (Block("bb0", (), ops[:4]), Block("bb1", (), ops[4:])), {})
    listed = [(what, str(loc)) for what, loc in unsupported(kernel)]
    assert listed == [
        ("llvm.intr.sin", "k.py:2:0"),
        ("llvm.add (no values of type i128)", "k.py:3:0"),
        ("llvm.call_intrinsic llvm.amdgcn.sin.f32", "k.py:6:0"),
        ("llvm.inline_asm (assembly '')", "k.py:7:0"),
    ]


def test_names() -> None:
    assert lookup("llvm.fadd").kind == "pure"  # type: ignore[union-attr]
    assert lookup("rocdl.ds_bpermute").kind == "wave"  # type: ignore[union-attr]
    assert lookup("llvm.amdgcn.readfirstlane.i32") is lookup("llvm.amdgcn.readfirstlane")
    assert lookup("llvm.nothing") is None
    assert not HANDLED_BY_ENGINE & set(supported_names())
    assert NO_EFFECT < HANDLED_BY_ENGINE
    assert handled_by_engine(op("llvm.call_intrinsic", "() -> i32", intrin="llvm.amdgcn.raw.ptr.buffer.load.v4i32"))
    assert handled_by_engine(op("rocdl.raw.ptr.buffer.atomic.fadd", "() -> void"))
    assert find(op("llvm.call_intrinsic", "(i1) -> i64", intrin="llvm.amdgcn.ballot.i64")) is lookup(
        "llvm.amdgcn.ballot"
    )


SEEN = """
    llvm.add llvm.addrspacecast llvm.alloca llvm.and llvm.ashr llvm.atomicrmw llvm.bitcast llvm.br llvm.call
    llvm.cond_br llvm.extractelement llvm.extractvalue llvm.fadd llvm.fdiv llvm.fence llvm.fmul llvm.fpext
    llvm.fptrunc llvm.fsub llvm.getelementptr llvm.icmp llvm.insertelement llvm.intr.cttz llvm.intr.fma
    llvm.intr.maximum llvm.intr.smin llvm.intr.sqrt llvm.intr.umin llvm.intr.vector.reduce.fadd
    llvm.intr.vector.reduce.fmax llvm.inttoptr llvm.load llvm.lshr llvm.mlir.addressof llvm.mlir.constant
    llvm.mlir.poison llvm.mul llvm.or llvm.ptrtoint llvm.return llvm.sdiv llvm.select llvm.sext llvm.shl
    llvm.shufflevector llvm.sitofp llvm.srem llvm.store llvm.sub llvm.trunc llvm.udiv llvm.urem llvm.xor llvm.zext
    rocdl.ballot rocdl.barrier rocdl.cvt.f32.fp8 rocdl.cvt.pk.f32.fp8 rocdl.cvt.pk.fp8.f32
    rocdl.cvt.scalef32.pk.bf16.fp4 rocdl.cvt.scalef32.pk.bf16.fp8 rocdl.cvt.scalef32.pk.f32.fp4
    rocdl.cvt.scalef32.pk.fp4.bf16 rocdl.cvt.scalef32.pk.fp4.f32 rocdl.cvt.scalef32.pk.fp8.bf16 rocdl.ds_bpermute
    rocdl.ds_swizzle rocdl.exp2 rocdl.log rocdl.make.buffer.rsrc rocdl.mbcnt.hi rocdl.mbcnt.lo
    rocdl.mfma.f32.16x16x32.bf16 rocdl.mfma.scale.f32.16x16x128.f8f6f4 rocdl.permlane16.swap rocdl.permlane32.swap
    rocdl.raw.ptr.buffer.load rocdl.raw.ptr.buffer.load.lds rocdl.raw.ptr.buffer.store rocdl.rcp rocdl.readfirstlane
    rocdl.readlane rocdl.rsq rocdl.s.barrier rocdl.s.setprio rocdl.s.sleep rocdl.s.waitcnt rocdl.sched.barrier
    rocdl.sched.group.barrier rocdl.sqrt rocdl.update.dpp rocdl.wavefrontsize rocdl.workgroup.id.x
    rocdl.workgroup.id.y rocdl.workgroup.id.z rocdl.workitem.id.x rocdl.workitem.id.y rocdl.workitem.id.z
"""
"""The operations that kernels written in FlyDSL are lowered to."""

INTRINSICS = "s.memrealtime s.memtime s.getreg rsq.f32 fract.f32 perm s.dcache.wb wave.reduce.umax.i32"
MEMORY_INTRINSICS = "raw.ptr.buffer.load.v4i32 raw.ptr.buffer.store.v4i32 s.buffer.load.v4i32"


@pytest.mark.parametrize("name", SEEN.split())
def test_every_operation_of_flydsl_kernels_is_supported(name: str) -> None:
    by_engine = BARRIERS | SILENT | TERMINATORS | {"llvm.mlir.addressof"}
    assert lookup(name) or access.lookup(name) or name in by_engine


@pytest.mark.parametrize("name", [*INTRINSICS.split(), *MEMORY_INTRINSICS.split()])
def test_every_intrinsic_of_flydsl_kernels_is_supported(name: str) -> None:
    """As an operation of the dialect, where there is one; the last operand is then a constant."""
    number = op("llvm.mlir.constant", "() -> i32", value=17)
    call = op("llvm.call_intrinsic", "(i32, i32, i32, i32) -> i32", intrin=f"llvm.amdgcn.{name}")
    call = replace(call, operands=(0, 0, 0, 0) if name in MEMORY_INTRINSICS else ())
    [rewritten] = canonical(Kernel("k", (Block("bb0", (), (number, call)),), {})).blocks[0].ops[1:]
    if rewritten.name == "llvm.call_intrinsic":
        assert lookup(str(rewritten.attrs["intrin"])) or "memrealtime" in str(rewritten.attrs["intrin"])
    else:
        assert access.lookup(rewritten.name) or rewritten.name in SILENT
    if name in MEMORY_INTRINSICS:
        assert rewritten.attrs == {"aux": 17} and len(rewritten.operands) == 3


def test_an_intrinsic_whose_policy_is_not_constant_stays_unsupported() -> None:
    call = op("llvm.call_intrinsic", "(i32, i32, i32, i32) -> i32", intrin="llvm.amdgcn.raw.ptr.buffer.load.i32")
    assert canonical(Kernel("k", (Block("bb0", (), (call,)),), {})).blocks[0].ops == (call,)
    assert handled_by_engine(call) and access.lookup(call.name) is None


BIG = 2**31 - 1
SMALL = -(2**31)


@pytest.mark.parametrize(
    ("name", "signature", "attrs", "operands", "wanted"),
    [
        ("llvm.shl", "(i32, i32) -> i32", {}, ([1, 1, 1], [31, 32, -1]), [False, True, True]),
        ("llvm.sdiv", "(i32, i32) -> i32", {}, ([5, 5, SMALL, SMALL], [0, 1, -1, 2]), [True, False, True, False]),
        ("llvm.urem", "(i32, i32) -> i32", {}, ([5, SMALL], [0, -1]), [True, False]),
        ("llvm.add", "(i32, i32) -> i32", {"overflowFlags": 1}, ([BIG, BIG, -1], [1, -1, 1]), [True, False, False]),
        ("llvm.add", "(i32, i32) -> i32", {"overflowFlags": 2}, ([BIG, -1, -1], [1, 1, 0]), [False, True, False]),
        ("llvm.sub", "(i32, i32) -> i32", {"overflowFlags": 3}, ([SMALL, 0, 5], [1, 1, 5]), [True, True, False]),
        ("llvm.fptosi", "(f32) -> i8", {}, ([127.9, 128.0, -128.9, np.nan],), [False, True, False, True]),
        ("llvm.fptoui", "(f32) -> i32", {}, ([-0.5, -1.0, 4e9, 5e9],), [False, True, False, True]),
        ("llvm.intr.ctlz", "(i32) -> i32", {"is_zero_poison": True}, ([0, 1],), [True, False]),
    ],
)
def test_poison(name: str, signature: str, attrs: dict[str, Any], operands: Any, wanted: list[bool]) -> None:
    found = poison_check(op(name, signature, **attrs))
    assert found
    message, check = found
    dtype = np.float32 if name.startswith("llvm.fp") else np.int32
    with np.errstate(all="ignore"):
        assert check(*(row(x, dtype) for x in operands))[0].tolist() == wanted
    assert message


def test_poisonous_index() -> None:
    found = poison_check(op("llvm.extractelement", "(vector<4xi32>, i32) -> i32"))
    assert found
    vector = np.zeros((1, 1, 4), np.int32)
    assert found[1](vector, row([0, 3, 4, -1], np.int32))[0].tolist() == [False, False, True, True]


def test_operations_without_poison() -> None:
    assert poison_check(op("llvm.add", "(i32, i32) -> i32", overflowFlags=0)) is None
    assert poison_check(op("llvm.intr.ctlz", "(i32) -> i32", is_zero_poison=False)) is None
    assert poison_check(op("llvm.fadd", "(f32, f32) -> f32")) is None
