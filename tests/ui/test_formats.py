"""Neighbours and codes against ml_dtypes; a block against its definition."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from k3lab import formats
from k3lab.errors import BadInput
from k3lab.formats import mx
from k3lab.ui import formats as view
from k3lab.ui.formats import block, block_view, code_text, neighbours, number_view, parse_block, parse_number

LIBRARY = {"bf16": ml_dtypes.bfloat16, "fp8_e4m3": ml_dtypes.float8_e4m3fn, "e2m1": ml_dtypes.float4_e2m1fn}


@pytest.mark.parametrize("name", view.SHOWN)
@pytest.mark.parametrize("value", [0.1, -0.3, 1.0, 0.25, 2.6, 5.0, -3.5, 1e-3, 0.0])
def test_neighbours_are_the_librarys_values(name, value):
    kind = LIBRARY[name]
    found = neighbours(value, name)
    codes = np.arange(1 << formats.get(name).bits).astype(f"u{np.dtype(kind).itemsize}")
    with np.errstate(invalid="ignore"):  # signalling NaNs among the codes
        ladder = codes.view(kind).astype(np.float64)
    ladder = np.unique(ladder[np.isfinite(ladder)])
    nearest = np.float64(kind(value))
    assert found.nearest.value == nearest and found.nearest.code == int(np.array(kind(value)).view(codes.dtype))
    place = int(np.searchsorted(ladder, nearest))
    low = max(place - 2, 0)
    assert [rung.value for rung in found.rungs] == ladder[low : place + 3].tolist()
    assert [rung.step for rung in found.rungs] == list(range(low - place, min(3, len(ladder) - place)))
    for rung in found.rungs:
        assert float(codes[rung.code : rung.code + 1].view(kind)[0]) == rung.value


def test_one_tenth_by_hand():
    found = neighbours(0.1, "bf16")
    assert found.nearest.code == 0x3DCD and not found.tie and not found.beyond
    assert code_text(formats.BF16, 0x3DCD) == "0x3dcd = 0 01111011 1001101"
    assert code_text(formats.E2M1, 9) == "0x9 = 1 00 1"
    assert code_text(formats.E8M0, 0x80) == "0x80 = 10000000"


@pytest.mark.parametrize("value", [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
def test_ties_are_seen_and_go_to_the_even_code(value):
    found = neighbours(value, "e2m1")
    assert found.tie and found.nearest.code % 2 == 0
    assert not neighbours(np.nextafter(value, 9), "e2m1").tie and not neighbours(value, "bf16").tie


def test_the_ends_of_the_ladder():
    assert [rung.value for rung in neighbours(500.0, "fp8_e4m3").rungs] == [384.0, 416.0, 448.0]
    assert neighbours(500.0, "fp8_e4m3").beyond and neighbours(448.0, "fp8_e4m3").beyond is False
    over = neighbours(1.7e308, "bf16")
    assert over.nearest.value == math.inf and over.beyond and not over.tie
    assert len(neighbours(math.nan, "bf16").rungs) == 1 and neighbours(math.nan, "e2m1").nearest.value == 0.0
    assert "has no NaN" in str(number_view(math.nan))


def test_a_number_is_not_rounded_to_float32_first():
    """Half an ulp of bf16 above 1 is a tie; 2^-40 more is not, though float32 cannot tell."""
    assert neighbours(1 + 2**-8, "bf16").nearest.value == 1.0
    assert neighbours(1 + 2**-8 + 2**-40, "bf16").nearest.value == 1 + 2**-7


def test_a_block_by_hand():
    """amax 7 = 1.75 x 4: `even` and the two upper rules take scale 2, `floor` takes 1 and clips 7 to 6."""
    for rule, scale, code, becomes in (("even", 2.0, 0x80, 8.0), ("floor", 1.0, 0x7F, 6.0), ("rceil", 2.0, 0x80, 8.0)):
        held = block([0.4, -7.0], rule)
        assert (held.amax, held.scale, held.scale_code, held.decoded[1]) == (7.0, scale, code, -becomes)
    assert block([0.4, -7.0], "floor").codes == (1, 15) and block([0.4, -7.0], "floor").decoded[0] == 0.5


def test_a_block_is_what_the_quantiser_makes():
    values = np.random.default_rng(0).standard_normal(mx.BLOCK)
    for rule in mx.RULES:
        held = block(values.tolist(), rule)
        np.testing.assert_array_equal(held.decoded, mx.round(values, rule))
        np.testing.assert_array_equal(np.multiply(held.scaled, held.scale), values)


def test_views_show_the_figures_and_escape_texts():
    text = str(number_view(0.1))
    assert "0x3dcd = 0 01111011 1001101" in text and "◀ nearest" in text and text.count("<img") == 1
    assert "a tie, to the even code" in str(number_view(2.5)) and "<img" not in str(number_view(math.inf))
    text = str(block_view([0.11, 7.1], "floor"))
    assert "▶ floor" in text and "0x7f = 01111111" in text and "▶ even" not in text


def test_what_can_be_typed():
    assert parse_number(" 0x1.8p-3 ") == 0.1875 and parse_number("-3e-5") == -3e-5 and math.isnan(parse_number("nan"))
    assert parse_block("1, 2 3,\n4") == [1, 2, 3, 4]
    for wrong in ("<b>", "", "1;2"):
        with pytest.raises(BadInput):
            parse_block(wrong)
    with pytest.raises(BadInput, match="1 .. 32"):
        parse_block("1 " * 33)
    with pytest.raises(BadInput, match="look at a block"):
        neighbours(1.0, "mxfp4")
