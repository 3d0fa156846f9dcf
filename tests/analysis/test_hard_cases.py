"""Reports of cases whose values are hard: nothing crashes, and nothing that is not finite goes unsaid."""

from __future__ import annotations

from dataclasses import replace

import pytest

import k3lab
from k3lab.analysis import charts
from k3lab.analysis.html import render
from k3lab.cases import DISTRIBUTIONS
from k3lab.launches import LAUNCHES


def report_of(launch: str, values: str, **options) -> k3lab.Report:
    case = k3lab.make_case(launch, geometry="mini", values=values, **options)
    run = k3lab.run(launch, case)
    return k3lab.compare(run, k3lab.run(launch, case, order="torch"), k3lab.run(launch, case, backend="oracle"))


@pytest.mark.parametrize("values", DISTRIBUTIONS)
@pytest.mark.parametrize("launch", LAUNCHES)
def test_every_distribution_makes_a_report(launch, values, monkeypatch):
    monkeypatch.setattr(charts, "png", lambda figure: b"")
    report = report_of(launch, values, **({"ranks": 2} if launch == "k2a" else {}))
    assert report.passed
    assert k3lab.Report.from_json(report.to_json()) == report
    assert report.points[0].name in render(report)


def test_a_nan_that_vanishes_is_said_at_the_top(monkeypatch):
    """NaN in q_nope is +0 after MXFP4: the twin's q_out is finite where the oracle's is not."""
    monkeypatch.setattr(charts, "png", lambda figure: b"")
    report = report_of("m1a", "specials:nans:w_qb")
    row = next(row for row in report.tensors if row.name == "q_out")
    assert row.total.mismatched > 0
    said = f"{row.total.mismatched} of {row.total.count} values are NaN or infinite on one side only"
    page = render(report)
    assert said in page and page.index(said) < page.index("Words used here")


def test_saturation_of_an_mxfp4_block_is_not_a_bad_rounding():
    """`floor` leaves a block's largest values beyond 6 scales: they are clipped, the others within half an ulp."""
    case = k3lab.make_case("m1a", geometry="mini")
    with k3lab.probe(swap={"m1a.uk.q_nope": "mxfp4:floor"}):
        run = k3lab.run("m1a", case)
    report = k3lab.compare(run, run)
    row = next(row for row in report.points if row.name == "m1a.uk.q_nope")
    assert row.own.clipped_share > 0 and row.own.max_ulp > 0.5 >= row.own.max_ulp_in_range
    assert report.passed


def test_a_point_that_was_only_nudged_is_compared_in_its_own_format():
    case = k3lab.make_case("k1", geometry="mini")
    with k3lab.probe(swap={"k1.mix.x": "ulp:+1"}):
        run = k3lab.run("k1", case)
    row = next(row for row in k3lab.compare(run, run).points if row.name == "k1.mix.x")
    assert (row.format, row.own.format, row.codes) == ("ulp:+1", "bf16", None)


def test_diff_sees_budget_verdicts_and_spread():
    case = k3lab.make_case("k1", geometry="mini")
    run = k3lab.run("k1", case)
    report = k3lab.compare(run, run).with_budget(k3lab.error_budget("k1", case))
    budget = replace(
        report.budget, all_on={**report.budget.all_on, "x": 1.0}, none_on={**report.budget.none_on, "x": 2.0}
    )
    verdicts = [replace(report.verdicts[0], passed=False), *report.verdicts[1:]]
    changed = replace(report, budget=budget, verdicts=verdicts)
    assert {change.figure.partition(":")[0] for change in changed.diff(report)} == {
        "budget.all_on",
        "budget.none_on",
        "verdict",
    }
