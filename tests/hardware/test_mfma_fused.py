"""The `fused` MFMA model against exact fractions rounded once by the definition."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from k3lab.hardware import mfma

F32 = NDArray[np.float32]
FUSED = mfma.get("fused")
K = 32


def nearest_f32(value: Fraction) -> float:
    """The float32 nearest to a fraction, ties to even; a negative that rounds to zero gives -0."""
    magnitude = abs(value)
    exponent = max(magnitude.numerator.bit_length() - magnitude.denominator.bit_length(), -126)
    if magnitude < Fraction(2) ** exponent:
        exponent = max(exponent - 1, -126)
    ulp = Fraction(2) ** (exponent - 23)
    rounded = round(magnitude / ulp) * ulp
    return math.copysign(math.inf if rounded >= 2**128 else float(rounded), value)


def one_output(a: F32, b: F32, c: float) -> float:
    """C plus the K products of one output: IEEE for infinities and NaN, exact otherwise."""
    products = [x * y for x, y in zip(a.tolist(), b.tolist(), strict=True)]  # exact: 48 bits at most
    summands = [c, *products]
    if not all(map(math.isfinite, summands)):
        return math.nan if math.isnan(total := sum(summands)) else total
    exact = sum(map(Fraction, summands))
    if exact == 0:
        return -0.0 if all(math.copysign(1, s) < 0 and s == 0 for s in summands) else 0.0
    return nearest_f32(exact)


def expected(a: F32, b: F32, c: F32) -> F32:
    """[M, N] of the chain over a [n, M, K] and b [n, N, K] from c."""
    acc = c.copy()
    for a_step, b_step in zip(a, b, strict=True):
        for m, n in np.ndindex(*acc.shape):
            acc[m, n] = one_output(a_step[m], b_step[n], float(acc[m, n]))
    return acc


def check(a: F32, b: F32, c: F32 | None = None) -> None:
    with np.errstate(all="ignore"):
        truth = expected(a, b, np.zeros((a.shape[1], b.shape[1]), np.float32) if c is None else c)
    got = FUSED.chain(a, b, c)
    same = (got.view(np.uint32) == truth.view(np.uint32)) | (np.isnan(got) & np.isnan(truth))
    assert same.all(), f"{got[~same][:4]} instead of {truth[~same][:4]}"


def bf16(values: np.ndarray) -> F32:
    """Truncated to bf16 values."""
    with np.errstate(all="ignore"):
        return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def scaled(rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> np.ndarray:
    """Normal values times 2^low .. 2^high."""
    return np.ldexp(rng.standard_normal(shape), rng.integers(low, high + 1, shape))


@pytest.mark.parametrize("narrow", [True, False], ids=["bf16", "fp32"])
@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 0), (-8, 8), (-30, 30), (-75, -60), (-130, -10), (-133, 127)],
    ids=["normal", "wide", "beyond the proof", "subnormal results", "subnormal operands", "every exponent"],
)
def test_random(low: int, high: int, narrow: bool) -> None:
    rng = np.random.default_rng(high - low)
    cast = bf16 if narrow else np.float32
    with np.errstate(over="ignore"):
        a, b = cast(scaled(rng, (2, 3, K), low, high)), cast(scaled(rng, (2, 70, K), low, high))
    check(a, b)
    check(a, b, (scaled(rng, (3, 70), low, high) * 2.0 ** min(low, 0)).astype(np.float32))


def test_mixed_widths() -> None:
    rng = np.random.default_rng(5)
    a, b = scaled(rng, (2, 4, K), -9, 9), scaled(rng, (2, 9, K), -9, 9)
    check(a.astype(np.float32), bf16(b))
    check(bf16(a), b.astype(np.float32))


def test_cancelling() -> None:
    """The second half of the slots takes the first half back, but for one slot far below."""
    rng = np.random.default_rng(6)
    a, b = bf16(scaled(rng, (2, 4, K), -12, 12)), bf16(scaled(rng, (2, 30, K), -12, 12))
    a[..., K // 2 :], b[..., K // 2 :] = -a[..., : K // 2], b[..., : K // 2]
    check(a, b)
    a[..., 7] *= np.float32(2.0**-40)
    check(a, b)
    a[..., 3] = 0
    check(a, b, rng.standard_normal((4, 30)).astype(np.float32))


def test_scaled_mfma_width() -> None:
    rng = np.random.default_rng(7)
    codes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    scales = np.exp2(rng.integers(-20, 20, (2, 2, 6, 4))).astype(np.float32).repeat(32, axis=-1)
    a, b = rng.choice(codes, (2, 2, 6, 128)) * scales
    check(a, b)


@pytest.mark.parametrize("tail", [2.0**-30, 2.0**-55, 2.0**-100, 2.0**-140, 0.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("odd", [0, 1])
@pytest.mark.parametrize("scale", [1.0, 2.0**10, 2.0**-60, 2.0**100])
def test_double_rounding_traps(tail: float, sign: float, odd: int, scale: float) -> None:
    """C plus half an ulp is a midpoint; only the tail, often lost by float64, says which way to go."""
    a, b = np.zeros((1, 2, K), np.float32), np.ones((1, 2, K), np.float32)
    a[0, :, 3] = 2.0**-24 * scale
    a[0, :, 20] = sign * 2.0**-24 * scale * tail
    c = np.full((2, 2), (1 + odd * 2.0**-23) * scale, np.float32)
    check(a, b, c)
    check(-a, b, -c)
    check(a, b, -c)  # just below a power of two the ulp halves


def test_subnormal_midpoints() -> None:
    """2^-150 is half the smallest subnormal; a tail of 2^-200 decides."""
    for tail in (0.0, 2.0**-100, -(2.0**-100)):
        a, b = np.zeros((1, 1, K), np.float32), np.full((1, 1, K), 2.0**-100, np.float32)
        a[..., :2] = 2.0**-50, tail
        for c in (0.0, 2.0**-149, 3 * 2.0**-149, -(2.0**-149), -(2.0**-126), -0.0):
            check(a, b, np.full((1, 1), c, np.float32))
            check(-a, b, np.full((1, 1), c, np.float32))


def test_signed_zeros() -> None:
    rng = np.random.default_rng(8)
    zeros = np.array([0.0, -0.0], np.float32)
    check(rng.choice(zeros, (2, 4, K)), np.ones((2, 6, K), np.float32), rng.choice(zeros, (4, 6)))
    minus = np.full((3, 2, K), -0.0, np.float32)
    ones = np.ones((3, 2, K), np.float32)
    assert np.signbit(FUSED.chain(minus, ones, np.full((2, 2), -0.0, np.float32))).all()
    assert not np.signbit(FUSED.chain(minus, ones)).any()
    tiny = np.full((1, 1, K), -(2.0**-80), np.float32)
    assert np.signbit(FUSED.chain(tiny, -tiny)).all()  # underflows to -0
    check(np.concatenate([tiny, minus[:1, :1], tiny]), np.concatenate([-tiny, ones[:1, :1], tiny]))


@pytest.mark.parametrize("width", ["bf16", "fp32"])
def test_infinities_and_nan(width: str) -> None:
    rng = np.random.default_rng(9)
    unit = 1.0 if width == "bf16" else 1 + 2.0**-20
    values = np.array([math.inf, -math.inf, math.nan, 0.0, 1.0, -2.0], np.float32) * np.float32(unit)
    odds = [0.01, 0.01, 0.005, 0.3, 0.3, 0.375]
    check(rng.choice(values, (2, 6, K), p=odds), rng.choice(values, (2, 20, K), p=odds))
    check(rng.choice(values[3:], (2, 6, K)), rng.choice(values[3:], (2, 6, K)), rng.choice(values, (6, 6)))


def test_one_infinity_leaves_its_neighbours_alone() -> None:
    rng = np.random.default_rng(10)
    a, b = bf16(scaled(rng, (2, 1, K), -20, 20)), bf16(scaled(rng, (2, 70, K), -20, 20))
    b[0, 5, 1] = math.inf
    check(a, b)
    check(a, b * np.float32(1 + 2.0**-20))  # fp32 operands are summed in parts, none of them infinite


def test_overflow_rounds_at_the_last_midpoint() -> None:
    a, b = np.zeros((1, 1, K), np.float32), np.ones((1, 1, K), np.float32)
    for addend in (2.0**102, 2.0**103, 2.0**104):
        a[..., 0] = addend
        check(a, b, np.full((1, 1), np.finfo(np.float32).max))


@given(st.lists(st.tuples(st.integers(-6, 6), st.integers(-60, 60), st.integers(-60, 60)), min_size=2, max_size=8))
def test_few_summands_at_any_distance(summands: list[tuple[int, int, int]]) -> None:
    a, b = np.zeros((1, 1, K), np.float32), np.zeros((1, 1, K), np.float32)
    for k, (digit, x, y) in enumerate(summands):
        a[..., k], b[..., k] = digit * 2.0**x, 2.0**y
    check(a, b, np.float32(a[..., 0]).reshape(1, 1))
