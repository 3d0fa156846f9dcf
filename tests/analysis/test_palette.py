"""Every format has one colour, and the charts draw it in that."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex, to_rgb

from k3lab import formats
from k3lab.analysis import charts, palette
from k3lab.analysis.timeline import colours
from k3lab.launches import LAUNCHES


def contrast(colour: str, other: str) -> float:
    """WCAG 2's ratio of two colours."""

    def luminance(name: str) -> float:
        linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in to_rgb(name)]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(colour), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_every_format_has_a_colour_of_its_own():
    assert set(palette.FORMATS) == set(formats.FORMATS)
    plain = {name: colour for name, colour in palette.FORMATS.items() if name != "mxfp4"}  # its elements are E2M1
    assert len(set(plain.values())) == len(plain) and palette.FORMATS["mxfp4"] == palette.FORMATS["e2m1"]


@pytest.mark.parametrize("launch", LAUNCHES)
def test_a_launchs_stages_have_colours_of_their_own_and_the_path_has_none_of_them(launch: str):
    stages = list(dict.fromkeys(point.stage for point in LAUNCHES[launch].stamp_points if point.stage))
    given = colours.by_stage(stages)
    assert list(given) == stages and len(set(given.values())) == len(stages)
    assert set(given.values()) <= set(palette.STAGES) and palette.PATH not in palette.STAGES


def test_a_stage_has_the_same_colour_in_every_launch():
    by_launch = [
        colours.by_stage([point.stage for point in each.stamp_points if point.stage]) for each in LAUNCHES.values()
    ]
    for stage in ("slice", "gate", "mix"):
        assert len({given[stage] for given in by_launch if stage in given}) == 1
    assert by_launch[0]["slice"] == palette.STAGES[0] and by_launch[0]["mix"] == palette.STAGES[2]


def test_a_step_that_stamps_with_another_keeps_its_colour():
    assert colours.of_stage("slice", ["o", "slice+gate", "mix"]) == palette.STAGES[0]
    assert colours.of_stage("gate", ["o", "slice+gate", "mix"]) == palette.STAGES[1]
    assert colours.of_stage("o", ["o", "mix"]) == colours.by_stage(["o", "mix"])["o"]
    assert colours.of_stage("device/peers", ["o", "mix"]) == palette.FAINT


def test_more_stages_than_colours_start_again():
    stages = [f"s{place}" for place in range(len(palette.STAGES) + 1)]
    given = list(colours.by_stage(stages).values())
    assert set(given) == set(palette.STAGES) and given[-1] == given[0]


def test_text_and_colours_stand_out_from_a_white_picture():
    # 4.5 : 1 is what WCAG 2 (level AA) asks of text.
    assert min(contrast(colour, "#FFFFFF") for colour in (palette.INK, palette.SOFT, palette.PATH)) >= 4.5


def test_codes_are_drawn_in_their_formats_colour(report):
    row = next(row for row in report.points if row.format == "bf16")
    row = type(row)(**{**vars(row), "format": "fp8_e4m3", "codes": [1] * 256})
    figure = charts.code_occupancy(type(report)(**{**vars(report), "points": [row]}))
    bars = figure.axes[0].patches
    assert {to_hex(bar.get_facecolor()).upper() for bar in bars} == {palette.FORMATS["fp8_e4m3"]}
