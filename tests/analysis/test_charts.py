from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from itertools import combinations

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import k3lab
from k3lab.analysis import charts
from k3lab.analysis.report import Report

CHARTS = (charts.error_by_stage, charts.ulp_histograms, charts.heat_maps, charts.budget_map)


def _longer(report: Report, points: int = 15) -> Report:
    """`report` with `points` rounding points of long names, in the budget too."""
    assert report.budget is not None
    names = [f"m1a.norm.k_pe_entry{place}" for place in range(points)]
    rows = [replace(report.points[place % len(report.points)], name=name) for place, name in enumerate(names)]
    first = report.points[0].name
    budget = [replace(row, point=name) for name in names for row in report.budget.rows if row.point == first]
    return replace(report, points=rows, budget=replace(report.budget, rows=budget))


@pytest.mark.parametrize("chart", CHARTS)
def test_charts_are_titled_and_every_axis_is_labelled(report: Report, chart):
    figure = chart(report)
    assert isinstance(figure, Figure)
    assert figure.get_suptitle()
    labelled = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert labelled
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in labelled)
    assert charts.png(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("chart", CHARTS)
def test_charts_draw_without_oracle_and_budget(report: Report, chart):
    points = [replace(row, total=None, heat=None) for row in report.points]
    assert charts.png(chart(replace(report, points=points, budget=None))).startswith(b"\x89PNG")


@pytest.mark.parametrize("chart", CHARTS)
def test_charts_draw_without_any_point(report: Report, chart):
    assert charts.png(chart(replace(report, points=[], budget=None))).startswith(b"\x89PNG")


@pytest.mark.parametrize("chart", CHARTS)
@pytest.mark.parametrize("points", [8, 15])
def test_tick_labels_do_not_overlap(report: Report, chart, points: int):
    figure = chart(_longer(report, points))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = [label for label in axis.get_ticklabels() if label.get_text() and label.get_visible()]
            inside = [label.get_window_extent(canvas.get_renderer()) for label in labels]
            assert not any(a.overlaps(b) for a, b in combinations(inside, 2)), [label.get_text() for label in labels]


def test_every_point_has_its_place(report: Report):
    names = [row.name for row in report.points]
    stage = charts.error_by_stage(report)
    assert [label.get_text() for label in stage.axes[0].get_yticklabels()] == names
    for chart in (charts.ulp_histograms, charts.heat_maps):
        assert [axes.get_title() for axes in chart(report).axes if axes.get_title()] == names


def test_the_budget_map_leaves_out_points_that_do_not_reach_a_tensor(report: Report):
    axes = charts.budget_map(report).axes[0]
    cells = {text.get_position()[::-1]: text.get_text() for text in axes.texts}
    points = [label.get_text() for label in axes.get_yticklabels()]
    tensors = [label.get_text() for label in axes.get_xticklabels()]
    assert cells[points.index("k1.norm.core"), tensors.index("x")] == "–"
    assert cells[points.index("hw.exp2, 1 ulp off at random"), tensors.index("x")] == "–"  # less than a millionth
    assert cells[points.index("k1.slice.prefix"), tensors.index("prefix")] == "100 %"
    assert cells[points.index("nothing rounded"), tensors.index("prefix")] == "0 %"


@pytest.mark.parametrize(
    ("width", "label"),
    [
        (1.0, "channel"),
        (4.0, "channel block (4 channels each)"),
        (8 / 7, "channel block (1 or 2 channels each)"),
        (2048 / 56, "channel block (36 or 37 channels each)"),
    ],
)
def test_heat_maps_say_what_a_column_is(width: float, label: str):
    assert charts._block_label(width) == label


def test_nothing_is_cut_off_a_tall_heat_map(report: Report):
    figure = charts.heat_maps(_longer(report, 21))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    inside = figure.get_tightbbox(canvas.get_renderer())
    assert inside.ymin >= 0 and inside.xmin >= 0
    assert inside.ymax <= figure.get_figheight() and inside.xmax <= figure.get_figwidth()


def test_pyplot_is_left_alone():
    code = "import sys; from k3lab.analysis import charts; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_code_occupancy_counts_every_value_once():
    case = k3lab.make_case("m1a", geometry="mini")
    run = k3lab.run("m1a", case)
    report = k3lab.compare(run, run)
    rows = {row.name: row for row in report.points}
    assert rows["m1a.proj.qa"].codes is None
    assert len(rows["m1a.uk.q_nope"].codes) == 16 and len(rows["m1a.uk.q_entry"].codes) == 256
    for row in report.points:
        if row.codes:
            assert sum(row.codes) == math.prod(row.shape)
    entry = run.points["m1a.uk.q_entry"][0].after
    assert rows["m1a.uk.q_entry"].codes[0x38] == int((entry == 1.0).sum())
    figure = charts.code_occupancy(report)
    assert len(figure.axes) == 5 and all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes)
