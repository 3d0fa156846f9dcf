"""What is supported, what is refused and how, and which operand values are poison."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from k3lab.lowering.ir import Block, Kernel, Loc, Op
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
        ("llvm.inline_asm", "k.py:7:0"),
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
