"""What a report says of an older one: verdicts, points and results that moved, by how much; and where it finds it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from k3lab.analysis.changes import changes, previous
from k3lab.analysis.report import Report

OLD_DATE = "2020-01-01T00:00:00+00:00"


def older(report: Report, **fields: Any) -> Report:
    return replace(report, created=OLD_DATE, **fields)


def with_error(report: Report, place: int, factor: float) -> list:
    """The points, one's built-up relative rms error times `factor`."""
    row = report.points[place]
    changed = replace(row, total=replace(row.total, relative_rms=row.total.relative_rms * factor))
    return [*report.points[:place], changed, *report.points[place + 1 :]]


def test_nothing_changed_says_so(report: Report):
    made = changes(report, older(report))
    assert made.sentences == [
        "Nothing changed since the report made 2020-01-01 00:00:00 UTC: 8 verdicts and every figure are the same."
    ]
    assert made.figures == []


def test_points_that_moved_are_named_largest_first(report: Report):
    points = with_error(replace(report, points=with_error(report, 1, 0.5)), 3, 0.1)
    made = changes(report, older(report, points=points))
    first, second = report.points[3].name, report.points[1].name
    (line,) = [line for line in made.lines if "rounding points changed" in line]
    assert line.startswith("2 of 8 rounding points changed, by built-up relative rms error: ")
    assert line.index(f"{first} ") < line.index(f"{second} ")
    assert "(× 10)" in line and "(+100 %)" in line
    assert made.lines[0] == "No verdict changed (8 bounds)."
    assert made.lines[-1].startswith("2 figures changed in all since the report made 2020-01-01 00:00:00 UTC: of ")


@pytest.mark.parametrize(("now", "said"), [(False, "Now missed"), (True, "Now held")])
def test_a_verdict_that_turned_says_how(report: Report, now: bool, said: str):
    first, *rest = report.verdicts
    turned = [replace(first, passed=now, measured="0.7 ulp" if not now else "0.5 ulp"), *rest]
    before = [replace(first, passed=not now, measured="0.7 ulp" if now else "0.5 ulp"), *rest]
    made = changes(replace(report, verdicts=turned), older(report, verdicts=before))
    was, is_ = ("0.5", "0.7") if not now else ("0.7", "0.5")
    assert made.lines[0] == f"{said}: {first.name} ({first.bound}; {was} ulp before, {is_} ulp now)."


def test_results_that_moved_and_those_that_did_not(report: Report):
    rows = [
        replace(row, total=replace(row.total, relative_rms=row.total.relative_rms / 1.5)) if row.name == "x" else row
        for row in report.tensors
    ]
    (line,) = [line for line in changes(report, older(report, tensors=rows)).lines if line.startswith("Results")]
    assert "x " in line and "(+50 %)" in line
    assert line.endswith("core_out, conv_state, rstate and prefix unchanged.")


def test_other_inputs_and_versions_are_named(report: Report):
    run = report.provenance["run"]
    other = {
        **run,
        "versions": {**run["versions"], "torch": "1.0"},
        "case": {**run["case"], "seed": 7, "hash": "0" * 64},
    }
    made = changes(report, older(report, provenance={**report.provenance, "run": other}))
    torch = run["versions"]["torch"]
    assert made.made_otherwise == f"Not made alike: case.seed 7 → 0 and versions.torch 1.0 → {torch}."
    assert made.sentences[0] == made.made_otherwise


def test_points_that_came_and_went(report: Report):
    first, *rest = report.points
    assert f"New: {first.name}." in changes(report, older(report, points=rest)).lines
    assert f"Gone: {first.name}." in changes(replace(report, points=rest), older(report)).lines


def test_without_an_oracle_own_errors_are_compared(report: Report):
    bare = [replace(row, total=None, heat=None) for row in report.points]
    changed = [replace(bare[0], own=replace(bare[0].own, relative_rms=1.0)), *bare[1:]]
    (line,) = [
        line
        for line in changes(replace(report, points=changed), older(report, points=bare)).lines
        if "changed, by own relative rms error" in line
    ]
    assert "→ 1 " in line


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k3lab.analysis.charts.png", lambda figure: b"")


@pytest.mark.usefixtures("no_charts")
def test_a_folder_remembers_its_last_report(report: Report, tmp_path: Path):
    assert previous(tmp_path, "k1") is None
    assert "What changed" not in older(report).save(tmp_path).read_text()
    assert previous(tmp_path, "k1") == older(report) and previous(tmp_path, "m1a") is None
    page = report.save(tmp_path).read_text()
    assert "Nothing changed since the report made 2020-01-01 00:00:00 UTC" in page
    given = replace(report, created="2021-01-01T00:00:00+00:00")
    assert "made 2021-01-01 00:00:00 UTC" in report.save(tmp_path, against=given).read_text()


@pytest.mark.usefixtures("no_charts")
@pytest.mark.parametrize("text", ["", "{}", "not JSON"])
def test_what_is_no_report_is_passed_over(report: Report, tmp_path: Path, text: str):
    (tmp_path / "report.json").write_text(text)
    assert previous(tmp_path, "k1") is None
    assert "What changed" not in report.save(tmp_path).read_text()
    assert Report.load(tmp_path / "report.json") == report
