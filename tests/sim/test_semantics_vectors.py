"""Vectors, structs, pointers and constants."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from k3lab.lowering.attributes import parse_attribute
from k3lab.lowering.types import parse_type
from k3lab.sim.semantics import Unsupported
from k3lab.sim.semantics.pointers import DYNAMIC, allocated, field_offset
from k3lab.sim.semantics.vectors import insert_elements
from tests.sim.test_semantics_kit import random_bits, row, run, same_bits

V4 = "vector<4xi32>"


def vector(waves: int = 2, count: int = 4) -> Any:
    return np.arange(waves * 64 * count, dtype=np.int32).reshape(waves, 64, count)


def test_elements_by_constant_place() -> None:
    v = vector()
    got = run("llvm.extractelement", f"({V4}, i32) -> i32", v, row([2], np.int32))
    assert (got == v[..., 2]).all() and np.shares_memory(got, v)
    put = run("llvm.insertelement", f"({V4}, i32, i32) -> {V4}", v, row([-1], np.int32), row([1], np.int32))
    assert (put[..., 1] == -1).all() and (put[..., [0, 2, 3]] == v[..., [0, 2, 3]]).all()
    assert (v == vector()).all()


def test_elements_by_dynamic_place() -> None:
    v, place = vector(), (np.arange(128).reshape(2, 64) % 4).astype(np.int64)
    got = run("llvm.extractelement", f"({V4}, i64) -> i32", v, place)
    put = run("llvm.insertelement", f"({V4}, i32, i64) -> {V4}", v, -got, place)
    for w, lane in itertools.product(range(2), range(64)):
        assert got[w, lane] == v[w, lane, place[w, lane]]
        assert put[w, lane, place[w, lane]] == -got[w, lane]
    assert ((put != v).sum(axis=2) <= 1).all()
    uniform = run("llvm.extractelement", f"({V4}, i64) -> i32", v[:1, :1], place)
    assert (uniform == v[0, 0][place]).all()


def test_place_beyond_the_vector_does_not_stop_a_run() -> None:
    assert run("llvm.extractelement", f"({V4}, i32) -> i32", vector(), row([9] * 64, np.int32)).shape == (2, 64)


def test_chains_of_inserts() -> None:
    empty = run("llvm.mlir.poison", f"() -> {V4}")
    parts = [np.full((2, 64), i, np.int32) for i in range(3)] + [row([7], np.int32)]
    built = insert_elements((0, 1, 2, 3))(empty, *parts)
    stepwise = empty
    for i, part in enumerate(parts):
        stepwise = run("llvm.insertelement", f"({V4}, i32, i32) -> {V4}", stepwise, part, row([i], np.int32))
    assert same_bits(built, stepwise)
    assert insert_elements((1,))(vector(), row([5], np.int32))[0, 0].tolist() == [0, 5, 2, 3]


@pytest.mark.parametrize(
    "mask", ([0, 3], [1, 2], [5, 6, 7], [2, 3, 4, 5], [4, 7, 5], [0, 4, 1, 5], [-1, 2, 6], [3, 3, 3, 3, 0, 0, 0, 0])
)
def test_shuffle(mask: list[int]) -> None:
    a, b = vector(), -vector()
    got = run("llvm.shufflevector", f"({V4}, {V4}) -> vector<{len(mask)}xi32>", a, b, mask=mask)
    both = np.concatenate([a, b], axis=2)
    for i, place in enumerate(mask):
        if place >= 0:
            assert (got[..., i] == both[..., place]).all()


def test_parts_of_vectors() -> None:
    v = vector()
    assert same_bits(run("llvm.intr.vector.extract", f"({V4}) -> vector<2xi32>", v, pos=2), v[..., 2:].copy())
    put = run("llvm.intr.vector.insert", f"({V4}, vector<2xi32>) -> {V4}", v, -v[..., :2], pos=1)
    assert put[1, 0].tolist() == [256, -256, -257, 259]


TYPES = {
    "i8": 1, "i16": 2, "i32": 4, "i64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "i128": 16,
    "vector<2xi8>": 2, "vector<4xi8>": 4, "vector<2xbf16>": 4, "vector<2xf16>": 4, "vector<4xi16>": 8,
    "vector<2xi32>": 8, "vector<2xf32>": 8, "vector<16xi8>": 16, "vector<8xbf16>": 16, "vector<4xf32>": 16,
    "vector<2xi64>": 16, "vector<2xf64>": 16, "vector<32xi1>": 4, "vector<8xi1>": 1,
}  # fmt: skip


def held(name: str, seed: int) -> Any:
    from k3lab.sim.semantics.values import held_as

    dtype, count = held_as(parse_type(name))
    if dtype == np.bool_:
        return random_bits((2, 64, count or 1), np.uint8, seed) % 2 == 1
    return random_bits((2, 64) if count is None else (2, 64, count), dtype, seed)


def bytes_of(value: Any) -> bytes:
    return (np.packbits(value, axis=2, bitorder="little") if value.dtype == np.bool_ else value).tobytes()


@pytest.mark.parametrize("source", TYPES)
def test_bitcast_keeps_every_byte(source: str) -> None:
    value = held(source, 1)
    for target, size in TYPES.items():
        if size == TYPES[source]:
            got = run("llvm.bitcast", f"({source}) -> {target}", value)
            assert bytes_of(got) == bytes_of(value), target
            wanted = held(target, 1)
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
            part = run("llvm.bitcast", f"({source}) -> {target}", value[:, ::2])
            assert bytes_of(part) == bytes_of(value[:, ::2])


def test_bitcast_of_a_view() -> None:
    v = np.arange(256, dtype=np.uint16).reshape(1, 64, 4)
    got = run("llvm.bitcast", "(bf16) -> i16", v[..., 1])
    assert got[0, :3].tolist() == [1, 5, 9]


def test_structs() -> None:
    types = "!llvm.struct<(i32, struct<(i32, f32)>)>"
    zero = run("llvm.mlir.zero", f"() -> {types}")
    one = run("llvm.insertvalue", f"({types}, i32) -> {types}", zero, row([5], np.int32), position=[1, 0])
    assert run("llvm.extractvalue", f"({types}) -> i32", one, position=[1, 0])[0, 0] == 5
    assert run("llvm.extractvalue", f"({types}) -> i32", zero, position=[1, 0])[0, 0] == 0
    assert run("llvm.extractvalue", f"({types}) -> f32", one, position=[1, 1]).dtype == np.float32


def test_integer_reductions() -> None:
    v = random_bits((2, 64, 4), np.int32, 3)
    for name, function in (("add", np.add), ("mul", np.multiply), ("and", np.bitwise_and), ("or", np.bitwise_or)):
        got = run(f"llvm.intr.vector.reduce.{name}", f"({V4}) -> i32", v)
        assert same_bits(got, function.reduce(v, axis=2, dtype=np.int32))
    assert same_bits(run("llvm.intr.vector.reduce.umax", f"({V4}) -> i32", v), v.view(np.uint32).max(2).view(np.int32))
    assert same_bits(run("llvm.intr.vector.reduce.smin", f"({V4}) -> i32", v), v.min(axis=2))


def test_float_sums_run_in_order() -> None:
    v = np.array([[[1e8, 1.0, -1e8, 1.0]]], np.float32)
    types = "(f32, vector<4xf32>) -> f32"
    assert run("llvm.intr.vector.reduce.fadd", types, row([0.5], np.float32), v)[0, 0] == 1.0
    minus = np.full((1, 1, 4), -0.0, np.float32)
    assert np.signbit(run("llvm.intr.vector.reduce.fadd", types, row([-0.0], np.float32), minus))[0, 0]
    v[0, 0, 1] = math.nan
    assert run("llvm.intr.vector.reduce.fmax", "(vector<4xf32>) -> f32", v)[0, 0] == np.float32(1e8)
    assert np.isnan(run("llvm.intr.vector.reduce.fmaximum", "(vector<4xf32>) -> f32", v))[0, 0]


# -- constants ---------------------------------------------------------------------------------------------------------


def constant(text: str, kind: str) -> Any:
    return run("llvm.mlir.constant", f"() -> {kind}", value=parse_attribute(text))


@pytest.mark.parametrize(
    ("text", "kind", "wanted"),
    [
        ("-9 : i64", "i64", np.array([[-9]], np.int64)),
        ("255 : i8", "i8", np.array([[-1]], np.int8)),
        ("true", "i1", np.array([[True]])),
        ("2 : index", "i64", np.array([[2]], np.int64)),
        ("1.500000e+00 : f32", "f32", np.array([[1.5]], np.float32)),
        ("0xFF800000 : f32", "f32", np.array([[-np.inf]], np.float32)),
        ("1.500000e+00 : bf16", "bf16", np.array([[0x3FC0]], np.uint16)),
        ("0x7F81 : bf16", "bf16", np.array([[0x7F81]], np.uint16)),
        ("0.000000e+00 : f16", "f16", np.array([[0]], np.float16)),
        ("dense<0.000000e+00> : vector<4xf32>", "vector<4xf32>", np.zeros((1, 1, 4), np.float32)),
        ("dense<[1, -2]> : vector<2xi32>", "vector<2xi32>", np.array([[[1, -2]]], np.int32)),
        ("dense<[true, false]> : vector<2xi1>", "vector<2xi1>", np.array([[[True, False]]])),
        ("-1 : i128", "i128", np.array([[[-1, -1]]], np.int64)),
    ],
)
def test_constants(text: str, kind: str, wanted: Any) -> None:
    assert same_bits(constant(text, kind), wanted)


def test_constant_payloads() -> None:
    got = constant("dense<[0x7F800001, 1.0]> : vector<2xf32>", "vector<2xf32>")
    assert got.view(np.uint32)[0, 0].tolist() == [0x7F800001, 0x3F800000]


def test_zeros_and_passing_on() -> None:
    assert same_bits(run("llvm.mlir.zero", "() -> !llvm.ptr<3>"), np.zeros((1, 1), np.int64))
    assert same_bits(run("llvm.mlir.undef", "() -> bf16"), np.zeros((1, 1), np.uint16))
    v = vector()
    assert run("llvm.freeze", f"({V4}) -> {V4}", v) is v
    assert run("rocdl.wavefrontsize", "() -> i32")[0, 0] == 64


# -- pointers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("i1", 1), ("f32", 4), ("!llvm.ptr<3>", 4), ("!llvm.ptr", 8), ("vector<3xf32>", 16), ("vector<8xbf16>", 16),
        ("!llvm.array<5 x i16>", 10), ("!llvm.struct<(i8, i32, i8)>", 12), ("!llvm.struct<(i8, array<3 x i16>)>", 8),
        ("!llvm.struct<()>", 0),
    ],
)  # fmt: skip
def test_sizes(kind: str, size: int) -> None:
    assert allocated(parse_type(kind)) == size


def test_field_offsets() -> None:
    struct = parse_type("!llvm.struct<(i8, i64, i16, vector<4xf32>)>")
    assert [field_offset(struct, i) for i in range(5)] == [0, 8, 16, 32, 48]


def gep(base: Any, *indices: Any, element: str, raw: list[int]) -> Any:
    types = f"(!llvm.ptr<1>{', i32' * len(indices)}) -> !llvm.ptr<1>"
    return run("llvm.getelementptr", types, base, *indices, elem_type=element, rawConstantIndices=raw)


def test_getelementptr() -> None:
    base = row([1000], np.int64)
    lanes = row(range(-2, 62), np.int32)
    assert same_bits(gep(base, lanes, element="f32", raw=[DYNAMIC]), 1000 + 4 * lanes.astype(np.int64))
    assert gep(base, element="i16", raw=[-3])[0, 0] == 994
    assert gep(base, element="i8", raw=[0]) is base
    nested = "!llvm.array<4 x struct<(i32, array<8 x i16>)>>"
    got = gep(base, lanes, lanes, element=nested, raw=[DYNAMIC, 1, 1, DYNAMIC])
    assert same_bits(got, 1000 + 80 * lanes.astype(np.int64) + 20 + 4 + 2 * lanes)
    big = gep(base, row([2**31 - 1], np.int32), element="vector<4xi32>", raw=[DYNAMIC])
    assert big[0, 0] == 1000 + 16 * (2**31 - 1)


def test_pointer_casts() -> None:
    words = row([-4, 16], np.int32)
    address = run("llvm.inttoptr", "(i32) -> !llvm.ptr<3>", words)
    assert address[0].tolist() == [2**32 - 4, 16]
    assert same_bits(run("llvm.ptrtoint", "(!llvm.ptr<3>) -> i32", address), words)
    assert run("llvm.ptrtoint", "(!llvm.ptr<1>) -> i64", address) is address
    assert run("llvm.addrspacecast", "(!llvm.ptr<1>) -> !llvm.ptr", address) is address
    with pytest.raises(Unsupported):
        run("llvm.addrspacecast", "(!llvm.ptr<1>) -> !llvm.ptr<7>", address)


def test_buffer_resource() -> None:
    base, stride, flags = row([1 << 40], np.int64), row([0], np.int16), row([159744], np.int32)
    for kind, dtype in (("i64", np.int64), ("i32", np.int32)):
        types = f"(!llvm.ptr<1>, i16, {kind}, i32) -> !llvm.ptr<8>"
        got = run(
            "rocdl.make.buffer.rsrc", types, base, stride, row([-1 if kind == "i32" else 2**32 - 1], dtype), flags
        )
        assert got[0] is base and got[1][0, 0] == 2**32 - 1 and got[1].dtype == np.int64
