"""Whole tiles at once: exact wherever they are proven, against fractions, and by a proof as loose as it may be."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from k3lab.hardware import mfma
from k3lab.hardware.mfma import bounds, tiles
from k3lab.hardware.mfma.bounds import significand_bits
from k3lab.hardware.mfma.tiles import proven_tiles
from tests.hardware.test_mfma_fused import K, bf16, expected, scaled

F32 = NDArray[np.float32]
M, N = 2, 3


def right(a: F32, b: F32, c: F32) -> NDArray[np.bool_]:
    """Which tiles [W] come out as the exact sum rounded once, bit for bit."""
    got, _ = proven_tiles(a, b, c)
    with np.errstate(all="ignore"):
        truth = np.stack([expected(x[None], y[None], z) for x, y, z in zip(a, b, c, strict=True)])
    same = (got.view(np.uint32) == truth.view(np.uint32)) | (np.isnan(got) & np.isnan(truth))
    return same.all(axis=(1, 2))


def check(a: F32, b: F32, c: F32) -> NDArray[np.bool_]:
    """Assert that what is proven is right; returns what is proven."""
    _, proven = proven_tiles(a, b, c)
    assert right(a, b, c)[proven].all()
    return proven


def at_once(a: F32, b: F32, c: F32) -> NDArray[np.bool_]:
    """Which tiles need no cutting into parts."""
    return tiles._proven(*map(bounds.Spread.of_tiles, (a, b, c)), K)


def zeros(tiles: int) -> tuple[F32, F32, F32]:
    return (np.zeros((tiles, *shape), np.float32) for shape in ((M, K), (N, K), (M, N)))  # type: ignore[return-value]


def test_significand_bits() -> None:
    for bits, value in ((1, 0.0), (1, -4.0), (1, math.inf), (2, 3.0), (8, 255.0), (11, 2047.0), (24, 1 + 2.0**-23)):
        assert significand_bits(np.array([1, value], np.float32)) == bits
    assert significand_bits(np.array([2.0**-149], np.float32)) == 24  # its one bit is a fraction's last
    assert significand_bits(np.array([2.0**-127], np.float32)) == 2


@pytest.mark.parametrize("width", [np.float16, np.float32, "bf16"], ids=["fp16", "fp32", "bf16"])
@pytest.mark.parametrize("spread", range(0, 25, 3))
def test_random_tiles_on_both_sides_of_the_proof(spread: int, width: object) -> None:
    """Exponents further and further apart, C as large as the sums, far larger, or far smaller."""
    rng = np.random.default_rng(spread)
    values = scaled(rng, (60, M, K), -spread // 2, 0), scaled(rng, (60, N, K), -spread // 2, 0)
    a, b = (bf16(v) if width == "bf16" else v.astype(width).astype(np.float32) for v in values)
    c = scaled(rng, (60, M, N), -spread, spread).astype(np.float32)
    assert check(a, b, c).all() or width is np.float32
    if width == "bf16":
        assert at_once(a, b, c).all() if spread == 0 else True
        assert not at_once(a, b, c).any() if spread == 24 else True


@pytest.mark.parametrize("spread", [30, 60, 100, 200])
def test_random_tiles_in_windows(spread: int) -> None:
    """The wider the exponents, the more parts, until they are too many."""
    rng = np.random.default_rng(spread)
    a, b = bf16(scaled(rng, (40, M, K), -spread, 0)), bf16(scaled(rng, (40, N, K), -spread // 2, spread // 2))
    c = scaled(rng, (40, M, N), -spread, spread // 2).astype(np.float32)
    assert not at_once(a, b, c).any()
    assert check(a, b, c).all() if spread <= 30 else True
    assert not check(a, b, c).any() if spread == 200 else True


@pytest.mark.parametrize("scale", [2.0**-100, 2.0**-64, 2.0**-20, 1.0, 2.0**60])
def test_cancelling(scale: float) -> None:
    """Half of the slots take the other half back; what is left is C, or a slot far below, or nothing."""
    rng = np.random.default_rng(3)
    a, b = bf16(scaled(rng, (80, M, K), -3, 3) * scale), bf16(scaled(rng, (80, N, K), -3, 3))
    a[..., K // 2 :], b[..., K // 2 :] = -a[..., : K // 2], b[..., : K // 2]
    _, _, c = zeros(80)
    got, proven = proven_tiles(a, b, c)
    assert check(a, b, c).any() and not np.signbit(got[proven]).any() and not got[proven].any()
    a[:40, :, 5] *= np.float32(2.0**-6)
    c[20:] = bf16(scaled(rng, (60, M, N), -9, 0) * scale)
    assert check(a, b, c).any()


def at_the_edge(below: int, sign: float) -> tuple[F32, F32, F32]:
    """C = 2 - 2^-23, of which 2^-24 is half an ulp, and a product of +-2^-below that says which way to round.

    All of it is a multiple of 2^-below and, as the proof has it, below 4: it takes 2 + `below` bits.
    """
    a, b, c = zeros(1)
    c[:] = 2 - 2.0**-23
    a[..., 4], b[..., 4] = 2.0**-12, 2.0**-12
    a[..., 30], b[..., 30] = sign * 2.0 ** -(below // 2), 2.0 ** -(below - below // 2)
    return a, b, c


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_last_bit_that_the_proof_allows(sign: float) -> None:
    assert at_once(*at_the_edge(51, sign)).all() and check(*at_the_edge(51, sign)).all()
    assert not at_once(*at_the_edge(52, sign)).any() and check(*at_the_edge(52, sign)).all()


def test_a_looser_proof_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two bits more, and a sum that float64 does not hold passes as proven."""
    assert not at_once(*at_the_edge(53, -1.0)).any()
    monkeypatch.setattr(tiles, "FLOAT64_BITS", bounds.FLOAT64_BITS + 2)
    data = at_the_edge(53, -1.0)
    assert proven_tiles(*data)[1].all() and not right(*data).any()


