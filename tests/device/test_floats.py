"""fp32 helpers, bf16 by bits, and the matrix instruction's lanes, against NumPy and the models of the hardware."""

from __future__ import annotations

import math

import numpy as np
import pytest

from k3lab.formats import bf16_bits, bf16_values
from k3lab.hardware import approx

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from tests.device.micro import agree, floats, run, words

F32 = np.float32
SPECIALS = np.array(
    [
        *(0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e-45, 2.0**-126, -(2.0**-126)),
        *(3.4028235e38, -3.4028235e38, 128.0, 127.99999, -126.0, -126.00001, -149.0, -150.0),
        *(88.72284, 88.72283, -87.4, 0.25, 2.0, 4.0),
    ],
    F32,
)
TIES = np.array(
    [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0x7F7F8000, 0x00008000, 0x80018000], np.uint32
)
NANS = np.array([0x7F800001, 0x7FA5A5A5, 0xFF80FFFF, 0x7FC12345, 0xFFFFFFFF, 0x7F8000FF], np.uint32)


def special_row(seed: int = 0) -> np.ndarray:
    row = floats(seed, 64) / F32(1000)
    row[: len(SPECIALS)] = SPECIALS
    return row


def test_sums_in_the_stated_order():
    a = floats(1, 4, 64)
    four = ((a[0] + a[1]) + a[2]) + a[3]
    out = run("sums", a, 5)
    agree(out, [four, a[0], (four + a[0]) + a[1], (((F32(0) + a[0]) + a[1]) + a[2]) + a[3], F32(0) + a[0]])
    for other in ((a[0] + a[1]) + (a[2] + a[3]), ((a[3] + a[2]) + a[1]) + a[0], ((a[0] + a[2]) + a[1]) + a[3]):
        assert (other != four).any()


def test_sums_of_negative_zeros():
    """Only a sum from 0.0 turns -0.0 into +0.0."""
    zeros = np.full((4, 64), -0.0, F32)
    agree(run("sums", zeros, 5), [F32(-0.0), F32(-0.0), F32(-0.0), F32(0.0), F32(0.0)])


def test_sums_of_infinities_and_nans():
    rows = np.stack([np.roll(special_row(), shift) for shift in (0, 1, 5, 11)])
    with np.errstate(all="ignore"):
        four = ((rows[0] + rows[1]) + rows[2]) + rows[3]
        expected = [four, rows[0], (four + rows[0]) + rows[1], F32(0) + four, F32(0) + rows[0]]
        expected[3] = (((F32(0) + rows[0]) + rows[1]) + rows[2]) + rows[3]
    agree(run("sums", rows, 5)[[0, 2, 3, 4]], [expected[i] for i in (0, 2, 3, 4)])


@pytest.mark.parametrize("seed", range(4))
def test_functions_are_those_of_the_hardware_model(seed):
    x = special_row(seed) if seed else np.abs(floats(3, 64))
    log2e = F32(math.log2(math.e))
    with np.errstate(all="ignore"):
        expected = [approx.exp2(x), approx.rsq(x), approx.exp2(x * log2e)]
        expected += [F32(1) / (F32(1) + approx.exp2(x * -log2e))]
        expected += [approx.rsq(x * F32(1 / width) + F32(eps)) for width, eps in ((7168, 1e-5), (128, 1e-6))]
    agree(run("functions", [x], 6), expected)


def test_narrowing_rounds_to_nearest_even():
    a = np.stack([special_row(4), floats(5, 64), floats(6, 64), special_row(7)])
    a[:, 40 : 40 + len(TIES)] = TIES.view(F32)
    a[:, 50 : 50 + len(NANS)] = NANS.view(F32)
    bits = [bf16_bits(row) for row in a]
    out = run("narrowed", a, 3)
    agree(out[:1], [bf16_values(bits[0])])
    for word, (low, high) in zip(out[1:], ((0, 1), (2, 3)), strict=True):
        for got, number in ((word & 0xFFFF, low), (word >> 16 & 0xFFFF, high)):
            number_of = np.isnan(a[number])
            assert (got[~number_of] == bits[number][~number_of]).all()
            assert ((got[number_of] & 0x7FFF) > 0x7F80).all()


def test_widening_keeps_every_bit():
    rows = words(8, 2, 64)
    rows.view(np.uint16)[:, :6] = (NANS >> 16).astype(np.uint16)
    rows.view(np.uint16)[:, 6:12] = [0x7F81, 0xFF81, 0x8000, 0x0001, 0x7F80, 0x7FBF]
    halves = [half for row in rows for half in (row << 16, row & -0x10000)]
    agree(run("widened", rows, 5), [*halves, rows[0] << 16], quiet_nans=False)


class TestMatrix:
    def test_every_lane_holds_what_is_stated(self):
        """Whole numbers: exact, so that any lane or row out of place shows."""
        rng = np.random.default_rng(9)
        a, b = (rng.integers(-9, 10, (16, 32)).astype(F32) for _ in range(2))
        c = rng.integers(-1000, 1000, (16, 16)).astype(F32)
        exact = a.astype(np.float64) @ b.T.astype(np.float64)
        out = self.products(a, b, c)
        assert (out[0] == exact + c).all() and (out[1] == exact).all()

    def test_real_numbers_are_near_float64(self):
        rng = np.random.default_rng(10)
        a, b = (bf16_values(bf16_bits(rng.standard_normal((16, 32)).astype(F32))) for _ in range(2))
        c = rng.standard_normal((16, 16)).astype(F32)
        exact = a.astype(np.float64) @ b.T.astype(np.float64)
        errors = np.abs(self.products(a, b, c) - np.stack([exact + c, exact]))
        assert 0 < errors.max() < 4e-6

    def test_an_accumulator_of_zero_is_positive(self):
        zeros = np.zeros((16, 32), F32)
        assert not np.signbit(self.products(zeros, zeros, np.zeros((16, 16), F32))).any()

    @staticmethod
    def products(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        operands = np.concatenate([bf16_bits(a).ravel(), bf16_bits(b).ravel()]).astype(np.uint16).view(np.int32)
        source = np.concatenate([operands, c.ravel().view(np.int32)])
        return run("product", source, 8).view(F32).reshape(2, 16, 16)
