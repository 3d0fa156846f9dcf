"""The run time's functions, compiled for this processor, against the models that twin and simulator share."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import cuda_sweep
from k3lab.backends.cuda import hostbuild
from k3lab.backends.cuda.emit import Source
from k3lab.formats import bf16_bits
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

NARROWED = """
template <int N> static void rows(const float* x, u16* y, int n) {
  for (int i = 0; i < n; i += N) {
    K3Vec<float, N> row;
    memcpy(&row, x + i, sizeof(row));
    K3Vec<u16, N> narrow = k3_to_bf16(row);
    memcpy(y + i, &narrow, sizeof(narrow));
  }
}
extern "C" void bf16(const float* x, u16* y, int n) { for (int i = 0; i < n; ++i) y[i] = k3_to_bf16(x[i]); }
extern "C" void bf16_1(const float* x, u16* y, int n) { rows<1>(x, y, n); }
extern "C" void bf16_2(const float* x, u16* y, int n) { rows<2>(x, y, n); }
extern "C" void bf16_3(const float* x, u16* y, int n) { rows<3>(x, y, n); }
extern "C" void bf16_8(const float* x, u16* y, int n) { rows<8>(x, y, n); }
extern "C" void two_e4m3(const float* a, const float* b, u32* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = k3_two_e4m3(a[i], b[i]);
}
extern "C" void pack_e4m3(const float* a, const float* b, const int* old, int* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = k3_pack_e4m3(a[i], b[i], old[i], i & 1);
}
extern "C" void two_e2m1(const u32* pair, const float* scale, u32* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = k3_two_e2m1(k3_cast<K3Vec<u16, 2>>(pair[i]), scale[i]);
}
extern "C" void pack_e2m1(const u32* pair, const float* scale, const int* old, int* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = k3_pack_e2m1(old[i], k3_cast<K3Vec<u16, 2>>(pair[i]), scale[i], i & 3);
}
"""
VOTES = """
K3_KERNEL {
  const u8* votes = (const u8*)launch.args[0];
  u8* any = (u8*)launch.args[1];
  for (u64 at = k3_raw_thread(); at < launch.args[2]; at += 128) any[at] = k3_wave_any(votes[at]);
}
"""


def compiled(each: str, fast: bool = False) -> ctypes.CDLL:
    source = Source("functions", SIZES, "static void k3_kernel(const K3Launch&) {}\n", 64, 0, 0, 0, fast=fast)
    return hostbuild._library(source.complete("host.hpp", "", defined=("K3_STACK 0",)) + each)


@pytest.fixture(scope="module")
def functions() -> ctypes.CDLL:
    return compiled(EACH)


@pytest.fixture(scope="module")
def exact() -> ctypes.CDLL:
    return compiled(NARROWED)


@pytest.fixture(scope="module")
def fast() -> ctypes.CDLL:
    return compiled(NARROWED, fast=True)


@pytest.fixture(params=["exact", "fast"])
def either(request) -> ctypes.CDLL:
    return request.getfixturevalue(request.param)


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


def same_codes(got: np.ndarray, want: np.ndarray, least_nan: int) -> bool:
    """Whether codes are the same but for the sign and the payload of a NaN: without its sign, `least_nan` or above."""
    magnitude = {np.dtype(np.uint16): 0x7FFF, np.dtype(np.uint8): 0x7F}[want.dtype]
    nan = [codes & magnitude >= least_nan for codes in (got, want)]
    return got.dtype == want.dtype and bool(((got == want) | (nan[0] & nan[1])).all())


BF16S = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)


class TestNarrowingOfBothBuilds:
    @pytest.mark.parametrize("name", ["bf16", "bf16_1", "bf16_2", "bf16_3", "bf16_8"])
    def test_bf16_alone_and_in_vectors(self, either, name):
        x = floats(6)
        x = x[: x.size // 24 * 24]
        got = apply(getattr(either, name), x, out=np.zeros(x.size, np.uint16))
        assert same_codes(got, bf16_bits(x), 0x7F81)

    def pairs(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        limits = np.float32([464.0, -464.0, 448.0, 432.0, 480.0, 2.0**-10, -(2.0**-10)])
        low = np.concatenate([floats(seed), BF16S, limits, np.nextafter(limits, np.float32(np.inf))])
        return low, rng.permutation(low)

    def test_two_e4m3(self, either):
        low, high = self.pairs(7)
        got = apply(either.two_e4m3, low, high, out=np.zeros(low.size, np.uint32))
        assert not (got >> 16).any()
        for place, x in ((0, low), (8, high)):
            assert same_codes((got >> place).astype(np.uint8), encode("fp8", x), 0x7F)

    def test_e4m3_goes_into_half_a_word(self, either):
        low, high = self.pairs(8)
        old = np.random.default_rng(8).integers(0, 1 << 32, low.size, np.uint64).astype(np.uint32)
        got = apply(either.pack_e4m3, low, high, old, out=np.zeros(low.size, np.uint32))
        octets, kept = got.view(np.uint8).reshape(-1, 2, 2), old.view(np.uint8).reshape(-1, 2, 2)
        for parity in (0, 1):
            here = slice(parity, None, 2)
            assert np.array_equal(octets[here, 1 - parity], kept[here, 1 - parity])
            assert same_codes(octets[here, parity, 0], encode("fp8", low[here]), 0x7F)
            assert same_codes(octets[here, parity, 1], encode("fp8", high[here]), 0x7F)

    def e2m1_of(self, halves: np.ndarray, scale: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            x = (halves.astype(np.uint32) << 16).view(np.float32) / power_of_two(scale)
        want = encode("fp4", x)
        assert not want[np.isnan(x)].any()
        return want

    def check_e2m1(self, exact: ctypes.CDLL, fast: ctypes.CDLL, pair: np.ndarray, scale: np.ndarray) -> None:
        want = apply(exact.two_e2m1, pair, scale, out=np.zeros(pair.size, np.uint32))
        got = apply(fast.two_e2m1, pair, scale, out=np.zeros(pair.size, np.uint32))
        differ = got != want
        assert not differ.any(), [
            [f"{word:#x}" for word in (pair[i], got[i], want[i])] for i in np.nonzero(differ)[0][:5]
        ]
        low, high = (self.e2m1_of(halves, scale) for halves in (pair & 0xFFFF, pair >> 16))
        assert np.array_equal(want, low | high.astype(np.uint32) << 4)

    @pytest.mark.parametrize("exponent", [1, 2, 100, 126, 127, 128, 129, 200, 253, 254])
    def test_every_bf16_as_e2m1(self, exact, fast, exponent):
        all_ = np.arange(1 << 16, dtype=np.uint32)
        pair = all_ | np.random.default_rng(exponent).permutation(all_) << 16
        self.check_e2m1(exact, fast, pair, np.full(pair.size, exponent << 23, np.uint32).view(np.float32))

    @pytest.mark.parametrize("near", [False, True])
    def test_any_pair_with_any_scale_as_e2m1(self, exact, fast, near):
        """Any bits (a scale counts by its exponent alone); and halves that the scale brings near the codes."""
        rng, count = np.random.default_rng(9), 1_000_000
        pair, words = (rng.integers(0, 1 << 32, count, np.uint64).astype(np.uint32) for _ in range(2))
        if near:
            exponent = words >> 23 & 0xFF
            halves = ((rng.integers(-4, 5, count) + exponent).clip(0, 255).astype(np.uint32) << 7 for _ in range(2))
            pair = pair & 0x807F807F | next(halves) | next(halves) << 16
        self.check_e2m1(exact, fast, pair, words.view(np.float32))

    def test_e2m1_goes_into_a_byte_of_a_word(self, either):
        rng, count = np.random.default_rng(10), 10_000
        pair, old = (rng.integers(0, 1 << 32, count, np.uint64).astype(np.uint32) for _ in range(2))
        pair = pair & 0x83FF83FF | 0x3C003C00  # from 2^-7 to 2: of all codes with these scales
        scale = (2.0 ** rng.integers(-3, 2, count)).astype(np.float32)
        got = apply(either.pack_e2m1, pair, scale, old, out=np.zeros(count, np.uint32)).view(np.uint8).reshape(-1, 4)
        low, high = (self.e2m1_of(halves, scale) for halves in (pair & 0xFFFF, pair >> 16))
        want = old.view(np.uint8).reshape(-1, 4).copy()
        want[np.arange(count), np.arange(count) & 3] = low | high << 4
        assert np.array_equal(got, want) and set(low.tolist()) == set(range(16))


@pytest.mark.parametrize("fast", [False, True])
def test_a_wave_learns_whether_any_of_its_lanes_voted(fast):
    """Two waves, round after round: no lane, one, some or all."""
    rng, rounds = np.random.default_rng(11), 200
    votes = rng.random((rounds, 2, 64)) < rng.choice([0.0, 0.01, 0.5, 1.0], (rounds, 2, 1))
    votes[0] = [np.arange(64) == 63, np.arange(64) < 0]
    any_ = np.full(votes.shape, 7, np.uint8)
    source = Source("votes", SIZES + "#define K3_THREADS 128\n", VOTES, 128, 3, 0, 0, fast=fast)
    hostbuild.launch(source, 1, [[votes.ctypes.data, any_.ctypes.data, votes.size]])
    assert np.array_equal(any_, np.broadcast_to(votes.any(-1, keepdims=True), votes.shape))


def words_of(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(x).view(np.int32))


class TestModelsOfTheSweep:
    @pytest.mark.parametrize("name", ["bf16", "bf16_pair", "e4m3"])
    def test_of_floats(self, name):
        x = np.concatenate([floats(12), np.nextafter(np.float32([464, -464, 464]), np.float32([500, -500, 0]))])
        got = cuda_sweep.FUNCTIONS[name].model(words_of(x)).numpy()
        if name == "e4m3":
            assert np.array_equal(got, encode("fp8", x))
        else:
            assert same_codes(got.astype(np.uint16), bf16_bits(x), 0x7F81)

    @pytest.mark.parametrize("name", ["reciprocal", "quotient"])
    def test_quotients(self, name):
        """As NumPy's float32 division has them, subnormals, infinities and NaN included."""
        x = floats(13)
        other = (x.view(np.uint32).astype(np.uint64) * cuda_sweep.SCATTER).astype(np.uint32).view(np.float32)
        with np.errstate(all="ignore"):
            want = np.float32(1) / x if name == "reciprocal" else x / other
        got = cuda_sweep.FUNCTIONS[name].model(words_of(x)).numpy().view(np.float32)
        assert np.array_equal(got, want, equal_nan=True) and np.isfinite(want).sum() > want.size // 3
        assert np.array_equal(np.signbit(got)[~np.isnan(want)], np.signbit(want)[~np.isnan(want)])

    @pytest.mark.parametrize("exponent", [1, 2, 100, 126, 127, 128, 200, 253, 254])
    def test_e2m1(self, exponent):
        words = np.arange(1 << 16, dtype=np.uint32) | np.uint32(exponent << 16)
        with np.errstate(all="ignore"):
            want = encode("fp4", BF16S / np.float32(2.0 ** (exponent - 127)))
        assert np.array_equal(cuda_sweep.e2m1(words_of(words)).numpy(), want)

    def test_words_are_every_bf16_with_every_scale(self):
        words = cuda_sweep.FUNCTIONS["e2m1"].words
        assert len(words) == 254 << 16 and (words[0] >> 16, words[-1] >> 16) == (1, 254)

    @pytest.mark.parametrize("name", ["bf16", "bf16_pair", "e4m3", "e2m1", "exp2", "quotient"])
    @pytest.mark.parametrize("chunk", [1 << 10, 1 << 20])
    def test_what_differs_is_counted_and_the_first_is_named(self, monkeypatch, name, chunk):
        monkeypatch.setattr(cuda_sweep, "CHUNK", chunk)
        function = cuda_sweep.FUNCTIONS[name]
        start = 127 << 16 | 0x3F80 if name == "e2m1" else 0x3F800000
        function = replace(function, words=range(start, start + 5000))
        top = 1 << function.bits * function.pairs

        def right(words: torch.Tensor) -> torch.Tensor:
            first, *second = (function.model(each) for each in function.taken(words))
            return first | second[0] << function.bits if second else first

        def wrong(words: torch.Tensor) -> torch.Tensor:
            return right(words) ^ torch.where((words == start + 3000) | (words == start + 4100), top, 0).int()

        ulps = {"most_ulps": 0} if function.bits == 32 else {}
        none = {"inputs": 5000, "differ": 0, **ulps, "at_bits": "0x00000000" if ulps else None}
        assert cuda_sweep.compared(function, right, "cpu") == none
        ulps = {"most_ulps": 1} if function.bits == 32 else {}
        some = {"inputs": 5000, "differ": 2, **ulps, "at_bits": f"{start + 3000:#010x}"}
        assert cuda_sweep.compared(function, wrong, "cpu") == some

    @pytest.mark.parametrize("name", ["bf16_pair", "e4m3", "e2m1"])
    def test_a_pair_that_is_swapped_is_wrong(self, name):
        function = cuda_sweep.FUNCTIONS[name]
        start = 127 << 16 | 0x3F80 if name == "e2m1" else 0x3F800000
        function = replace(function, words=range(start, start + 10))

        def swapped(words: torch.Tensor) -> torch.Tensor:
            first, second = (function.model(each) for each in function.taken(words))
            return second | first << function.bits

        assert cuda_sweep.compared(function, swapped, "cpu")["differ"] == 10

    @pytest.mark.parametrize(
        ("name", "nans", "others"),
        [
            ("exp2", [0x7FC00000, 0x7F800001, -1], [0x7F800000, 0, -0x800000]),
            ("bf16", [0x7FC0, 0x7FFF, 0xFFFF, 0x7F81], [0x7F80, 0xFF80, 0]),
            ("bf16_pair", [0x7FFF7FFF, 0x7FC0FFFF, -1], [0x7F807FFF, 0x7FFF7F80]),
            ("e4m3", [0x7F7F, 0x7FFF, 0xFFFF], [0x7E7F, 0x7F7E, 0xFEFF]),
            ("e2m1", [0], [1, 8, 0x10, 0x80]),
        ],
    )
    def test_a_nan_may_be_any_nan_and_nothing_else(self, name, nans, others):
        word = 127 << 16 | 0x7FC0 if name == "e2m1" else 0x7FC00000
        function = replace(cuda_sweep.FUNCTIONS[name], words=range(word, word + 1))
        for given in (*nans, *others):
            result = torch.tensor([given], dtype=torch.int32)
            differ = cuda_sweep.compared(function, lambda words, result=result: result, "cpu")["differ"]
            assert differ == (given in others), f"{given:#x}"

    def test_the_other_sign_is_further_than_a_neighbour(self):
        function = replace(cuda_sweep.FUNCTIONS["exp2"], words=range(0x3F7FFFFF, 0x3F800001))
        off = torch.tensor([1, -(1 << 31)], dtype=torch.int32)
        found = cuda_sweep.compared(function, lambda words: function.model(words) ^ off, "cpu")
        assert found == {"inputs": 2, "differ": 2, "most_ulps": 2 * 0x40000000, "at_bits": "0x3f800000"}
