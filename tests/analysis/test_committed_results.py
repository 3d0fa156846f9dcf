"""What is committed of runs on GPUs can be read, and says where it was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from k3lab.analysis.report import Report

RESULTS = Path(__file__).parents[2] / "data" / "results" / "cuda"


@pytest.mark.parametrize("launch", ["k1", "m1a", "k2a"])
def test_reports_load_and_their_bounds_held(launch):
    report = Report.load(RESULTS / f"{launch}-report.json")
    assert report.launch == launch and report.passed and report.labels["run"].startswith("translated kernel on NVIDIA")
    run = report.provenance["run"]
    assert run["device"].startswith("NVIDIA") and run["translation"]["build"] == "exact"
    for kind in ("report", "timeline"):
        page = (RESULTS / f"{launch}-{kind}.html").read_text(encoding="utf-8")
        assert "NVIDIA H200" in page and len(page) < 3_000_000


def test_every_checked_item_was_right():
    held = json.loads((RESULTS / "cuda.json").read_text(encoding="utf-8"))
    assert held["device"].startswith("NVIDIA") and len(held["items"]) > 100
    assert [name for name, found in held["items"].items() if not found["equal"]] == []
