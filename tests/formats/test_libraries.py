"""Every 8- and 4-bit format over all 2^16 bf16 inputs, and every code decoded, against independent libraries.

The libraries are ml_dtypes, gfloat, torch's own dtypes and torchao. Where they disagree with each other, our rule and
theirs are both spelled out at the end.
"""

from __future__ import annotations

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
import torch

from k3lab import formats

ALL_BF16 = formats.bf16_values(np.arange(1 << 16).astype(np.uint16))

ML = {
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e4m3fnuz": torch.float8_e4m3fnuz,
    "fp8_e5m2": torch.float8_e5m2,
}
GFLOAT = {
    "bf16": gfloat.formats.format_info_bfloat16,
    "fp16": gfloat.formats.format_info_binary16,
    "fp8_e4m3": gfloat.formats.format_info_ocp_e4m3,
    "fp8_e5m2": gfloat.formats.format_info_ocp_e5m2,
    "e2m1": gfloat.formats.format_info_ocp_e2m1,
}


def assert_same(got: np.ndarray, expected: np.ndarray, inputs: np.ndarray) -> None:
    """Bit for bit, signed zeros included; NaN equals NaN."""
    got, expected = got.astype(np.float32), expected.astype(np.float32)
    differs = (got.view(np.uint32) != expected.view(np.uint32)) & ~(np.isnan(got) & np.isnan(expected))
    first = np.flatnonzero(differs)[:5]
    assert not differs.any(), f"{inputs[first]} gave {got[first]}, expected {expected[first]} ({differs.sum()} differ)"


def within(fmt: formats.FloatFormat, x: np.ndarray) -> np.ndarray:
    """The inputs on which all libraries agree: no NaN; in a saturating format no overflow either."""
    return x[np.abs(x) <= fmt.max] if fmt.saturates else x[~np.isnan(x)]


