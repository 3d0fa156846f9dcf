"""`k3lab render`: a page anew from its JSON, and the sentences that it refuses with."""

from __future__ import annotations

from pathlib import Path

import pytest

import k3lab
from k3lab.analysis.report import Report
from tests.analysis.timeline.made import chain
from tests.test_cli import fine, refused


@pytest.fixture(scope="module")
def report() -> Report:
    run = k3lab.run("k1", k3lab.make_case("k1", geometry="mini"))
    return k3lab.compare(run, run)


@pytest.fixture
def folder(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report and a timeline, as JSON alone."""
    monkeypatch.setattr("k3lab.analysis.charts.png", lambda figure: b"")
    monkeypatch.setattr("k3lab.analysis.timeline.page.png", lambda figure: b"")
    for name, made in (("report", report), ("timeline", chain())):
        made.save(tmp_path / name)
        (tmp_path / name / f"{name}.json").rename(tmp_path / f"{name}.json")
    return tmp_path


@pytest.mark.parametrize("name", ("report", "timeline"))
def test_the_page_is_the_one_that_was_saved(folder: Path, name: str):
    assert fine("render", folder / f"{name}.json").strip() == str(folder / f"{name}.html")
    drawn, saved = (path.read_text() for path in (folder / f"{name}.html", folder / name / f"{name}.html"))
    assert len(drawn) == len(saved) and drawn[:2000] == saved[:2000]  # ids of the canvases are drawn anew


def test_a_report_can_show_a_timeline_and_what_changed(folder: Path):
    fine(
        "render", folder / "report.json", "--timeline", folder / "timeline.json", "--out", folder / "new" / "page.html"
    )
    text = (folder / "new" / "page.html").read_text()
    assert 'id="time"' in text and "What changed" not in text
    fine("render", folder / "report.json", "--against", folder / "report.json")
    assert "Nothing changed since" in (folder / "report.html").read_text()


def test_what_is_refused(folder: Path, report: Report):
    json, times = folder / "report.json", folder / "timeline.json"
    assert "a readable JSON file" in refused(2, "render", folder / "none.json")
    assert "got a misfit" in refused(2, "render", json, "--against", times)
    assert "a report's FILE beside it" in refused(2, "render", times, "--timeline", times)
    assert "another file than the one that is read" in refused(2, "render", json, "--out", json)
    (folder / "list.json").write_text("[]")
    assert "got a misfit" in refused(2, "render", folder / "list.json")
    (folder / "other.json").write_text(json.read_text().replace('"launch": "k1"', '"launch": "m1a"', 1))
    assert "expected one of k1, got one of m1a" in refused(2, "render", json, "--against", folder / "other.json")
    assert not (folder / "report.html").exists() and Report.load(json) == report
