"""Stochastic rounding: unbiased, seeded, and only ever one of the two neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from k3lab import formats

DRAWS = 200_000


@pytest.mark.parametrize(
    ("name", "x"),
    [
        ("bf16", 1.003),
        ("bf16", -1.0002),
        ("fp8_e4m3", 0.3),
        ("fp8_e4m3", 2.0**-9 * 0.3),  # below the smallest subnormal: 0 or 2^-9
        ("e2m1", 0.01),
        ("e2m1", -5.0),
        ("fp16", 1e-7),
        ("fp32", 1 + 2**-25),
    ],
)
def test_the_mean_is_the_value(name: str, x: float) -> None:
    """Each draw is low + step * Bernoulli(p), so the mean's sigma is step * sqrt(p (1 - p) / DRAWS); 5 sigma of it."""
    fmt = formats.get(name)
    draws = fmt.round(np.full(DRAWS, x), "stochastic", seed=11)
    low = fmt.round(np.array([x]), "zero")[0]
    step = fmt.ulp(np.array([x]))[0]
    p = abs(x - low) / step
    assert set(np.unique(draws)) <= {low, low + np.copysign(step, x)}
    assert abs(draws.mean() - x) <= 5 * step * np.sqrt(p * (1 - p) / DRAWS)


def test_exact_values_never_move() -> None:
    e2m1 = formats.E2M1.decode(np.arange(16)).astype(np.float64)
    for seed in range(50):
        np.testing.assert_array_equal(formats.E2M1.round(e2m1, "stochastic", seed), e2m1)


def test_far_below_the_smallest_subnormal_nothing_is_ever_drawn() -> None:
    """P(up) = 2^-99 here; a dither cut to too few bits would show up in 200 000 draws."""
    for x in (2.0**-100, 2.0**-1060):
        assert not formats.E2M1.round(np.full(DRAWS, x), "stochastic", 1).any()


def test_saturation_and_special_values() -> None:
    x = np.array([447.9, 500, np.inf, -np.inf, np.nan])
    rounded = formats.FP8_E4M3.round(x, "stochastic", 2)
    np.testing.assert_array_equal(rounded[1:4], [448, 448, -448])
    assert np.isnan(rounded[4])
    np.testing.assert_array_equal(formats.BF16.round(x[2:4], "stochastic"), [np.inf, -np.inf])


def test_seed_and_shape_decide() -> None:
    x = np.random.default_rng(0).standard_normal((50, 40))
    first = formats.FP8_E4M3.round(x, "stochastic", 7)
    np.testing.assert_array_equal(first, formats.FP8_E4M3.round(x.copy(), "stochastic", 7))
    assert (first != formats.FP8_E4M3.round(x, "stochastic", 8)).mean() > 0.1
    # Pinned, so that a new NumPy cannot change old reports unnoticed.
    pinned = [4, 4, 4, 4, 4, 5, 4, 5, 4, 5, 5, 5, 4, 4, 4, 4]
    np.testing.assert_array_equal(formats.E2M1.encode(np.full(16, 2.5), "stochastic", 7), pinned)
