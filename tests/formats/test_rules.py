"""The rules one by one, as small tables: what each format does at its edges."""

from __future__ import annotations

import numpy as np
import pytest

from k3lab import formats
from k3lab.errors import BadInput


def test_constants() -> None:
    table = {name: (f.max, f.smallest) for name, f in formats.FORMATS.items()}
    assert table["fp8_e4m3"] == (448, 2**-9)
    assert table["fp8_e4m3fnuz"] == (240, 2**-10)
    assert table["fp8_e5m2"] == (57344, 2**-16)
    assert table["e2m1"] == (6, 0.5)
    assert table["e8m0"] == (2.0**127, 2.0**-127)
    assert table["bf16"] == (float(np.float32(3.3895314e38)), 2.0**-133)
    assert table["fp16"] == (65504, 2**-24)
    assert table["fp32"] == (float(np.finfo(np.float32).max), 2.0**-149)


def test_e2m1_ladder_and_ties() -> None:
    np.testing.assert_array_equal(formats.E2M1.decode(np.arange(8)), [0, 0.5, 1, 1.5, 2, 3, 4, 6])
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    expected = np.array([0, 1, 1, 2, 2, 4, 4.0])
    np.testing.assert_array_equal(formats.E2M1.round(ties), expected)
    np.testing.assert_array_equal(formats.E2M1.round(-ties), -expected)
    assert (formats.E2M1.encode(ties) % 2 == 0).all()
    np.testing.assert_array_equal(formats.E2M1.round(np.array([6.5, 7, 100, np.inf, -np.inf])), [6, 6, 6, 6, -6])


def test_fnuz_0x80_is_nan_and_there_is_no_minus_zero() -> None:
    fnuz = formats.FP8_E4M3FNUZ
    assert np.isnan(fnuz.decode(np.uint8(0x80)))
    assert not np.isnan(np.delete(fnuz.decode(fnuz.codes()), 0x80)).any()
    np.testing.assert_array_equal(fnuz.encode(np.array([-0.0, -(2.0**-12), np.nan, -np.nan])), [0, 0, 0x80, 0x80])


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e5m2", "e2m1"])
def test_minus_zero_keeps_its_sign(name: str) -> None:
    fmt = formats.get(name)
    rounded = fmt.round(np.array([-0.0, 0.0, -fmt.smallest / 4]))
    np.testing.assert_array_equal(np.signbit(rounded), [True, False, True])
    assert (rounded == 0).all()


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32", "fp8_e4m3", "fp8_e4m3fnuz", "fp8_e5m2", "e2m1"])
def test_subnormals_are_kept(name: str) -> None:
    fmt = formats.get(name)
    x = np.array([fmt.smallest, 3 * fmt.smallest]) if fmt.man_bits > 1 else np.array([fmt.smallest])
    np.testing.assert_array_equal(fmt.round(x), x)


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32", "fp8_e5m2"])
def test_overflow_nearest_is_infinity_toward_zero_is_max(name: str) -> None:
    fmt = formats.get(name)
    x = np.array([2 * fmt.max, -2 * fmt.max, np.inf])
    np.testing.assert_array_equal(fmt.round(x), [np.inf, -np.inf, np.inf])
    np.testing.assert_array_equal(fmt.round(x, "zero"), [fmt.max, -fmt.max, np.inf])
    below = fmt.max + fmt.ulp(fmt.max) / 2 * (1 - 2.0**-20)  # not quite half a step above max
    assert fmt.round(np.array([below]))[0] == fmt.max


def test_bf16_nan_is_quiet() -> None:
    nans = np.uint32([0x7F800001, 0xFF800001, 0x7FC12345, 0xFFFFFFFF]).view(np.float32)
    for mode in formats.MODES:
        np.testing.assert_array_equal(formats.BF16.encode(nans, mode) & 0x7FFF, 0x7FC0)


def test_bf16_moves_keep_every_payload() -> None:
    bits = np.arange(1 << 16).astype(np.uint16)
    values = formats.bf16_values(bits)
    np.testing.assert_array_equal(values.view(np.uint32) >> 16, bits)
    np.testing.assert_array_equal(formats.bf16_pack(values), bits)
    with pytest.raises(BadInput, match="1 of 2 that need rounding"):
        formats.bf16_pack(np.float32([1.0, 1.0 + 2**-10]))


def test_fp32_changes_no_bit_of_a_float32() -> None:
    words = np.random.default_rng(0).integers(0, 1 << 32, 10_000, dtype=np.uint32)
    words[:2] = 0x7F800001, 0xFFC00001
    for mode in formats.MODES:
        np.testing.assert_array_equal(formats.FP32.round(words.view(np.float32), mode).view(np.uint32), words)


def test_float64_is_rounded_once() -> None:
    just_above_a_tie = np.array([1 + 2**-8 + 2**-40])
    assert formats.BF16.round(just_above_a_tie)[0] == 1 + 2**-7
    assert formats.BF16.round(just_above_a_tie.astype(np.float32))[0] == 1  # through float32 the tie goes to even


@pytest.mark.parametrize("name", formats.FORMATS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_shape_and_dtype_are_kept(name: str, dtype: type) -> None:
    x = np.ones((2, 3, 64), dtype)[:, ::2, ::2]  # not contiguous
    rounded = formats.get(name).round(x)
    assert rounded.shape == x.shape and rounded.dtype == dtype
    np.testing.assert_array_equal(rounded, 1)


@pytest.mark.parametrize("name", [n for n in formats.FORMATS if n != "mxfp4"])
def test_scalars_and_empty_arrays(name: str) -> None:
    fmt = formats.get(name)
    for mode in formats.MODES:
        assert fmt.round(np.float32(2.0), mode).shape == ()
        assert fmt.round(np.zeros((0, 3), np.float32), mode).shape == (0, 3)


def test_bad_input_says_so() -> None:
    with pytest.raises(BadInput, match="float32 or float64 array, got int64"):
        formats.BF16.encode(np.arange(3))
    with pytest.raises(BadInput, match=r"integers in \[0, 15\]"):
        formats.E2M1.decode(np.array([16]))
    with pytest.raises(BadInput, match="rounding mode: expected one of nearest, zero, stochastic"):
        formats.E2M1.encode(np.zeros(1), "up")
    with pytest.raises(BadInput, match="at most 16 bits"):
        formats.FP32.codes()
    with pytest.raises(BadInput, match="seed"):
        formats.E2M1.encode(np.zeros(1), "stochastic", -1)