def torch_round(x: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    return torch.from_numpy(x.copy()).to(dtype).to(torch.float32).numpy()


def gfloat_round(name: str, x: np.ndarray, mode: gfloat.RoundMode) -> np.ndarray:
    return gfloat.round_ndarray(GFLOAT[name], x.astype(np.float64), mode)


@pytest.mark.parametrize("name", ML)
def test_nearest_is_ml_dtypes_over_all_bf16(name: str) -> None:
    fmt = formats.get(name)
    x = within(fmt, ALL_BF16)
    with np.errstate(over="ignore"):
        assert_same(fmt.round(x), x.astype(ML[name]).astype(np.float32), x)


@pytest.mark.parametrize("name", TORCH)
def test_nearest_is_torch_over_all_bf16(name: str) -> None:
    fmt = formats.get(name)
    x = within(fmt, ALL_BF16)
    assert_same(fmt.round(x), torch_round(x, TORCH[name]), x)


@pytest.mark.parametrize("name", GFLOAT)
def test_nearest_is_gfloat_over_all_bf16(name: str) -> None:
    fmt = formats.get(name)
    x = within(fmt, ALL_BF16)
    assert_same(fmt.round(x), gfloat_round(name, x, gfloat.RoundMode.TiesToEven), x)


@pytest.mark.parametrize("name", GFLOAT)
def test_toward_zero_is_gfloat_over_all_bf16(name: str) -> None:
    fmt = formats.get(name)
    x = within(fmt, ALL_BF16)
    assert_same(fmt.round(x, "zero"), gfloat_round(name, x, gfloat.RoundMode.TowardZero), x)


def test_e2m1_codes_are_torchao_over_all_bf16() -> None:
    kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels")
    x = ALL_BF16[~np.isnan(ALL_BF16)]  # infinities too: both saturate
    theirs = kernels.f32_to_f4_unpacked(torch.from_numpy(x.copy())).numpy()
    np.testing.assert_array_equal(formats.E2M1.encode(x), theirs)


@pytest.mark.parametrize("name", ML)
def test_decode_is_ml_dtypes_on_every_code(name: str) -> None:
    fmt = formats.get(name)
    codes = fmt.codes()
    assert_same(fmt.decode(codes), codes.view(ML[name]).astype(np.float32), codes)


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2", "e2m1"])
def test_decode_is_gfloat_on_every_code(name: str) -> None:
    fmt = formats.get(name)
    codes = fmt.codes()
    assert_same(fmt.decode(codes), np.array([gfloat.decode_float(GFLOAT[name], int(c)).fval for c in codes]), codes)


@pytest.mark.parametrize("name", TORCH)
def test_decode_is_torch_on_every_code(name: str) -> None:
    fmt = formats.get(name)
    codes = fmt.codes()
    theirs = torch.from_numpy(codes.copy()).view(TORCH[name]).to(torch.float32).numpy()
    assert_same(fmt.decode(codes), theirs, codes)


def test_e8m0_decodes_as_torch_and_gfloat() -> None:
    codes = formats.E8M0.codes()
    theirs = torch.from_numpy(codes.copy()).view(torch.float8_e8m0fnu).to(torch.float32).numpy()
    assert_same(formats.E8M0.decode(codes), theirs, codes)
    info = gfloat.formats.format_info_ocp_e8m0
    assert_same(formats.E8M0.decode(codes), np.array([gfloat.decode_float(info, int(c)).fval for c in codes]), codes)


def f32_with_every_tie() -> np.ndarray:
    """float32 inputs: every upper half (all signs, exponents, 7 mantissa bits) with low halves on, beside and off the
    ties of bf16 (0x8000) and fp16 (0x1000), and 200 000 random words."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.uint32([0, 1, 0x0FFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    random = np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32)
    return np.concatenate([(upper[:, None] | lower).ravel(), random]).view(np.float32)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_wide_formats_on_every_float32_exponent_and_tie(name: str) -> None:
    x = f32_with_every_tie()
    x = x[~np.isnan(x)]
    ours = formats.get(name).round(x)
    with np.errstate(over="ignore"):
        assert_same(ours, x.astype(ML[name]).astype(np.float32), x)
    assert_same(ours, torch_round(x, TORCH[name]), x)


@pytest.mark.parametrize("mode", ["nearest", "zero"])
@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e4m3fnuz", "fp8_e5m2", "e2m1", "e8m0"])
def test_the_short_way_to_8_bits_is_the_long_one(name: str, mode: str) -> None:
    """float32 goes through a table of its upper half, float64 through the arithmetic."""
    x = f32_with_every_tie()[::3]
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
    fmt = formats.get(name)
    np.testing.assert_array_equal(fmt.encode(x, mode), fmt.encode(wide, mode))


@pytest.mark.parametrize("name", ["fp16", "fp32"])
def test_float64_rounds_once_as_numpy_does(name: str) -> None:
    """NumPy converts float64 straight to half and to single: an oracle for single rounding."""
    rng = np.random.default_rng(1)
    x = np.ldexp(rng.uniform(-2, 2, 200_000), rng.integers(-160, 135, 200_000))
    halves = np.ldexp(rng.integers(1, 1 << 24, 50_000) * 2.0 + 1, -30)  # exact ties of fp32, once scaled
    x = np.concatenate([x, halves, np.nextafter(halves, np.inf), np.nextafter(halves, 0)])
    with np.errstate(over="ignore"):
        expected = x.astype({"fp16": np.float16, "fp32": np.float32}[name]).astype(np.float64)
    np.testing.assert_array_equal(formats.get(name).round(x), expected)


# -- where the libraries disagree ----------------------------------------------------------------------------------


def test_e4m3_overflow_saturates_here_and_in_torch_but_is_nan_in_ml_dtypes() -> None:
    x = np.float32([448, 464, np.nextafter(np.float32(464), np.float32(500)), 1e9, np.inf, -np.inf])
    limit = np.float32([448, 448, 448, 448, 448, -448])
    assert_same(formats.FP8_E4M3.round(x), limit, x)
    assert_same(torch_round(x, torch.float8_e4m3fn), limit, x)
    nan = np.nan  # ml_dtypes rounds first: up to 464, the tie, is still 448
    assert_same(x.astype(ml_dtypes.float8_e4m3fn).astype(np.float32), np.float32([448, 448, nan, nan, nan, nan]), x)


def test_fnuz_overflow_saturates_here_but_is_nan_in_both_libraries() -> None:
    x = np.float32([240, 248, 1e9, np.inf, -np.inf])
    assert_same(formats.FP8_E4M3FNUZ.round(x), np.float32([240, 240, 240, 240, -240]), x)
    theirs = np.float32([240, np.nan, np.nan, np.nan, np.nan])
    assert_same(x.astype(ml_dtypes.float8_e4m3fnuz).astype(np.float32), theirs, x)
    assert_same(torch_round(x, torch.float8_e4m3fnuz), theirs, x)


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e4m3fnuz", "fp8_e5m2", "fp16", "bf16"])
def test_nan_stays_nan_everywhere(name: str) -> None:
    nans = ALL_BF16[np.isnan(ALL_BF16)]
    assert np.isnan(formats.get(name).round(nans)).all()
    with np.errstate(invalid="ignore"):
        assert np.isnan(nans.astype(ML[name]).astype(np.float32)).all()
    assert np.isnan(torch_round(nans, TORCH[name])).all()


def test_e2m1_has_no_nan_and_each_library_makes_up_its_own() -> None:
    nan = np.float32([np.nan, -np.nan])
    np.testing.assert_array_equal(formats.E2M1.encode(nan), [0, 0])  # ours: +0
    np.testing.assert_array_equal(nan.astype(ml_dtypes.float4_e2m1fn).view(np.uint8), [8, 0])  # a zero, sign inverted
    kernels = pytest.importorskip("torchao.prototype.mx_formats.kernels")
    np.testing.assert_array_equal(kernels.f32_to_f4_unpacked(torch.from_numpy(nan)).numpy(), [3, 11])  # +-1.5


def test_e8m0_ties_and_edges() -> None:
    """Ties go to the even code here and in gfloat, up in torch; what has no code is ours to decide."""
    x = np.float32([1.5, 3.0, 6.0])
    np.testing.assert_array_equal(formats.E8M0.encode(x), [128, 128, 130])
    info = gfloat.formats.format_info_ocp_e8m0
    every_tie = np.ldexp(1.5, np.arange(-127, 127))
    theirs = gfloat.round_ndarray(info, every_tie, gfloat.RoundMode.TiesToEven)
    np.testing.assert_array_equal(formats.E8M0.round(every_tie), theirs)
    np.testing.assert_array_equal(torch_round(x, torch.float8_e8m0fnu), [2, 4, 8])
    edges = np.float32([0.0, -0.0, 1e-45, 2.0**-127, 2.0**127, 3.4e38, np.inf, -1.0, np.nan])
    np.testing.assert_array_equal(formats.E8M0.encode(edges), [0, 0, 0, 0, 254, 254, 254, 255, 255])


def test_e8m0_off_the_ties_is_torch() -> None:
    x = ALL_BF16[(ALL_BF16 >= 2.0**-126) & (ALL_BF16 <= 2.0**127)]
    x = x[np.frexp(x)[0] != 0.75]
    assert_same(formats.E8M0.round(x), torch_round(x, torch.float8_e8m0fnu), x)
