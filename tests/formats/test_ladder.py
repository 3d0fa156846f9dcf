"""The ladder of representable values: ulp, step, neighbours, steps_between."""

from __future__ import annotations

import numpy as np
import pytest

from k3lab import formats

LADDERS = ["bf16", "fp16", "fp8_e4m3", "fp8_e4m3fnuz", "fp8_e5m2", "e2m1", "e8m0"]


def ladder(name: str) -> np.ndarray:
    """Every value of the format in ascending order (float64), zero once, infinities included."""
    fmt = formats.get(name)
    values = fmt.decode(fmt.codes())
    return np.unique(values[~np.isnan(values)].astype(np.float64))


@pytest.mark.parametrize("name", LADDERS)
def test_step_walks_the_whole_ladder(name: str) -> None:
    fmt, values = formats.get(name), ladder(name)
    for n in (1, 3):
        np.testing.assert_array_equal(fmt.step(values, n)[:-n], values[n:])
        np.testing.assert_array_equal(fmt.step(values, -n)[n:], values[:-n])
        np.testing.assert_array_equal(fmt.step(values, n)[-n:], values[-1])  # the top rung holds
        np.testing.assert_array_equal(fmt.step(values, -n)[:n], values[0])
    np.testing.assert_array_equal(fmt.step(values, 0), values)


@pytest.mark.parametrize("name", LADDERS)
def test_steps_between_counts_rungs(name: str) -> None:
    fmt, values = formats.get(name), ladder(name)
    rungs = np.arange(len(values))
    np.testing.assert_array_equal(fmt.steps_between(values[:1], values), rungs)
    np.testing.assert_array_equal(fmt.steps_between(values, values[-1:]), rungs[::-1])


@pytest.mark.parametrize("name", LADDERS)
def test_ulp_is_the_gap_to_the_next_value_up(name: str) -> None:
    fmt, values = formats.get(name), ladder(name)
    values = values[(values >= 0) & np.isfinite(values)]
    gaps = np.diff(values)
    np.testing.assert_array_equal(fmt.ulp(values)[:-1], gaps)
    np.testing.assert_array_equal(fmt.ulp(-values)[:-1], gaps)
    assert fmt.ulp(np.array(fmt.max)) == fmt.ulp(np.array(2 * fmt.max)) == fmt.ulp(np.array(np.inf))
    if name != "e8m0":  # whose top binade holds one value
        assert fmt.ulp(np.array(fmt.max)) == gaps[-1]
    assert np.isnan(fmt.ulp(np.array(np.nan)))


def test_ulp_in_the_middle_of_a_binade_and_below_the_smallest() -> None:
    np.testing.assert_array_equal(
        formats.E2M1.ulp(np.array([0, 0.1, 0.9, 1.7, 2.0, 3.9, 4.0, 99])), [*[0.5] * 4, 1, 1, 2, 2]
    )
    assert formats.BF16.ulp(np.float32(1.0)) == 2**-7
    assert formats.FP32.ulp(np.float64(1e-60)) == 2.0**-149


def test_stepping_across_zero_keeps_the_sign_of_a_zero() -> None:
    e2m1 = formats.E2M1
    assert np.signbit(e2m1.step(np.array(-0.5), 1)) and not np.signbit(e2m1.step(np.array(0.5), -1))
    assert np.signbit(e2m1.step(np.array(-0.0), 0))
    assert e2m1.step(np.array(-0.0), 1) == 0.5 and e2m1.step(np.array(0.0), -1) == -0.5
    assert not np.signbit(formats.FP8_E4M3FNUZ.step(np.array(-(2.0**-10)), 1))  # FNUZ has no -0
    assert e2m1.steps_between(np.array(-0.0), np.array(0.0)) == 0
    assert e2m1.steps_between(np.array(-0.5), np.array(1.0)) == 3


def test_the_ladder_ends_at_max_or_at_infinity() -> None:
    assert formats.FP8_E4M3.step(np.array(448.0), 1) == 448
    assert formats.FP16.step(np.array(65504.0), 1) == np.inf
    assert formats.FP16.step(np.array(np.inf), -1) == 65504
    assert np.isnan(formats.FP16.step(np.array(np.nan), 1))


def test_fp32_steps_are_numpy_nextafter() -> None:
    x = np.random.default_rng(0).integers(0, 1 << 32, 10_000, dtype=np.uint32).view(np.float32)
    x = np.concatenate([x[np.isfinite(x)], np.float32([0.0, -0.0])])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(formats.FP32.step(x, 1), np.nextafter(x, np.float32(np.inf)))


def test_nan_distances() -> None:
    nan, one = np.array([np.nan, np.nan, 1.0]), np.array([np.nan, 1.0, np.nan])
    np.testing.assert_array_equal(formats.BF16.steps_between(nan, one), [0, formats.NAN_STEPS, formats.NAN_STEPS])


def test_neighbours_is_a_window_of_the_ladder() -> None:
    np.testing.assert_array_equal(
        formats.E2M1.neighbours(np.array([0.0, 3.0]), 2), [[-1, 1.5], [-0.5, 2], [0, 3], [0.5, 4], [1, 6]]
    )
