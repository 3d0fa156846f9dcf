"""Float operations against NumPy scalars, exact fractions and an independent bf16."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from k3lab.formats import bf16_bits, bf16_values
from tests.sim.test_semantics_kit import FLOAT_PREDICATES, random_bits, row, run, same_bits, same_values

FORMATS = ("f16", "bf16", "f32", "f64")
NATIVE = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64}
HELD = {"f16": np.float16, "bf16": np.uint16, "f32": np.float32, "f64": np.float64}
SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 1.5, 2.0**-14, -(2.0**-133), 3.0, 65504.0]


def samples(name: str, seed: int, count: int = 3000) -> Any:
    """Random bits and every special value, as they are held."""
    drawn = random_bits((1, count), HELD[name], seed)
    with np.errstate(all="ignore"):
        special = np.array(SPECIAL).astype(NATIVE[name]).view(HELD[name])
    places = np.random.default_rng(seed).integers(0, count, count // 2)
    drawn[0, places] = special[np.arange(len(places)) * (seed + 1) % len(special)]
    return drawn


def native(name: str, held: Any) -> Any:
    return held.view(NATIVE[name])


def doubles(values: Any) -> Any:
    with np.errstate(all="ignore"):  # a signalling NaN
        return values.astype(np.float64)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("operation", ("fadd", "fsub", "fmul", "fdiv", "frem"))
def test_arithmetic(operation: str, name: str) -> None:
    a, b = samples(name, 1), samples(name, 2)
    got = run(f"llvm.{operation}", f"({name}, {name}) -> {name}", a, b)
    function = {"fadd": np.add, "fsub": np.subtract, "fmul": np.multiply, "fdiv": np.divide, "frem": np.fmod}[operation]
    with np.errstate(all="ignore"):
        if operation == "frem" and name == "bf16":  # exact, so any width will do
            wanted = function(bf16_values(a), bf16_values(b)).astype(ml_dtypes.bfloat16)
        else:
            wanted = function(native(name, a), native(name, b)).astype(NATIVE[name])
    assert same_values(native(name, got), wanted)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("operation", ("sqrt", "floor", "ceil", "trunc", "rint", "roundeven", "round", "nearbyint"))
def test_unary(operation: str, name: str) -> None:
    x = samples(name, 3)
    halves = (np.arange(-20, 20) / 2).astype(NATIVE[name]).view(HELD[name])
    x[0, : len(halves)] = halves
    got = native(name, run(f"llvm.intr.{operation}", f"({name}) -> {name}", x))
    with np.errstate(all="ignore"):
        wide = native(name, x).astype(np.float64)
        if operation == "round":
            wanted = np.copysign(np.floor(np.abs(wide) + 0.5), wide)
            wanted = np.where(np.abs(wide) >= 2.0**51, wide, np.where(np.abs(wide) == 0.5 - 2.0**-54, 0 * wide, wanted))
        else:
            rint = {"rint", "roundeven", "nearbyint"}
            wanted = np.rint(wide) if operation in rint else getattr(np, operation)(wide)
        assert same_values(got, wanted.astype(NATIVE[name]))


def test_round_just_below_a_half() -> None:
    x = row([np.nextafter(np.float32(0.5), np.float32(0)), 0.5, -0.5, -0.4, 8388609.0], np.float32)
    assert same_bits(run("llvm.intr.round", "(f32) -> f32", x), row([0.0, 1.0, -1.0, -0.0, 8388609.0], np.float32))


@pytest.mark.parametrize("name", FORMATS)
def test_signs_are_bits(name: str) -> None:
    x, y = samples(name, 4), samples(name, 5)
    width = 8 * x.dtype.itemsize
    words, other = (v.view(f"u{width // 8}") for v in (x, y))
    top = words.dtype.type(1 << width - 1)
    cases = (
        (run("llvm.fneg", f"({name}) -> {name}", x), words ^ top),
        (run("llvm.intr.fabs", f"({name}) -> {name}", x), words & ~top),
        (run("llvm.intr.copysign", f"({name}, {name}) -> {name}", x, y), (words & ~top) | (other & top)),
    )
    for got, wanted in cases:
        assert (got.view(wanted.dtype) == wanted).all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("predicate", FLOAT_PREDICATES)
def test_fcmp(predicate: str, name: str) -> None:
    values = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan]
    pairs = [(x, y) for x in values for y in values]
    a, b = (np.array(x).astype(NATIVE[name]).view(HELD[name])[None] for x in zip(*pairs, strict=True))
    got = run("llvm.fcmp", f"({name}, {name}) -> i1", a, b, predicate=FLOAT_PREDICATES.index(predicate))

    def holds(x: float, y: float) -> bool:
        unordered = math.isnan(x) or math.isnan(y)
        if predicate in ("false", "true"):
            return predicate == "true"
        if predicate in ("ord", "uno"):
            return unordered == (predicate == "uno")
        if unordered:
            return predicate[0] == "u"
        return {"eq": x == y, "gt": x > y, "ge": x >= y, "lt": x < y, "le": x <= y, "ne": x != y}[predicate[1:]]

    assert np.broadcast_to(got, a.shape)[0].tolist() == [holds(x, y) for x, y in pairs]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("operation", ("minnum", "maxnum", "minimum", "maximum"))
def test_extremes(operation: str, name: str) -> None:
    a, b = samples(name, 6), samples(name, 7)
    got = native(name, run(f"llvm.intr.{operation}", f"({name}, {name}) -> {name}", a, b))[0]

    def wanted(x: float, y: float) -> float:
        if math.isnan(x) or math.isnan(y):
            return math.nan if operation.endswith("imum") else y if math.isnan(x) else x
        ordered = sorted((x, y), key=lambda v: (v, math.copysign(1.0, v)))
        return ordered[0] if operation.startswith("min") else ordered[1]

    pairs = zip(doubles(native(name, a)[0]).tolist(), doubles(native(name, b)[0]).tolist(), strict=True)
    assert same_values(doubles(got), np.array([wanted(x, y) for x, y in pairs]))


def test_median() -> None:
    values = [1.0, 2.0, -3.0, 0.0]
    for x in values:
        for y in values:
            for z in values:
                got = run("rocdl.fmed3", "(f32, f32, f32) -> f32", *(row([v], np.float32) for v in (x, y, z)))
                assert got[0, 0] == sorted((x, y, z))[1]
    nan = row([math.nan], np.float32)
    assert run("rocdl.fmed3", "(f32, f32, f32) -> f32", nan, row([5], np.float32), row([4], np.float32))[0, 0] == 4


def exact_fma(a: Any, b: Any, c: Any) -> Fraction:
    return Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))


def is_nearest(value: Any, exact: Fraction, kind: Any) -> bool:
    """Whether no neighbour of `value` is nearer to `exact`, or as near and even."""
    error = abs(Fraction(float(value)) - exact)
    word = int(value.view(f"u{value.dtype.itemsize}"))
    for step in (-1, 1):
        other = np.array((word & ~(1 << 8 * value.dtype.itemsize - 1)) + step, f"i{value.dtype.itemsize}").view(kind)
        if word & ((1 << 8 * value.dtype.itemsize - 1) - 1) == 0 or not np.isfinite(other):
            continue
        signed = math.copysign(float(other), float(value))
        distance = abs(Fraction(signed) - exact)
        if distance < error or (distance == error and word & 1):
            return False
    return True


@pytest.mark.parametrize("name", ("f32", "bf16", "f16"))
def test_fma_rounds_once(name: str) -> None:
    rng = np.random.default_rng(8)
    kind = NATIVE[name]
    scale = 2.0 ** rng.integers(-5, 5, (3, 1, 4000))
    a, b, c = (rng.uniform(-1, 1, (3, 1, 4000)) * scale).astype(kind)
    c[0, :2000] = (-(a * b)[0, :2000].astype(np.float64)).astype(kind)  # cancellation
    c[0, 2000:2500] = (c[0, 2000:2500].astype(np.float64) * 2.0**-24).astype(kind)
    got = native(
        name, run("llvm.intr.fma", f"({name}, {name}, {name}) -> {name}", *(x.view(HELD[name]) for x in (a, b, c)))
    )
    for x, y, z, value in zip(a[0], b[0], c[0], got[0], strict=True):
        assert is_nearest(value, exact_fma(x, y, z), kind), (x, y, z, value)


def test_fma_near_midpoints_and_below_normals() -> None:
    eps = 2.0**-23
    cases = [
        (1 + eps, 1 - eps / 2, 2.0**-60),  # the product lies just below a midpoint, the addend lifts it
        (1.5, 1 + eps, -(2.0**-70)),
        (1.5, 1 + eps, 2.0**-70),
        (2.0**-75, 2.0**-75, 2.0**-149),
        (2.0**-75, 1.5 * 2.0**-75, -(2.0**-149)),
        (1.0, 2.0**-149, 2.0**-149),
        (2.0**-75 * (1 + eps), 2.0**-75 * (1 - eps), 2.0**-127 + 2.0**-149),  # just below a tie of subnormals
    ]
    a, b, c = (row(x, np.float32) for x in zip(*cases, strict=True))
    got = run("llvm.intr.fma", "(f32, f32, f32) -> f32", a, b, c)
    for x, y, z, value in zip(a[0], b[0], c[0], got[0], strict=True):
        assert is_nearest(value, exact_fma(x, y, z), np.float32)
    inf = row([math.inf], np.float32)
    assert np.isnan(run("llvm.intr.fma", "(f32, f32, f32) -> f32", inf, np.ones_like(inf), -inf))[0, 0]


def test_truncation_to_narrow_formats() -> None:
    x = samples("f32", 9, 20000)
    with np.errstate(all="ignore"):
        assert same_values(native("bf16", run("llvm.fptrunc", "(f32) -> bf16", x)), x.astype(ml_dtypes.bfloat16))
        assert same_values(run("llvm.fptrunc", "(f32) -> f16", x), x.astype(np.float16))
        wide = samples("f64", 10)
        assert same_values(run("llvm.fptrunc", "(f64) -> f32", wide), wide.astype(np.float32))
    midpoint = np.array([[1.0 + 2.0**-8 + 2.0**-40]])  # through float32 it would fall on the tie
    assert run("llvm.fptrunc", "(f64) -> bf16", midpoint)[0, 0] == 0x3F81
    signalling = np.array([[0x7F800001]], np.uint32).view(np.float32)
    assert run("llvm.fptrunc", "(f32) -> f16", signalling).view(np.uint16)[0, 0] & 0x7E00 == 0x7E00
    assert run("llvm.fptrunc", "(f32) -> bf16", signalling)[0, 0] == 0x7FC0


def test_extension_keeps_every_bf16_bit() -> None:
    codes = np.arange(1 << 16, dtype=np.uint16)[None]
    wide = run("llvm.fpext", "(bf16) -> f32", codes)
    assert (wide.view(np.uint32) == codes.astype(np.uint32) << 16).all()
    with np.errstate(all="ignore"):
        assert same_values(run("llvm.fpext", "(bf16) -> f64", codes), bf16_values(codes).astype(np.float64))
    halves = codes.view(np.float16)
    assert same_values(run("llvm.fpext", "(f16) -> f32", halves), halves.astype(np.float32))


@pytest.mark.parametrize("source", (8, 16, 32, 64))
@pytest.mark.parametrize("name", ("sitofp", "uitofp"))
def test_from_integers(name: str, source: int) -> None:
    values = random_bits((1, 3000), f"i{source // 8}", source)
    read = values if name == "sitofp" else values.view(f"u{source // 8}")
    exact = [Fraction(x) for x in read[0].tolist()]
    for target in ("f32", "f64") + (("bf16", "f16") if source <= 32 else ()):
        got = native(target, run(f"llvm.{name}", f"(i{source}) -> {target}", values))
        for value, wanted in zip(got[0], exact, strict=True):
            if not np.isfinite(value):
                assert target == "f16" and abs(wanted) >= 65520
            elif float(value) or wanted:
                assert is_nearest(value, wanted, NATIVE[target])


def test_from_single_bits() -> None:
    bits = row([False, True], bool)
    assert run("llvm.sitofp", "(i1) -> f32", bits)[0].tolist() == [0.0, -1.0]
    assert run("llvm.uitofp", "(i1) -> f32", bits)[0].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("target", (8, 16, 32, 64))
@pytest.mark.parametrize("name", ("fptosi", "fptoui"))
def test_to_integers(name: str, target: int) -> None:
    low, high = (-(1 << target - 1), (1 << target - 1) - 1) if name == "fptosi" else (0, (1 << target) - 1)
    x = samples("f32", 11)
    edges = [float(low), float(high), float(high) + 1, -0.9, 0.9, 2.5, -2.5, math.inf, -math.inf, math.nan, 1e30, -1e30]
    x[0, : len(edges)] = edges
    got = run(f"llvm.{name}", f"(f32) -> i{target}", x)
    for value, result in zip(
        x[0].tolist(), got.view(f"{'iu'[name == 'fptoui']}{target // 8}")[0].tolist(), strict=True
    ):
        if math.isnan(value):
            assert result == 0
        else:
            whole = int(value) if math.isfinite(value) else (1 << 200) * int(math.copysign(1, value))
            assert result == min(max(whole, low), high)


def test_ldexp() -> None:
    got = run("llvm.intr.ldexp", "(f32, i32) -> f32", row([1.5, 1.5, 3.0], np.float32), row([2, -150, -150], np.int32))
    assert same_bits(got, row([6.0, 2.0**-149, 2.0**-148], np.float32))  # 0.75 and 1.5 units in the last place


def test_bf16_is_rounded_once() -> None:
    a, b = samples("bf16", 12), samples("bf16", 13)
    with np.errstate(all="ignore"):
        wanted = bf16_bits((bf16_values(a).astype(np.float64) * bf16_values(b)).astype(np.float32))
    assert same_values(native("bf16", run("llvm.fmul", "(bf16, bf16) -> bf16", a, b)), native("bf16", wanted))


# -- the hardware's functions ------------------------------------------------------------------------------------------


def test_approximations_are_the_shared_models() -> None:
    from k3lab.hardware import approx

    x = samples("f32", 14)
    for name in ("exp2", "rsq", "rcp"):
        wanted = getattr(approx, name)(x)
        assert same_bits(run(f"rocdl.{name}", "(f32) -> f32", x), wanted)
        got = run("llvm.call_intrinsic", "(f32) -> f32", x, intrin=f"llvm.amdgcn.{name}.f32")
        assert same_bits(got, wanted)


def test_sqrt_and_log_flush_subnormals() -> None:
    x = row([2.0**-130, -(2.0**-130), 4.0, -1.0, math.inf, 0.0, 2.0**-126], np.float32)
    root = run("rocdl.sqrt", "(f32) -> f32", x)
    assert same_values(root, row([0.0, -0.0, 2.0, math.nan, math.inf, 0.0, 2.0**-63], np.float32))
    log = run("rocdl.log", "(f32) -> f32", x)
    assert same_values(log, row([-math.inf, -math.inf, 2.0, math.nan, math.inf, -math.inf, -126.0], np.float32))


def test_log_is_nearest() -> None:
    from decimal import Context, Decimal

    digits = Context(prec=40)
    x = np.exp(np.random.default_rng(15).uniform(-80, 80, (1, 400))).astype(np.float32)
    x[0, :3] = [1.0, np.nextafter(np.float32(1), np.float32(2)), np.nextafter(np.float32(1), np.float32(0))]
    got = run("rocdl.log", "(f32) -> f32", x)
    for value, result in zip(x[0].tolist(), got[0], strict=True):
        exact = Fraction(digits.divide(digits.ln(Decimal(value)), digits.ln(Decimal(2))))
        assert is_nearest(result, exact, np.float32)


def test_log_close_calls_are_settled_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    from k3lab.sim.semantics import hardware

    x = np.exp(np.random.default_rng(16).uniform(-80, 80, (1, 200))).astype(np.float32)
    wanted = hardware.log2(x)
    monkeypatch.setattr(hardware, "SLACK", 1 << 29)  # every value counts as close
    assert same_bits(hardware.log2(x), wanted)


def test_llvm_exp2_and_log2_know_subnormals() -> None:
    x = row([-126.0, -127.0, -149.0, -150.5, 3.0, -200.0, math.nan, math.inf], np.float32)
    got = run("llvm.intr.exp2", "(f32) -> f32", x)
    assert same_values(got, row([2.0**-126, 2.0**-127, 2.0**-149, 0.0, 8.0, 0.0, math.nan, math.inf], np.float32))
    powers = row([2.0**-149, 2.0**-127, 2.0**-126, 0.0, -1.0], np.float32)
    logs = run("llvm.intr.log2", "(f32) -> f32", powers)
    assert same_values(logs, row([-149.0, -127.0, -126.0, -math.inf, math.nan], np.float32))


def test_fract() -> None:
    x = row([1.25, -0.25, -(2.0**-40), math.inf], np.float32)
    got = run("llvm.call_intrinsic", "(f32) -> f32", x, intrin="llvm.amdgcn.fract.f32")
    assert same_values(got, row([0.25, 0.75, 1 - 2.0**-24, math.nan], np.float32))