def far_apart(span: int) -> tuple[F32, F32, F32]:
    """Products of full significands over `span` binades each, that cancel but for C and one far below them all."""
    rng = np.random.default_rng(span)
    a, b = (
        bf16(np.ldexp(rng.uniform(1, 2, (60, rows, K)), -rng.choice([0, span // 2, span], (60, 1, K))))
        for rows in (M, N)
    )
    a[..., K // 2 :], b[..., K // 2 :] = -a[..., : K // 2], b[..., : K // 2]
    a[..., 0], b[..., K // 2] = 0, 2.0**-span
    return a, b, scaled(rng, (60, M, N), -110, -2 * span).astype(np.float32)


@pytest.mark.parametrize("span", [16, 17, 33, 34, 50, 55])
def test_cancelling_in_windows(span: int) -> None:
    assert check(*far_apart(span)).all()


def test_wider_windows_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 17 binades leaves 2^-17 out of the first; one of 18 puts 55 bits into one sum. C bares the last."""
    a, b, c = zeros(1)
    a[:] = b[:] = 255 / 128
    c[:] = -31 * (255 / 128) ** 2
    a[..., 20], b[..., 20] = 255 / 128 * 2.0**-17, 255 / 128 * 2.0**-17
    rest = 255**2 * 2.0**-48
    sums, done = tiles._windowed(a, b, c)
    assert done.all() and (sums == rest).all() and check(a, b, c).all()
    monkeypatch.setattr(tiles, "FLOAT64_BITS", bounds.FLOAT64_BITS + 2)
    sums, done = tiles._windowed(a, b, c)
    assert done.all() and (sums != rest).all()


@pytest.mark.parametrize("operand", ["a", "b", "c"])
def test_a_bound_that_forgets_an_operand_would_be_wrong(operand: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operand in turn has the small value that decides; a proof that takes it for a zero lets the sum pass."""
    a, b, c = zeros(1)
    a[..., 0], b[..., 0], c[:] = 1, 1, 2.0**-24  # a midpoint between 1 and 1 + 2^-23
    if operand == "a":
        a[..., 9], b[..., 9] = 2.0**-60, 1
    elif operand == "b":
        a[..., 9], b[..., 9] = 1, 2.0**-60
    else:
        a[..., 9], b[..., 9] = 2.0**-12, 2.0**-12
        c[:] = 2.0**-60
    assert not at_once(a, b, c).any() and check(a, b, c).all()
    of_tiles = bounds.Spread.of_tiles
    small = {"a": a, "b": b, "c": c}[operand]

    def forgetful(values: F32) -> bounds.Spread:
        spread = of_tiles(values)
        absent = np.full_like(spread.low, bounds.ABSENT)
        return bounds.Spread(spread.high, absent, spread.width) if values is small else spread

    monkeypatch.setattr(bounds.Spread, "of_tiles", forgetful)
    assert proven_tiles(a, b, c)[1].all() and not right(a, b, c).any()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("operand", [0, 1, 2])
def test_what_is_not_finite_is_never_proven(value: float, operand: int) -> None:
    data = tuple(np.ones_like(x) for x in zeros(3))
    data[operand][1, 1, 1] = value
    assert check(*data).tolist() == [True, False, True]


def test_a_c_of_minus_zero_is_never_proven() -> None:
    a, b, c = zeros(4)
    a[:], b[:] = -0.0, 1
    c[1, 0, 0] = -0.0  # all products are -0: the sum is -0
    a[2, 0, 7], c[2, 0, 0] = 0.0, -0.0
    c[3] = 1
    assert check(a, b, c).tolist() == [True, False, False, True]
    assert not np.signbit(proven_tiles(a, b, c)[0][0]).any()  # +0 and products of -0 make +0


def test_results_at_the_ends_of_the_range() -> None:
    """Subnormal results and operands, sums that round to the largest float32 and beyond it."""
    a, b, c = zeros(1)
    a[0, 0, :3], b[:] = (2.0**-149, 2.0**-149, -(2.0**-140)), 1
    assert check(a, b, c).all()
    a, b, c = zeros(6)
    b[:] = 1
    a[1], b[1] = 2.0**-75, 2.0**-75  # 32 products of 2^-150
    a[2, 1, 3], b[2] = -(2.0**-80), 2.0**-80  # rounds to -0
    a[3, 0, 0], c[3] = 2.0**103, np.finfo(np.float32).max  # half an ulp: to infinity
    a[4, 0, 0], c[4] = 2.0**102, np.finfo(np.float32).max
    a[5], b[5] = 2.0**63, 2.0**63
    assert check(a, b, c).all()
    got = proven_tiles(a, b, c)[0]
    assert np.signbit(got[2, 1]).all() and np.isinf(got[3, 0]).all() and np.isfinite(got[4]).all()


def test_tiles_that_share_an_operand() -> None:
    rng = np.random.default_rng(4)
    a, b, c = bf16(scaled(rng, (5, M, K), 0, 0)), bf16(scaled(rng, (5, N, K), 0, 0)), np.zeros((1, M, N), np.float32)
    for x, y, z in ((a[:1], b, c), (a, b[:1], c), (a[:1], b[:1], c), (a[:1], b[:1], np.ones((5, M, N), np.float32))):
        got, proven = proven_tiles(x, y, z)
        assert np.array_equal(got, mfma.get("fused").chain(x[None], y[None], z)) and proven.all()
