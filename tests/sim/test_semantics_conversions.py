"""Packed conversions against `k3lab.formats` and `ml_dtypes`, every code and every rounding boundary."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from k3lab.formats import E2M1, FP8_E4M3, FP8_E5M2, bf16_bits, bf16_values
from tests.sim.test_semantics_kit import random_bits, row, run, same_bits, same_values

EIGHT = {"fp8": (FP8_E4M3, ml_dtypes.float8_e4m3fn), "bf8": (FP8_E5M2, ml_dtypes.float8_e5m2)}
ALL_BYTES = np.arange(256, dtype=np.int32)[None]
SCALES = [2.0**-127, 2.0**-20, 1.0, 2.0, 2.0**40, 2.0**127]
RESULT = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def values(scale: float = 1.0) -> Any:
    """Floats around every rounding boundary of the narrow formats times a scale, and random bits."""
    codes = np.arange(256, dtype=np.uint8)
    ladder = np.unique(np.concatenate([codes.view(kind).astype(np.float64) for _, kind in EIGHT.values()]))
    ladder = ladder[np.isfinite(ladder)]
    middle = (ladder[1:] + ladder[:-1]) / 2
    exact = np.concatenate([ladder, middle, [464.0, 480.0, 61440.0, math.inf, -math.inf, math.nan]]).astype(np.float32)
    with np.errstate(all="ignore"):
        near = [np.nextafter(exact, np.float32(side)) for side in (-np.inf, np.inf)]
        return np.concatenate([exact, *near, random_bits((3000,), np.float32, 1)])[None] * np.float32(scale)


def expected_code(name: str, x: Any) -> Any:
    """ml_dtypes rounds as the hardware does: e4m3fn has NaN above its range, e5m2 infinity."""
    with np.errstate(all="ignore"):
        return x.astype(np.float32).astype(EIGHT[name][1]).view(np.uint8)


def same_codes(name: str, got: Any, wanted: Any) -> bool:
    decode = EIGHT[name][0].decode
    return same_values(decode(got), decode(wanted)) and bool((got >> 7 == wanted >> 7).all())


@pytest.mark.parametrize("half", (0, 1))
@pytest.mark.parametrize("name", EIGHT)
def test_pack(name: str, half: int) -> None:
    x = values()
    y, old = x[:, ::-1], random_bits(x.shape, np.int32, 2)
    word = run(f"rocdl.cvt.pk.{name}.f32", "(f32, f32, i32) -> i32", x, y, old, wordSel=bool(half))
    octets = word[0].view(np.uint8).reshape(-1, 4)
    assert same_codes(name, octets[:, 2 * half], expected_code(name, x[0]))
    assert same_codes(name, octets[:, 2 * half + 1], expected_code(name, y[0]))
    kept = old[0].view(np.uint8).reshape(-1, 4)
    assert (octets[:, [2 - 2 * half, 3 - 2 * half]] == kept[:, [2 - 2 * half, 3 - 2 * half]]).all()


def test_overflow_to_fp8_is_nan() -> None:
    x = row([448.0, 464.0, np.nextafter(np.float32(464), np.float32(500)), -465.0, math.inf, -math.inf], np.float32)
    zero = row([0], np.int32)
    word = run("rocdl.cvt.pk.fp8.f32", "(f32, f32, i32) -> i32", x, x, zero, wordSel=False)
    assert (word[0] & 0xFF).tolist() == [0x7E, 0x7E, 0x7F, 0xFF, 0x7F, 0xFF]
    word = run("rocdl.cvt.pk.bf8.f32", "(f32, f32, i32) -> i32", x * 1000, x, zero, wordSel=False)
    assert (word[0] & 0xFF).tolist() == [0x7C, 0x7C, 0x7C, 0xFC, 0x7C, 0xFC]


@pytest.mark.parametrize("name", EIGHT)
def test_unpack_every_code(name: str) -> None:
    decoded = EIGHT[name][0].decode(np.arange(256))
    for byte in range(4):
        word = (ALL_BYTES.view(np.uint32) << np.uint32(8 * byte)).view(np.int32)
        assert same_values(run(f"rocdl.cvt.f32.{name}", "(i32) -> f32", word, byteSel=byte)[0], decoded)
        types = "(i32, f32) -> f32"
        scaled = run(f"rocdl.cvt.scalef32.f32.{name}", types, word, row([2.0**-20], np.float32), srcSelIndex=byte)
        assert same_values(scaled[0], decoded * np.float32(2.0**-20))
    for half in (0, 1):
        word = ((ALL_BYTES | (255 - ALL_BYTES) << 8).view(np.uint32) << np.uint32(16 * half)).view(np.int32)
        pair = run(f"rocdl.cvt.pk.f32.{name}", "(i32) -> vector<2xf32>", word, wordSel=bool(half))
        assert same_values(pair[0, :, 0], decoded) and same_values(pair[0, :, 1], decoded[::-1])


@pytest.mark.parametrize("wide", RESULT)
@pytest.mark.parametrize("name", ("fp8", "bf8", "fp4"))
@pytest.mark.parametrize("scale", SCALES)
def test_unpack_scaled(name: str, wide: str, scale: float) -> None:
    factor = row([scale * 1.75], np.float32)  # the scale's fraction does not count
    types = f"(i32, f32) -> vector<2x{wide}>"
    if name == "fp4":
        low, high = (E2M1.decode(ALL_BYTES[0] >> shift & 15).astype(np.float64) for shift in (0, 4))
        runs = [(8 * place, {"srcSelIndex": place}, low, high) for place in range(4)]
    else:
        decoded = EIGHT[name][0].decode(np.arange(256)).astype(np.float64)
        runs = [(16 * half, {"srcLoHiSel": bool(half)}, decoded, decoded[[0] * 256]) for half in (0, 1)]
    for shift, attrs, low, high in runs:
        word = (ALL_BYTES.view(np.uint32) << np.uint32(shift)).view(np.int32)
        got = run(f"rocdl.cvt.scalef32.pk.{wide}.{name}", types, word, factor, **attrs)[0].view(RESULT[wide])
        with np.errstate(all="ignore"):
            assert same_values(got[:, 0], (low * scale).astype(RESULT[wide]))
            assert same_values(got[:, 1], (high * scale).astype(RESULT[wide]))


def as_wide(x: Any, wide: str) -> tuple[Any, Any]:
    """x as it is held in a wide format, and its values."""
    with np.errstate(all="ignore"):
        if wide == "bf16":
            return bf16_bits(x), bf16_values(bf16_bits(x)).astype(np.float64)
        held = x.astype(RESULT[wide])
        return held, held.astype(np.float64)


def packed(name: str, wide: str, old: Any, x: Any, y: Any, scale: Any, **attrs: Any) -> Any:
    word = "i32" if name == "fp4" else "vector<2xi16>"
    if wide == "f32":
        return run(f"rocdl.cvt.scalef32.pk.{name}.f32", f"({word}, f32, f32, f32) -> {word}", old, x, y, scale, **attrs)
    types = f"({word}, vector<2x{wide}>, f32) -> {word}"
    return run(f"rocdl.cvt.scalef32.pk.{name}.{wide}", types, old, np.stack([x, y], axis=2), scale, **attrs)


@pytest.mark.parametrize("wide", RESULT)
@pytest.mark.parametrize("scale", SCALES)
def test_pack_scaled_fp4(wide: str, scale: float) -> None:
    held, exact = as_wide(values(scale), wide)
    other, exact_other = held[:, ::-1], exact[:, ::-1]
    for place in range(4):
        old = random_bits(held.shape, np.int32, place)
        word = packed("fp4", wide, old, held, other, row([scale * 1.5], np.float32), dstSelIndex=place)
        octets = word[0].view(np.uint8).reshape(-1, 4)
        with np.errstate(all="ignore"):
            low, high = (E2M1.encode(v[0] / scale) for v in (exact, exact_other))
        assert (octets[:, place] == (low | high << 4)).all()
        assert (np.delete(octets, place, 1) == np.delete(old[0].view(np.uint8).reshape(-1, 4), place, 1)).all()


@pytest.mark.parametrize("wide", RESULT)
@pytest.mark.parametrize("name", EIGHT)
@pytest.mark.parametrize("scale", SCALES)
def test_pack_scaled_eight_bits(name: str, wide: str, scale: float) -> None:
    held, exact = as_wide(values(scale), wide)
    for half in (0, 1):
        old = random_bits((*held.shape, 2), np.int16, half)
        words = packed(name, wide, old, held, held[:, ::-1], row([scale], np.float32), dstLoHiSel=bool(half))
        octets = words[0].view(np.uint8).reshape(-1, 4)
        with np.errstate(all="ignore"):
            wanted = expected_code(name, exact[0] / scale)
        assert same_codes(name, octets[:, 2 * half], wanted)
        assert same_codes(name, octets[:, 2 * half + 1], wanted[::-1])
        assert same_bits(words[..., 1 - half], old[..., 1 - half])


def test_fp4_has_no_nan_and_no_infinity() -> None:
    x = row([math.nan, math.inf, -math.inf, 7.0, -0.0], np.float32)
    word = packed("fp4", "f32", row([0], np.int32), x, x, row([1.0], np.float32), dstSelIndex=0)
    assert (word[0] & 15).tolist() == [0, 7, 15, 7, 8]


def test_pack_toward_zero() -> None:
    x = row([1.0 + 2.0**-11, -1.0 - 2.0**-11, 65519.0, 1e9, 2.0**-25, math.inf], np.float32)
    got = run("rocdl.cvt.pkrtz", "(f32, f32) -> vector<2xf16>", x, -x)
    wanted = np.array([1.0, -1.0, 65504.0, 65504.0, 0.0, math.inf], np.float16)
    assert same_values(got[0, :, 0], wanted) and same_values(got[0, :, 1], -wanted)
