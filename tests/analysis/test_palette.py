"""Every format has one colour, and the charts draw it in that."""

from __future__ import annotations

from matplotlib.colors import to_hex

from k3lab import formats
from k3lab.analysis import charts, palette
from k3lab.analysis.timeline import colours


def test_every_format_has_a_colour_of_its_own():
    assert set(palette.FORMATS) == set(formats.FORMATS)
    plain = {name: colour for name, colour in palette.FORMATS.items() if name != "mxfp4"}  # its elements are E2M1
    assert len(set(plain.values())) == len(plain) and palette.FORMATS["mxfp4"] == palette.FORMATS["e2m1"]


def test_stages_keep_their_colours_and_the_path_has_none_of_them():
    stages = [f"s{place}" for place in range(len(palette.STAGES) + 1)]
    given = colours.by_stage(stages)
    assert list(given.values()) == [*palette.STAGES, palette.STAGES[0]]
    assert palette.PATH not in palette.STAGES


def test_codes_are_drawn_in_their_formats_colour(report):
    row = next(row for row in report.points if row.format == "bf16")
    row = type(row)(**{**vars(row), "format": "fp8_e4m3", "codes": [1] * 256})
    figure = charts.code_occupancy(type(report)(**{**vars(report), "points": [row]}))
    bars = figure.axes[0].patches
    assert {to_hex(bar.get_facecolor()).upper() for bar in bars} == {palette.FORMATS["fp8_e4m3"]}
