"""MXFP4: scale rules over every bf16 amax, blocks, and what is inside a block that should not be."""

from __future__ import annotations

from fractions import Fraction

import gfloat
import gfloat.formats
import numpy as np
import pytest
import torch

from k3lab import formats
from k3lab.errors import BadInput
from k3lab.formats import mx

POSITIVE_BF16 = formats.bf16_values(np.arange(1, 0x7F80).astype(np.uint16))  # finite, above zero


def block_of(*values: float, dtype: type = np.float32) -> np.ndarray:
    """One block with `values` first and zeros after."""
    block = np.zeros(mx.BLOCK, dtype)
    block[: len(values)] = values
    return block


def one_block_each(amax: np.ndarray) -> np.ndarray:
    """A block for each amax, shape [n, 32], with the amax in a varying place and half of it beside."""
    blocks = np.zeros((amax.size, mx.BLOCK), amax.dtype)
    rows, place = np.arange(amax.size), np.arange(amax.size) % mx.BLOCK
    blocks[rows, (place + 1) % mx.BLOCK] = amax / 2
    blocks[rows, place] = -amax
    return blocks


# -- an independent, exact statement of the four rules -------------------------------------------------------------


def floor_log2(v: Fraction) -> int:
    e = v.numerator.bit_length() - v.denominator.bit_length()
    return e if Fraction(2) ** e <= v else e - 1


def ceil_log2(v: Fraction) -> int:
    e = floor_log2(v)
    return e if Fraction(2) ** e == v else e + 1


def exact_exponent(amax: float, rule: str) -> int:
    v = Fraction(amax)
    if rule == "even":
        e = floor_log2(v)
        return (e + 1 if v / Fraction(2) ** e >= Fraction(7, 4) else e) - 2
    return {"floor": floor_log2(v) - 2, "rceil": ceil_log2(v / 6), "ceil": ceil_log2(v) - 2}[rule]


@pytest.mark.parametrize("rule", mx.RULES)
def test_scale_of_every_bf16_amax_is_exact(rule: str) -> None:
    lowest = 1 if rule == "even" else 0
    expected = [max(exact_exponent(float(a), rule) + 127, lowest) for a in POSITIVE_BF16]
    np.testing.assert_array_equal(mx.block_scale(one_block_each(POSITIVE_BF16), rule)[:, 0], expected)


@pytest.mark.parametrize("rule", mx.RULES)
def test_scale_beside_every_threshold_in_float32(rule: str) -> None:
    """1, 1.5 and 1.75 times each power of two, and the float32 values on either side."""
    centre = (np.float32([1, 1.5, 1.75])[:, None] * np.ldexp(np.float32(1), np.arange(-126, 128))).ravel()
    amax = np.concatenate([centre, np.nextafter(centre, np.float32(0)), np.nextafter(centre, np.float32(np.inf))])
    amax = amax[amax >= 2.0**-126].astype(np.float32)
    expected = [max(exact_exponent(float(a), rule) + 127, 1 if rule == "even" else 0) for a in amax]
    np.testing.assert_array_equal(mx.block_scale(one_block_each(amax), rule)[:, 0], expected)


# -- against the libraries -----------------------------------------------------------------------------------------


def torchao_mx(x: np.ndarray, rule: str) -> tuple[np.ndarray, np.ndarray]:
    """torchao's (codes [..., n], scales [..., n / 32]) by the rule of the same name."""
    mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    mode = mx_tensor.ScaleCalculationMode[rule.upper()]
    scales, packed = mx_tensor.to_mx(torch.from_numpy(x.copy()), torch.float4_e2m1fn_x2, mx.BLOCK, mode)
    return mx.unpack_nibbles(packed.view(torch.uint8).numpy().reshape(*x.shape[:-1], -1)), scales.view(
        torch.uint8
    ).numpy()


def random_blocks(n: int = 2000) -> np.ndarray:
    """bf16 values, each block at its own magnitude, shape [n, 32]."""
    rng = np.random.default_rng(0)
    x = np.ldexp(rng.standard_normal((n, mx.BLOCK)), rng.integers(-110, 120, (n, 1))).astype(np.float32)
    return formats.BF16.round(x)


@pytest.mark.parametrize("rule", mx.RULES)
def test_random_blocks_are_torchao(rule: str) -> None:
    x = random_blocks()
    codes, scales = mx.quantise(x, rule)
    their_codes, their_scales = torchao_mx(x, rule)
    np.testing.assert_array_equal(scales, their_scales)
    np.testing.assert_array_equal(codes, their_codes)


@pytest.mark.parametrize("rule", ["floor", "even", "ceil"])
def test_scale_of_every_normal_bf16_amax_is_torchao(rule: str) -> None:
    amax = POSITIVE_BF16[POSITIVE_BF16 >= 2.0**-124]
    x = one_block_each(amax)
    np.testing.assert_array_equal(mx.block_scale(x, rule), torchao_mx(x, rule)[1])


