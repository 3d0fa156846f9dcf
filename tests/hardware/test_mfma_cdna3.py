"""The `cdna3` MFMA model against MMA-Sim's own package, where that can run, and against its rules by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from k3lab.hardware import mfma

F32 = NDArray[np.float32]
CDNA3 = mfma.get("cdna3")
N, K = 40, 32


@pytest.fixture(scope="module")
def oracle() -> object:
    try:
        from mmasim.amd import MFMA  # compiles a small C++ file on first use

        return MFMA("CDNA3", "f32_16x16x16_bf16")
    except Exception as why:
        pytest.skip(f"mmasim cannot be used here: {why!r}")


def bf16(values: np.ndarray) -> F32:
    with np.errstate(all="ignore"):
        return (values.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def scaled(rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> F32:
    with np.errstate(all="ignore"):
        return np.ldexp(rng.standard_normal(shape), rng.integers(low, high, shape)).astype(np.float32)


def check(oracle: object, a: F32, b: F32, c: F32) -> None:
    """K = 32 on CDNA3 is two instructions of K = 16."""
    a, b = bf16(a), bf16(b)
    wide_a, wide_b, acc = torch.from_numpy(a).bfloat16(), torch.from_numpy(b).bfloat16(), torch.from_numpy(c)
    for k in (slice(0, 16), slice(16, 32)):
        acc = oracle(wide_a[:, k], wide_b[:, k].T, acc)  # type: ignore[operator]
    truth, got = acc.numpy(), CDNA3.chain(a[None], b[None], c)
    same = (truth.view(np.uint32) == got.view(np.uint32)) | (np.isnan(truth) & np.isnan(got))
    assert same.all(), f"{got[~same][:4]} instead of {truth[~same][:4]}"


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-8, 8), (-30, 30), (-126, 127), (-149, -60), (40, 100), (-20, 64)])
def test_scaled_data_against_mmasim(oracle: object, low: int, high: int) -> None:
    rng = np.random.default_rng(high - low)
    a, b = scaled(rng, (2, N, K), low, high)
    check(oracle, a, b, np.zeros((N, N), np.float32))
    check(oracle, a, b, scaled(rng, (N, N), low, high))


def test_any_bits_against_mmasim(oracle: object) -> None:
    """Infinities and NaN included, rare enough that most outputs stay finite."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 1 << 32, (2, N, K), dtype=np.uint32).view(np.float32)
    check(oracle, a, b, rng.integers(0, 1 << 32, (N, N), dtype=np.uint32).view(np.float32))
    a, b = scaled(rng, (2, N, K), -5, 5)
    a[3, 7], b[5, 9], b[6, 9], a[3, 9] = np.inf, -np.inf, np.nan, 0.0
    check(oracle, a, b, np.full((N, N), np.inf, np.float32))
    check(oracle, a, b, np.zeros((N, N), np.float32))


def test_zeros_and_subnormals_against_mmasim(oracle: object) -> None:
    rng = np.random.default_rng(1)
    for values in ([0.0, -0.0], [0.0, -0.0, 1e-39, -1e-39, 2.0**-126, 1.0, -1.0]):
        a, b = rng.choice(np.array(values, np.float32), (2, N, K))
        check(oracle, a, b, rng.choice(np.array(values, np.float32), (N, N)))


def one(a: dict[int, float], c: float = 0.0) -> float:
    """The output for slots a, all b = 1."""
    slots = np.zeros((1, 1, K), np.float32)
    for k, value in a.items():
        slots[..., k] = value
    return float(CDNA3.chain(slots, np.ones_like(slots), np.full((1, 1), c, np.float32))[0, 0])


def test_products_are_truncated_toward_zero_at_24_bits_below_the_largest() -> None:
    assert one({0: 1.0, 1: 2.0**-25, 2: -1.0}) == 0
    assert one({0: 1.0, 1: -(2.0**-25), 2: -1.0}) == 0
    assert one({0: 1.0, 1: 2.0**-24, 2: -1.0}) == 2.0**-24
    assert one({0: 1.0, 8: 2.0**-25, 16: -1.0}) == 0  # three blocks: the accumulator's rounding takes it


def test_a_small_accumulator_is_floored() -> None:
    """The bias toward minus infinity: a tiny negative C costs a whole unit 24 bits down, a positive one nothing."""
    assert one({0: 1.0, 1: -1.0, 2: 2.0**-20}, c=-(2.0**-60)) == 2.0**-20 - 2.0**-24
    assert one({0: 1.0, 1: -1.0, 2: 2.0**-20}, c=2.0**-60) == 2.0**-20


def test_a_product_beyond_float32_is_infinite() -> None:
    big = np.zeros((1, 1, K), np.float32)
    big[..., :2] = 2.0**100
    assert np.isposinf(CDNA3.chain(big, big)).all()
    cancelling = big.copy()
    cancelling[..., 1] *= -1
    assert np.isnan(CDNA3.chain(big, cancelling)).all()
