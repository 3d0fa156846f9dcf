"""The points a reader should look at first, and where in them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from k3lab.analysis.compare import HEAT_BLOCKS
from k3lab.analysis.report import Report
from k3lab.analysis.worst import block_edges, largest_block, worst_points


def test_the_largest_built_up_errors_come_first(report: Report):
    errors = {row.name: row.total.relative_rms for row in report.points}
    names = [point.name for point in worst_points(report)]
    assert names == sorted(errors, key=errors.get, reverse=True)[:3]


def test_a_missed_bound_comes_before_a_large_error(report: Report):
    first = report.points[0].name  # has the smallest error of all
    verdicts = [replace(v, passed=v.name != first) for v in report.verdicts]
    worst, *others = worst_points(replace(report, verdicts=verdicts))
    assert worst.name == first and worst.failed == ["own error at most half an ulp"]
    assert all(not point.failed for point in others)


def test_values_that_are_nan_on_one_side_come_before_all_finite_errors(report: Report):
    row = report.points[0]
    broken = [replace(row, total=replace(row.total, mismatched=1)), *report.points[1:]]
    assert worst_points(replace(report, points=broken))[0].name == row.name


def test_without_an_oracle_own_errors_decide(report: Report):
    bare = replace(report, points=[replace(row, total=None, heat=None) for row in report.points])
    own = {row.name: row.own.relative_rms or 0.0 for row in report.points}
    found = worst_points(bare)
    assert [point.name for point in found] == sorted(own, key=own.get, reverse=True)[:3]
    assert {(point.built_up, point.where) for point in found} == {("–", "–")}


def test_where_it_is_largest(report: Report):
    row = next(row for row in report.points if row.name == "k1.mix.x")
    heat = [[0.3] * HEAT_BLOCKS for _ in range(4)]
    heat[2][10] = 7.0
    hot = replace(row, heat=heat)
    block = largest_block(hot)
    # 2048 / 56 = 36.57: block 10 runs from round(365.7) to round(402.3) - 1.
    assert (block.token, block.first, block.last, block.ulps) == (2, 366, 401, 7.0)
    points = [hot if each is row else each for each in report.points]
    found = {point.name: point.where for point in worst_points(replace(report, points=points), most=8)}
    assert found["k1.mix.x"] == "token 2, elements 366 to 401 of 2048: 7 ulp"
    assert largest_block(replace(row, heat=[[0.0] * HEAT_BLOCKS] * 4)) is None


@pytest.mark.parametrize("width", [1, 8, 64, 128, 256, 512, 768, 1168, 1280, 1536, 1856, 2048, 3072, 6144, 7168])
def test_blocks_begin_where_the_comparison_divides_them(report: Report, width: int):
    blocks = min(HEAT_BLOCKS, width)
    row = replace(report.points[0], shape=[4, width], heat=[[0.0] * blocks] * 4)
    divided = torch.linspace(0, width, blocks + 1).round().long().tolist()
    assert block_edges(row) == divided and all(a < b for a, b in pairwise(divided))