def test_torchao_rceil_slips_where_its_float32_logarithm_does() -> None:
    """Its exponent is ceil(log2(amax / 6)) in float32, which rounds to a whole number just above a power of two."""
    x = block_of(np.nextafter(np.float32(1.5 * 2.0**100), np.float32(np.inf)))
    assert mx.block_scale(x, "rceil") == 100 - 1 + 127  # amax / scale is just above 3, and would be above 6
    assert torchao_mx(x[None], "rceil")[1] == 100 - 2 + 127


def test_floor_is_gfloat() -> None:
    info = gfloat.formats
    block_info = gfloat.BlockFormatInfo("mxfp4", info.format_info_ocp_e2m1, mx.BLOCK, info.format_info_ocp_e8m0)
    for x in random_blocks(50):
        theirs = gfloat.quantize_block(block_info, x.astype(np.float64), gfloat.compute_scale_amax)
        np.testing.assert_array_equal(mx.round(x, "floor"), theirs)


def test_how_torchao_even_differs() -> None:
    """The same addition, 0x200000, and the same exponent; but for tiny blocks and NaN."""
    tiny = block_of(2.0**-126, 2.0**-127)[None]
    codes, scales = mx.quantise(tiny)
    their_codes, their_scales = torchao_mx(tiny, "even")
    # It divides by 2^-126, as the kernel's max(code, 1) does, yet stores code 0: its block reads back halved.
    assert (scales[0, 0], their_scales[0, 0]) == (1, 0)
    np.testing.assert_array_equal(codes, their_codes)
    np.testing.assert_array_equal(mx.dequantise(codes, scales), tiny)
    np.testing.assert_array_equal(mx.dequantise(their_codes, their_scales), tiny / 2)
    # A NaN makes its whole block NaN (code 255); here a NaN has the scale its bits give.
    broken = block_of(np.nan, 1.0)[None]
    assert (mx.block_scale(broken)[0, 0], torchao_mx(broken, "even")[1][0, 0]) == (253, 255)


# -- the lessons ---------------------------------------------------------------------------------------------------


def test_even_threshold_is_1_75() -> None:
    for exponent in (-60, 0, 1, 77):
        low, high = 1.7421875 * 2.0**exponent, 1.75 * 2.0**exponent  # neighbours in bf16
        assert mx.block_scale(block_of(low))[0] == exponent - 2 + 127
        assert mx.block_scale(block_of(high))[0] == exponent - 1 + 127


def test_four_rules_on_one_amax() -> None:
    """amax 6.5 = 1.625 * 4: only the ceilings go up. Just below a power of two all but floor do."""
    scales = {rule: float(formats.E8M0.decode(mx.block_scale(block_of(6.5), rule))[0]) for rule in mx.RULES}
    assert scales == {"even": 1, "floor": 1, "rceil": 2, "ceil": 2}
    scales = {rule: float(formats.E8M0.decode(mx.block_scale(block_of(7.97), rule))[0]) for rule in mx.RULES}
    assert scales == {"even": 2, "floor": 1, "rceil": 2, "ceil": 2}


def test_just_below_a_power_of_two_a_float32_logarithm_is_wrong() -> None:
    amax = np.nextafter(np.float32(2.0**20), np.float32(0))
    assert np.floor(np.log2(amax)) == 20  # the trap
    assert mx.block_scale(block_of(amax), "floor")[0] == 19 - 2 + 127


def test_exponent_of_amax_over_6_is_not_that_of_amax_minus_2() -> None:
    assert mx.block_scale(block_of(5.0), "floor")[0] == 127  # 4 / 2^2
    assert np.floor(np.log2(5.0 / 6)) == -1


def test_tiny_and_zero_blocks() -> None:
    threshold = 1.75 * 2.0**-125
    assert mx.even_code(np.float32([0, threshold * 0.99, threshold]).view(np.int32)).tolist() == [0, 0, 1]
    np.testing.assert_array_equal(mx.block_scale(np.stack([block_of(0.0), block_of(threshold)]))[:, 0], [1, 1])
    codes, scales = mx.quantise(block_of(0.0, -0.0))
    assert scales[0] == 1 and codes[0] == 0 and codes[1] == 8  # -0 keeps its sign
    for rule in ("floor", "rceil", "ceil"):
        assert mx.block_scale(block_of(0.0), rule)[0] == 0
        smallest = block_of(2.0**-128)  # half of the scale 2^-127: the smallest value there is
        np.testing.assert_array_equal(mx.round(smallest, rule), smallest)
    assert not mx.round(block_of(2.0**-129)).any()


def test_e8m0_ends() -> None:
    codes = np.full(mx.BLOCK, 2, np.uint8)  # all 1.0
    assert (mx.dequantise(codes, np.uint8([0])) == np.float32(2.0**-127)).all()
    assert (mx.dequantise(codes, np.uint8([254])) == 2.0**127).all()
    assert np.isnan(mx.dequantise(codes, np.uint8([255]))).all()


