"""Property tests against rounding in exact rational arithmetic (`fractions`)."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k3lab import formats

NAMES = ["bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e4m3fnuz", "fp8_e5m2", "e2m1"]


def floor_log2(v: Fraction) -> int:
    """Exact floor(log2 v) of a positive fraction."""
    e = v.numerator.bit_length() - v.denominator.bit_length()
    return e if Fraction(2) ** e <= v else e - 1


def exact_round(fmt: formats.FloatFormat, x: float, mode: str) -> float:
    """x rounded by the definition: the nearest multiple of the binade's spacing, ties to an even multiple."""
    v = abs(Fraction(x))
    exponent = max(floor_log2(v), 1 - fmt.bias) if v else 1 - fmt.bias
    spacing = Fraction(2) ** (exponent - fmt.man_bits)
    n, rest = divmod(v / spacing, 1)
    n += mode == "nearest" and (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and n % 2 == 1))
    rounded = n * spacing
    if rounded > fmt.max:
        rounded = fmt.max if fmt.saturates or mode == "zero" else math.inf
    return math.copysign(float(rounded), x)


def interesting(fmt: formats.FloatFormat) -> st.SearchStrategy[float]:
    """float64 values: anything, values in the format's range, and values on and one float64 step beside its ties."""
    scale = st.integers(-fmt.bias - fmt.man_bits - 3, min(fmt.bias + 2, 1000))
    in_range = st.builds(math.ldexp, st.floats(-2, 2), scale)
    odd_multiple = st.integers(-(2 ** (fmt.man_bits + 2)), 2 ** (fmt.man_bits + 2)).map(lambda n: n + 0.5)
    tie = st.builds(math.ldexp, odd_multiple, scale.map(lambda e: e - fmt.man_bits))
    beside = st.builds(math.nextafter, tie, st.sampled_from([-math.inf, math.inf]))
    return st.one_of(st.floats(allow_nan=False, allow_infinity=False), in_range, tie, beside)


@pytest.mark.parametrize("mode", ["nearest", "zero"])
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_float64_rounds_as_fractions_say(name: str, mode: str, data: st.DataObject) -> None:
    fmt = formats.get(name)
    x = data.draw(st.lists(interesting(fmt), min_size=1, max_size=20))
    expected = [exact_round(fmt, v, mode) for v in x]
    got = fmt.round(np.array(x), mode)
    np.testing.assert_array_equal(got, expected, err_msg=repr(x))
    if fmt.signed_zero:
        np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize("mode", formats.MODES)
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_laws_of_rounding(name: str, mode: str, data: st.DataObject) -> None:
    fmt = formats.get(name)
    x = np.array(data.draw(st.lists(interesting(fmt), min_size=2, max_size=20)))
    rounded = fmt.round(x, mode, seed=3)
    np.testing.assert_array_equal(fmt.round(rounded, mode, seed=4), rounded)  # idempotent
    np.testing.assert_array_equal(fmt.decode(fmt.encode(x, mode, seed=3)).astype(np.float64), rounded)
    inside = np.abs(x) <= fmt.max
    error, ulp = np.abs(x - rounded)[inside], fmt.ulp(x)[inside]
    assert (error <= (ulp / 2 if mode == "nearest" else ulp)).all()
    if mode != "stochastic":  # monotone
        ascending = fmt.round(np.sort(x), mode)
        assert (ascending[1:] >= ascending[:-1]).all()
    if mode == "zero":
        assert (np.abs(rounded) <= np.abs(x)).all()


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(x=st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_float32_and_float64_round_alike(name: str, x: list[float]) -> None:
    fmt, x32 = formats.get(name), np.array(x, np.float32)
    for mode in formats.MODES:
        np.testing.assert_array_equal(fmt.round(x32, mode, 5), fmt.round(x32.astype(np.float64), mode, 5))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data(), n=st.integers(-5, 5))
def test_steps_between_undoes_step(name: str, data: st.DataObject, n: int) -> None:
    fmt = formats.get(name)
    x = np.array([data.draw(st.floats(-fmt.max / 4, fmt.max / 4))])
    start = fmt.round(x)
    there = fmt.step(start, n)
    if np.abs(there) < fmt.max:
        assert fmt.steps_between(start, there) == n
