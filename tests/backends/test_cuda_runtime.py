"""The run time's functions, compiled for this processor, against the models that twin and simulator share."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from k3lab.backends.cuda import hostbuild
from k3lab.backends.cuda.emit import Source
from k3lab.hardware import approx, mfma
from k3lab.sim.semantics.minmax import maximum, minimum
from k3lab.sim.semantics.narrow import encode, power_of_two

pytestmark = pytest.mark.skipif(not hostbuild.compiler(), reason="needs a C++ compiler")

SIZES = "#define K3_LDS 0\n#define K3_ROW 0\n#define K3_WAVE_BYTES 0\n#define K3_SHARED 0\n"
EACH = """
extern "C" void exp2s(const float* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = k3_exp2(x[i]); }
extern "C" void rsqs(const float* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = k3_rsq(x[i]); }
extern "C" void e4m3(const float* x, u32* y, int n) { for (int i = 0; i < n; ++i) y[i] = k3_to_e4m3(x[i]); }
extern "C" void e2m1(const float* x, u32* y, int n) { for (int i = 0; i < n; ++i) y[i] = k3_to_e2m1(x[i]); }
extern "C" void bf16(const float* x, u16* y, int n) { for (int i = 0; i < n; ++i) y[i] = k3_to_bf16(x[i]); }
extern "C" void e8m0(const u32* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = k3_e8m0_value(x[i]); }
extern "C" void codes(const u32* x, float* y, int n) { for (int i = 0; i < n; ++i) y[i] = k3_e2m1_value(x[i]); }
extern "C" void maxima(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = k3_maximum(x[i], x[n - 1 - i]);
}
extern "C" void minima(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = k3_minimum(x[i], x[n - 1 - i]);
}
extern "C" int exp2_sides(const float* x, const double* middle, u8* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = k3_exp2_above(x[i], middle[i]);
  return 0;
}
extern "C" void sums(const float* a, const float* b, const float* c, float* y, float* slow, int n, int slots) {
  for (int i = 0; i < n; ++i) {
    auto term = [=](int k) { return (double)a[i * slots + k] * (double)b[i * slots + k]; };
    y[i] = k3_sum(c[i], slots, term);
    slow[i] = k3_fixed_sum(c[i], slots, term);
  }
}
extern "C" void spread(const u32* x, u64* y, int n) { for (int i = 0; i < n; ++i) y[i] = k3_spread_bits(x[i]); }
"""


@pytest.fixture(scope="module")
def functions() -> ctypes.CDLL:
    source = Source("functions", SIZES, "static void k3_kernel(const K3Launch&) {}\n", 64, 0, 0, 0)
    return hostbuild._library(source.complete("host.hpp", "", defined=("K3_STACK 0",)) + EACH)


def apply(function: Any, *arrays: np.ndarray, out: np.ndarray) -> np.ndarray:
    held = [np.ascontiguousarray(array) for array in arrays]
    function(*(ctypes.c_void_p(array.ctypes.data) for array in (*held, out)), out.size)
    return out


def alike(got: np.ndarray, want: np.ndarray) -> bool:
    return bool(((got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))).all())


def floats(seed: int, count: int = 50_000) -> np.ndarray:
    """Any bit patterns, and values of every size that kernels use."""
    rng = np.random.default_rng(seed)
    any_bits = rng.integers(0, 1 << 32, count, np.uint64).astype(np.uint32).view(np.float32)
    usual = (rng.standard_normal(count) * 2.0 ** rng.integers(-30, 12, count)).astype(np.float32)
    edges = np.array([0.0, -0.0, 1.0, -126.0, -127.0, -125.99999, 127.99999, 128.0, -149.0, np.inf, -np.inf, np.nan])
    halves = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    return np.concatenate([any_bits, usual, edges.astype(np.float32), halves])


@pytest.mark.parametrize(("name", "model"), [("exp2s", approx.exp2), ("rsqs", approx.rsq)])
def test_the_approximations_are_the_models(functions, name, model):
    x = floats(1)
    assert alike(apply(getattr(functions, name), x, out=np.zeros_like(x)), model(x))


def test_the_side_of_a_midpoint_is_found_where_double_cannot_tell(functions):
    """Midpoints next to 2^x, and one double on either side of it: told apart exactly."""
    rng = np.random.default_rng(2)
    x = (rng.random(2000) * 250 - 125).astype(np.float32)
    near = np.exp2(x.astype(np.float64))
    middle = np.concatenate([near, np.nextafter(near, 0), np.nextafter(near, np.inf)])
    x = np.tile(x, 3)
    sides = np.zeros(x.size, np.uint8)
    functions.exp2_sides(*(ctypes.c_void_p(array.ctypes.data) for array in (x, middle, sides)), x.size)
    assert sides.tolist() == [approx._exp2_above(*pair) for pair in zip(x.tolist(), middle.tolist(), strict=True)]


@pytest.mark.parametrize(("name", "narrow"), [("e4m3", "fp8"), ("e2m1", "fp4")])
def test_narrow_codes_are_the_hardware_rules(functions, name, narrow):
    x = floats(3)
    got = apply(getattr(functions, name), x, out=np.zeros(x.size, np.uint32)).astype(np.uint8)
    want = encode(narrow, x)
    differ = got != want
    if narrow == "fp8":  # the sign of a NaN is its operand's, in both
        assert (got[np.isnan(x)] & 0x7F == 0x7F).all()
    assert not differ.any(), (x[differ][:5], got[differ][:5], want[differ][:5])


def test_bf16_rounds_to_nearest_even(functions):
    from k3lab.formats import bf16_bits

    x = floats(4)
    assert np.array_equal(apply(functions.bf16, x, out=np.zeros(x.size, np.uint16)), bf16_bits(x))


def test_decoders(functions):
    codes = np.arange(256, dtype=np.uint32)
    assert alike(
        apply(functions.e8m0, codes, out=np.zeros(256, np.float32)), power_of_two((codes << 23).view(np.float32))
    )
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    want = np.array([*values, *(-value for value in values)], np.float32)
    assert alike(apply(functions.codes, codes[:16], out=np.zeros(16, np.float32)), want)


@pytest.mark.parametrize(("name", "model"), [("maxima", maximum), ("minima", minimum)])
def test_extremes_keep_nan_and_order_zeros(functions, name, model):
    x = np.concatenate([floats(5, 1000), np.array([0.0, -0.0, np.nan, 1.0], np.float32)])
    assert alike(apply(getattr(functions, name), x, out=np.zeros_like(x)), model(x, x[::-1]))


def test_ballot_bits_go_to_their_lanes(functions):
    warp = np.array([1 << t for t in range(32)], np.uint32)
    want = [1 << (16 * (t & 3) + (t >> 2)) for t in range(32)]
    assert apply(functions.spread, warp, out=np.zeros(32, np.uint64)).tolist() == want


def bf16s(rng: np.random.Generator, count: int, spread: int) -> np.ndarray:
    words = rng.integers(0, 1 << 16, count).astype(np.uint32)
    exponent = rng.integers(max(0, 127 - spread), min(254, 127 + spread) + 1, count).astype(np.uint32)
    return ((words & 0x807F) << 16 | exponent << 23).view(np.float32)


@pytest.mark.parametrize("spread", [0, 3, 12, 30, 60, 127])
@pytest.mark.parametrize("slots", [32, 128])
def test_sums_are_exact_and_rounded_once(functions, spread, slots):
    """Against the model `fused`, at every spread of exponents; the fixed-point way gives the same where it is asked."""
    rng, count = np.random.default_rng(spread), 600
    a, b = (bf16s(rng, count * slots, spread).reshape(count, slots) for _ in range(2))
    if spread == 127:  # subnormals, zeros and results below the smallest float
        a[::3] *= np.float32(2.0**-60)
        b[::3] *= np.float32(2.0**-70)
        a, b = ((x.view(np.uint32) & 0xFFFF0000).view(np.float32) for x in (a, b))
    c = (rng.random(count) * 2.0 ** rng.integers(-spread, spread + 1, count)).astype(np.float32)
    cancel = slice(0, count, 5)  # pairs that cancel but for the last of them
    a[cancel, 1::2], b[cancel, 1::2] = a[cancel, ::2], -b[cancel, ::2]
    c[:20] = 0.0
    c[20:40] = -0.0
    got, slow = np.zeros(count, np.float32), np.zeros(count, np.float32)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (a, b, c, got, slow)]
    functions.sums(*pointers, count, slots)
    want = mfma.get("fused").chain(a[None, :, None, :], b[None, :, None, :], c[:, None, None])[:, 0, 0]
    assert alike(got, want)
    finite = np.isfinite(want) & (want != 0)
    assert alike(slow[finite], want[finite])


def test_a_sum_is_minus_zero_only_of_minus_zeros(functions):
    a, b = np.zeros((4, 32), np.float32), np.ones((4, 32), np.float32)
    a[0], a[1], a[2, :31] = -0.0, -0.0, -0.0
    c = np.array([-0.0, 0.0, -0.0, -0.0], np.float32)
    got, slow = np.zeros(4, np.float32), np.zeros(4, np.float32)
    functions.sums(*(ctypes.c_void_p(array.ctypes.data) for array in (a, b, c, got, slow)), 4, 32)
    assert np.signbit(got).tolist() == [True, False, False, False]


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_infinities_and_nans_come_through(functions, bad):
    a, b, c = np.ones((3, 32), np.float32), np.ones((3, 32), np.float32), np.zeros(3, np.float32)
    a[0, 7], b[1, 3], c[2] = bad, bad, bad
    a[1, 3] = 0.0
    got, slow = np.zeros(3, np.float32), np.zeros(3, np.float32)
    functions.sums(*(ctypes.c_void_p(array.ctypes.data) for array in (a, b, c, got, slow)), 3, 32)
    want = mfma.get("fused").chain(a[None, :, None, :], b[None, :, None, :], c[:, None, None])[:, 0, 0]
    assert alike(got, want)
