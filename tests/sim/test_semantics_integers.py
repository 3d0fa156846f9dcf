"""Integer operations against Python's integers."""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sim.test_semantics_kit import row, run, same_bits

WIDTHS = (8, 16, 32, 64)


def wrap(value: int, width: int) -> int:
    half = 1 << (width - 1)
    return (value + half) % (2 * half) - half


def positive(value: int, width: int) -> int:
    return value % (1 << width)


def edges(width: int) -> list[int]:
    half = 1 << (width - 1)
    return [0, 1, -1, 2, 3, half - 1, -half, 1 - half, half // 2, width - 1]


def numbers(width: int) -> st.SearchStrategy[int]:
    half = 1 << (width - 1)
    return st.sampled_from(edges(width)) | st.integers(-half, half - 1)


def pairs_of(width: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Pairs of numbers, after every pair of edges."""
    fixed = [(a, b) for a in edges(width) for b in edges(width)]
    drawn = st.lists(st.tuples(numbers(width), numbers(width)), max_size=64)
    return drawn.map(lambda pairs: fixed + pairs)


PAIRS = {width: pairs_of(width) for width in WIDTHS}


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def clamp(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)


Rule = Callable[[int, int, int], int]

BINARY: dict[str, Rule] = {
    "llvm.add": lambda a, b, w: a + b,
    "llvm.sub": lambda a, b, w: a - b,
    "llvm.mul": lambda a, b, w: a * b,
    "llvm.and": lambda a, b, w: a & b,
    "llvm.or": lambda a, b, w: a | b,
    "llvm.xor": lambda a, b, w: a ^ b,
    "llvm.shl": lambda a, b, w: a << b % w,
    "llvm.ashr": lambda a, b, w: a >> b % w,
    "llvm.lshr": lambda a, b, w: positive(a, w) >> b % w,
    "llvm.intr.smin": lambda a, b, w: min(a, b),
    "llvm.intr.smax": lambda a, b, w: max(a, b),
    "llvm.intr.umin": lambda a, b, w: min(positive(a, w), positive(b, w)),
    "llvm.intr.umax": lambda a, b, w: max(positive(a, w), positive(b, w)),
    "llvm.intr.sadd.sat": lambda a, b, w: clamp(a + b, -(1 << w - 1), (1 << w - 1) - 1),
    "llvm.intr.ssub.sat": lambda a, b, w: clamp(a - b, -(1 << w - 1), (1 << w - 1) - 1),
    "llvm.intr.uadd.sat": lambda a, b, w: min(positive(a, w) + positive(b, w), (1 << w) - 1),
    "llvm.intr.usub.sat": lambda a, b, w: max(positive(a, w) - positive(b, w), 0),
    "llvm.intr.scmp": lambda a, b, w: (a > b) - (a < b),
    "llvm.intr.ucmp": lambda a, b, w: (positive(a, w) > positive(b, w)) - (positive(a, w) < positive(b, w)),
}
DIVISIONS: dict[str, Rule] = {
    "llvm.sdiv": lambda a, b, w: truncated(a, b),
    "llvm.srem": lambda a, b, w: a - truncated(a, b) * b,
    "llvm.udiv": lambda a, b, w: positive(a, w) // positive(b, w),
    "llvm.urem": lambda a, b, w: positive(a, w) % positive(b, w),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [*BINARY, *DIVISIONS])
def test_binary_operations(name: str, width: int) -> None:
    rule = BINARY.get(name) or DIVISIONS[name]

    @settings(max_examples=15, deadline=None, database=None)
    @given(PAIRS[width])
    def check(pairs: list[tuple[int, int]]) -> None:
        a, b = (row(x, f"i{width // 8}") for x in zip(*pairs, strict=True))
        got = run(name, f"(i{width}, i{width}) -> i{width}", a, b)
        assert got.dtype == a.dtype
        for (x, y), z in zip(pairs, got[0].tolist(), strict=True):
            if y != 0 or name in BINARY:
                assert z == wrap(rule(x, y, width), width), (x, y)

    check()


UNARY: dict[str, Callable[[int, int], int]] = {
    "llvm.intr.abs": lambda a, w: abs(a),
    "llvm.intr.ctpop": lambda a, w: positive(a, w).bit_count(),
    "llvm.intr.ctlz": lambda a, w: w - positive(a, w).bit_length(),
    "llvm.intr.cttz": lambda a, w: (a & -a).bit_length() - 1 if a else w,
    "llvm.intr.bitreverse": lambda a, w: int(f"{positive(a, w):0{w}b}"[::-1], 2),
    "llvm.intr.bswap": lambda a, w: int.from_bytes(positive(a, w).to_bytes(w // 8, "little"), "big"),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", UNARY)
def test_unary_operations(name: str, width: int) -> None:
    @settings(max_examples=15, deadline=None, database=None)
    @given(st.lists(numbers(width), min_size=1, max_size=64))
    def check(values: list[int]) -> None:
        got = run(name, f"(i{width}) -> i{width}", row(values, f"i{width // 8}"))[0].tolist()
        assert got == [wrap(UNARY[name](value, width), width) for value in values]

    check()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", ("s", "u"))
@pytest.mark.parametrize("name", ("add", "sub", "mul"))
def test_overflow_flag(name: str, kind: str, width: int) -> None:
    combine = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}[name]

    @settings(max_examples=15, deadline=None, database=None)
    @given(PAIRS[width])
    def check(pairs: list[tuple[int, int]]) -> None:
        a, b = (row(x, f"i{width // 8}") for x in zip(*pairs, strict=True))
        types = f"(i{width}, i{width}) -> !llvm.struct<(i{width}, i1)>"
        result, flag = run(f"llvm.intr.{kind}{name}.with.overflow", types, a, b)
        read = (lambda x: x) if kind == "s" else (lambda x: positive(x, width))
        exact = [combine(read(x), read(y)) for x, y in pairs]
        low, high = (-(1 << width - 1), (1 << width - 1) - 1) if kind == "s" else (0, (1 << width) - 1)
        assert result[0].tolist() == [wrap(x, width) for x in exact]
        assert flag[0].tolist() == [not low <= x <= high for x in exact]

    check()


@pytest.mark.parametrize("width", WIDTHS)
def test_funnel_shifts(width: int) -> None:
    rng = np.random.default_rng(width)
    high, low = rng.integers(-(2 ** (width - 1)), 2 ** (width - 1), (2, 1, 200), f"i{width // 8}")
    amount = row(np.arange(200) % 128 - 10, f"i{width // 8}")
    types = f"(i{width}, i{width}, i{width}) -> i{width}"
    for name in ("fshl", "fshr"):
        got = run(f"llvm.intr.{name}", types, high, low, amount)[0].tolist()
        for h, l_, s, z in zip(high[0].tolist(), low[0].tolist(), amount[0].tolist(), got, strict=True):
            both, s = positive(h, width) << width | positive(l_, width), s % width
            assert z == wrap(both << s >> width if name == "fshl" else both >> s, width)


PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
COMPARE = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


@pytest.mark.parametrize("bits", (1, 8, 32, 64))
@pytest.mark.parametrize("predicate", PREDICATES)
def test_icmp(predicate: str, bits: int) -> None:
    half = 1 << bits - 1
    values = sorted({x for x in (0, -1, 1, -half, half - 1, half // 2, -half // 2) if -half <= x < half})
    pairs = [(x, y) for x in values for y in values]
    dtype = np.bool_ if bits == 1 else f"i{bits // 8}"
    a, b = (row(x, dtype) for x in zip(*pairs, strict=True))
    got = run("llvm.icmp", f"(i{bits}, i{bits}) -> i1", a, b, predicate=PREDICATES.index(predicate))
    read = (lambda x: positive(x, bits)) if predicate[0] == "u" else (lambda x: x)
    compare = COMPARE[predicate[-2:]]
    assert got.dtype == np.bool_
    assert got[0].tolist() == [compare(read(x), read(y)) for x, y in pairs]


def test_icmp_of_pointers_is_unsigned() -> None:
    a, b = row([-1, 1], np.int64), row([1, -1], np.int64)
    assert run("llvm.icmp", "(!llvm.ptr<1>, !llvm.ptr<1>) -> i1", a, b, predicate=8)[0].tolist() == [True, False]


def test_single_bits() -> None:
    a, b = row([0, 0, 1, 1], np.bool_), row([0, 1, 0, 1], np.bool_)
    for name, wanted in (("add", a ^ b), ("sub", a ^ b), ("mul", a & b), ("and", a & b), ("or", a | b), ("xor", a ^ b)):
        assert same_bits(run(f"llvm.{name}", "(i1, i1) -> i1", a, b), wanted), name


@pytest.mark.parametrize("source", (1, 8, 16, 32, 64))
@pytest.mark.parametrize("target", (1, 8, 16, 32, 64))
def test_widths(source: int, target: int) -> None:
    half = 1 << source - 1
    values = [-half, half - 1, 0, -1] if source > 1 else [0, -1]
    held = row(values, np.bool_ if source == 1 else f"i{source // 8}")

    def got(name: str) -> list[int]:
        result = run(f"llvm.{name}", f"(i{source}) -> i{target}", held)
        return [wrap(int(x), target) for x in result[0]]

    if target < source:
        assert got("trunc") == [wrap(x, target) for x in values]
    if target > source:
        assert got("sext") == values
        assert got("zext") == [positive(x, source) for x in values]


def test_select_keeps_what_is_uniform() -> None:
    yes, no = row([7], np.int32), row([9], np.int32)
    assert run("llvm.select", "(i1, i32, i32) -> i32", row([True], bool), yes, no) is yes
    vector = np.arange(128, dtype=np.int32).reshape(1, 64, 2)
    lanes = row(np.arange(64) % 2 == 0, bool)
    got = run("llvm.select", "(i1, vector<2xi32>, vector<2xi32>) -> vector<2xi32>", lanes, vector, -vector)
    assert (got[0, 0::2] == vector[0, 0::2]).all() and (got[0, 1::2] == -vector[0, 1::2]).all()
    base, size = run("llvm.select", "(i1, i32, i32) -> i32", lanes, (yes, no), (no, yes))
    assert base[0, :2].tolist() == [7, 9] and size[0, :2].tolist() == [9, 7]


def test_uniform_operands_stay_uniform() -> None:
    one = row([5], np.int32)
    for name in (*BINARY, *DIVISIONS):
        assert run(name, "(i32, i32) -> i32", one, one).shape == (1, 1)


def test_garbage_never_stops_a_run() -> None:
    zero, least = row([0, 0], np.int32), row([-(2**31), 5], np.int32)
    for name in DIVISIONS:
        assert run(name, "(i32, i32) -> i32", least, zero).shape == (1, 2)
        assert run(name, "(i32, i32) -> i32", least, zero - 1).shape == (1, 2)
