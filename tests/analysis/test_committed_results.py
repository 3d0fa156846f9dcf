"""What is committed of runs on GPUs can be read, and says where it was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.cuda_ranks_items import items
from benchmarks.cuda_ranks_results import KINDS, markdown
from k3lab.analysis.report import Report
from k3lab.analysis.timeline import load

RESULTS = Path(__file__).parents[2] / "data" / "results" / "cuda"
RANKS = RESULTS.parent / "ranks"


@pytest.mark.parametrize("launch", ["k1", "m1a", "k2a"])
def test_reports_load_and_their_bounds_held(launch):
    report = Report.load(RESULTS / f"{launch}-report.json")
    assert report.launch == launch and report.passed and report.labels["run"].startswith("translated kernel on NVIDIA")
    run = report.provenance["run"]
    assert run["device"].startswith("NVIDIA") and run["translation"]["build"] == "exact"
    for kind in ("report", "timeline"):
        page = (RESULTS / f"{launch}-{kind}.html").read_text(encoding="utf-8")
        assert "NVIDIA H200" in page and len(page) < 3_000_000
    timeline = load(RESULTS / f"{launch}-timeline.json")
    assert timeline.launch == launch and timeline.clock.label == "measured on NVIDIA H200"


def test_every_checked_item_was_right():
    held = json.loads((RESULTS / "cuda.json").read_text(encoding="utf-8"))
    assert held["device"].startswith("NVIDIA") and len(held["items"]) > 100
    assert [name for name, found in held["items"].items() if not found["equal"]] == []


def test_items_over_several_gpus_were_right_and_those_that_did_not_run_are_named():
    held = json.loads((RANKS / "ranks.json").read_text(encoding="utf-8"))
    assert held["device"].startswith("NVIDIA") and held["gpus"] >= 2 and held["driver"] and held["date"]
    assert {"torch", "nvrtc"} <= set(held["versions"])
    parts = held["parts"]
    assert {name for name, part in parts.items() for row in part["items"].values() if not row["equal"]} == set()
    assert sum(len(part["items"]) for part in parts.values()) > 50
    for name, kind in KINDS.items():
        known = {item.name for item in items() if item.kind == kind}
        assert known <= {*parts[name]["items"], *parts[name]["not_run"]}, name


def test_the_table_over_several_gpus_is_made_of_the_items():
    held = json.loads((RANKS / "ranks.json").read_text(encoding="utf-8"))
    assert (RANKS / "ranks.md").read_text(encoding="utf-8") == markdown(held)


@pytest.mark.parametrize("launch", ["k2a", "m1a"])
def test_timelines_over_several_gpus_say_how_far_their_clocks_are_known(launch):
    timeline = load(RANKS / f"{launch}-timeline.json")
    assert timeline.launch == launch and timeline.clock.label == "measured on NVIDIA H200"
    clocks = timeline.provenance["clocks"]
    assert timeline.ranks == timeline.provenance["ranks"]["gpus"] == len(clocks["offsets_ns"]) == 2
    assert 0 < clocks["within_ns"] < 5000 and clocks["offsets_ns"][0] == 0
    page = (RANKS / f"{launch}-timeline.html").read_text(encoding="utf-8")
    assert f"{clocks['offsets_ns'][1]:,} ns from GPU 1" in page and len(page) < 3_000_000
    assert f"may be off by {clocks['within_ns']:.0f} ns" in page