def test_even_rolls_over_from_bf16_bits_0x7fe0() -> None:
    bits = np.uint16([0x7F80, 0x7FC0, 0x7FDF, 0x7FE0, 0x7FFF])
    assert mx.even_code(bits.astype(np.int64) << 16).tolist() == [253, 253, 253, 0, 0]
    blocks = np.stack([block_of(v) for v in formats.bf16_values(bits)])
    blocks[:, 0] = formats.bf16_values(bits)
    assert mx.block_scale(blocks)[:, 0].tolist() == [253, 253, 253, 1, 1]
    for rule in ("floor", "rceil", "ceil"):
        assert (mx.block_scale(blocks, rule) >= 253).all() and (mx.block_scale(blocks, rule) <= 254).all()


def test_nan_and_infinity_in_a_block() -> None:
    block = block_of(np.nan, -np.nan, np.inf, -np.inf, 1.0)
    assert mx.quantise(block)[0][:5].tolist() == [0, 0, 7, 15, 0]
    assert mx.quantise(block, nonfinite="six")[0][:5].tolist() == [7, 15, 7, 15, 0]
    assert np.isfinite(mx.round(block_of(np.nan, 1.0, 2.0))).all()  # the NaN has vanished, and so has the rest
    with pytest.raises(BadInput, match="nonfinite: expected one of zero, six"):
        mx.quantise(block, nonfinite="seven")


def test_signalling_nans_raise_no_warning() -> None:
    block = block_of(1.0)
    block.view(np.uint32)[1] = 0x7F800001
    for rule in mx.RULES:
        assert mx.quantise(block, rule)[0][1] == 0


# -- blocks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", mx.RULES)
@pytest.mark.parametrize("mode", ["nearest", "zero"])
def test_round_is_idempotent_and_within_an_ulp(rule: str, mode: str) -> None:
    x = random_blocks().astype(np.float64)
    fmt = mx.MxFormat(rule=rule)
    rounded = fmt.round(x, mode)
    np.testing.assert_array_equal(fmt.round(rounded, mode), rounded)
    scale = np.repeat(formats.E8M0.decode(mx.block_scale(x, rule)), mx.BLOCK, axis=-1)
    inside = np.abs(x) <= 6.0 * scale
    bound = fmt.ulp(x) / 2 if mode == "nearest" else fmt.ulp(x)
    assert (np.abs(rounded - x)[inside] <= bound[inside]).all()
    assert (np.abs(rounded)[~inside] == (6.0 * scale)[~inside]).all()
    if rule in ("rceil", "ceil"):
        assert inside.all()  # neither ever saturates


def test_float64_is_rounded_once_and_its_amax_through_float32() -> None:
    x = block_of(4.0, 1.25 + 2**-40, dtype=np.float64)
    assert mx.round(x)[1] == 1.5 and mx.round(x.astype(np.float32))[1] == 1.0
    nearly = block_of(1.75 - 2**-40, dtype=np.float64)  # 1.75 in float32
    assert mx.block_scale(nearly) == mx.block_scale(block_of(1.75))


def test_blocks_run_along_the_last_axis() -> None:
    x = np.random.default_rng(0).standard_normal((3, 2, 96)).astype(np.float32)
    codes, scales = mx.quantise(x)
    assert codes.shape == x.shape and scales.shape == (3, 2, 3)
    np.testing.assert_array_equal(mx.quantise(x[1, 1, 32:64])[0], codes[1, 1, 32:64])
    with pytest.raises(BadInput, match="multiple of 32, got shape"):
        mx.quantise(np.zeros((32, 5)))
    with pytest.raises(BadInput, match="scale rule: expected one of even, floor, rceil, ceil"):
        mx.quantise(x, "half")
    with pytest.raises(BadInput, match="one for every 32 codes"):
        mx.dequantise(codes, scales[..., :2])
    assert mx.quantise(np.zeros((0, 64)))[1].shape == (0, 2)


def test_dequantise_overflows_float32_only() -> None:
    largest = block_of(float(np.float32(3.3e38)))
    codes, scales = mx.quantise(largest)
    assert mx.dequantise(codes, scales)[0] == np.inf
    assert mx.dequantise(codes, scales, np.float64)[0] == 2.0**128


def test_nibbles() -> None:
    assert mx.pack_nibbles(np.uint8([0x1, 0x2, 0xF, 0x0])).tolist() == [0x21, 0x0F]
    codes = np.random.default_rng(0).integers(0, 16, (5, 64)).astype(np.uint8)
    np.testing.assert_array_equal(mx.unpack_nibbles(mx.pack_nibbles(codes)), codes)
    with pytest.raises(BadInput, match="even last axis"):
        mx.pack_nibbles(np.zeros(3, np.uint8))
    with pytest.raises(BadInput, match="4-bit codes"):
        mx.pack_nibbles(np.uint8([16, 0]))
