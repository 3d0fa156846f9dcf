from __future__ import annotations

import base64
import re
from dataclasses import replace

import numpy as np
import torch

from k3lab.analysis import charts
from k3lab.analysis import heat as page
from k3lab.analysis.compare import HEAT_BLOCKS, difference
from k3lab.analysis.compare import _heat as heat
from k3lab.analysis.report import Report
from k3lab.formats import parse
from k3lab.formats.tensor import round_tensor
from k3lab.launches import Point
from k3lab.rounding import Passed

S, N = 3, 56 * 512


def _passed(dims: str = "S N", shape: tuple[int, ...] = (S, N)) -> tuple[Point, Passed, Passed]:
    exact = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 1.0
    rounded = round_tensor(parse("bf16"), exact)
    return Point("some.point", "bf16", dims, ""), Passed(exact, rounded, "bf16"), Passed(exact, exact, None)


def test_a_rounding_alone_gives_the_rms_of_a_uniform_error():
    cells = torch.tensor(heat(*_passed(), "bf16"))
    assert cells.shape == (S, HEAT_BLOCKS)
    # Uniform in +-1/2 ulp: 1/sqrt(12). The rms of 512 samples is off by about 2 %; five sigma.
    assert (cells - 12**-0.5).abs().max() < 0.1 * 12**-0.5


def test_a_value_close_to_zero_does_not_drown_its_block():
    point, passed, true = _passed()
    true.after[0, 5], passed.after[0, 5] = (
        1e-30,
        1e-3,
    )  # off by 1e29 of its own ulps, and by an eighth of its neighbours'
    assert torch.tensor(heat(point, passed, true, "bf16")).max() < 0.35


def test_a_row_is_a_token_also_where_requests_are_told_apart():
    point, passed, true = _passed("R L HEADS 128", (2, 3, 2, 128))
    assert len(heat(point, passed, true, "bf16")) == 6


def test_points_of_a_report_have_a_row_a_token(report: Report):
    tokens = report.provenance["run"]["case"]["key"]["tokens"]
    assert {len(row.heat or ()) for row in report.points} == {tokens}


def test_difference_says_how_far_two_tensors_are_apart():
    want = torch.full((4,), 2.0)
    got = want + torch.tensor([0.0, 0.0, 0.0, 0.5])
    found = difference(got, want, "fp32")
    assert (found.differ, found.count, found.first) == (1, 4, {"index": [3], "got": "2.5", "want": "2.0"})
    assert found.relative_rms == 0.25 / 2  # rms difference sqrt(0.25 / 4) over 2
    assert difference(want, want, "fp32").relative_rms == 0.0


def test_the_canvas_holds_the_reports_cells(report: Report):
    held = page.data(report)
    for strip, row in zip(held["strips"], report.points, strict=True):
        cells = np.frombuffer(base64.b64decode(strip["ulps"]), "<f4").reshape(strip["tokens"], -1)
        assert np.array_equal(cells, np.array(row.heat, "<f4"))
        assert (strip["name"], strip["format"], strip["ranks"]) == (row.name, row.format, row.ranks)
        assert len(strip["edges"]) == cells.shape[1] + 1 and strip["edges"][-1] == np.prod(strip["shape"])
    assert (held["low"], held["high"]) == charts.heat_limits(report.points)  # the picture's scale


def test_axes_of_a_token_are_told_from_those_that_number_tokens(report: Report):
    rows = {row.name: row for row in report.points}
    shapes = {strip["name"]: strip["shape"] for strip in page.data(report)["strips"]}
    assert rows["k1.recur.o"].shape == [1, 4, 2, 128] and shapes["k1.recur.o"] == [2, 128]
    assert rows["k1.mix.x"].shape == [4, 2048] and shapes["k1.mix.x"] == [2048]


def test_two_heat_maps_do_not_meet_in_one_notebook(report: Report):
    ids = [re.search(r'id="(k3hm\w+)"', page.fragment(report, picture=""))[1] for _ in range(2)]
    assert ids[0] != ids[1]


def test_without_an_oracle_there_is_no_heat_map(report: Report):
    bare = [replace(row, total=None, heat=None) for row in report.points]
    assert page.fragment(replace(report, points=bare)) == ""
