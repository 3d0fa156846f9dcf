"""The self-test: every kernel whole and by stages, a page and JSON to send on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from k3lab import launches
from k3lab.analysis import selftest
from k3lab.analysis.bisect import StageCheck, units
from k3lab.errors import BackendUnavailable, BadInput, InternalFault

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

ONE = {"k1": ({"tokens": 4, "qlen": 4, "nblocks": 4},)}


@pytest.fixture
def one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "CASES", ONE)
    monkeypatch.setattr("k3lab.analysis.charts.png", lambda figure: b"")


@pytest.mark.usefixtures("one_case")
def test_it_runs_every_stage_and_writes_what_an_owner_sends_back(tmp_path: Path):
    steps: list[str] = []
    made = selftest.self_test("sim", ["k1"], progress=steps.append)
    stages = [stage.name for stage in launches.get("k1").stages]
    assert [row.what for row in made.rows] == ["whole", *stages] and made.passed and not made.stopped
    assert len(steps) == selftest.steps(["k1"], "sim") == 9
    assert made.verdict == "All 9 comparisons are equal to the twin, bit for bit."
    page = made.save(tmp_path / "out")
    text = page.read_text()
    assert "Self-test on <code>sim</code>" in text and 'href="k1-0/report.html"' in text and made.verdict in text
    assert (page.parent / "k1-0" / "report.json").exists()
    facts = json.loads((page.parent / "selftest.json").read_text())
    assert facts["passed"] and len(facts["rows"]) == 9 and facts["versions"]["flydsl"]
    assert facts["rows"][0]["seconds"] > 0 and "simulator on cpu" in facts["device"]


@pytest.mark.usefixtures("one_case")
def test_what_differs_and_what_stops_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def check(case: Any, twin: Any, stages: tuple[str, ...], backend: str) -> tuple[StageCheck, None]:
        return StageCheck(stages, {}, stopped="" if stages != ("gemv",) else "a race was found."), None

    def stopped(*_: Any, **__: Any) -> None:
        raise InternalFault("deadlock: no wave can go on.")

    real = selftest.run
    monkeypatch.setattr(selftest, "check_stages", check)
    monkeypatch.setattr(selftest, "run", lambda *a, **k: stopped() if "sim" in a else real(*a, **k))
    made = selftest.self_test("sim", ["k1"])
    assert made.stopped and not made.passed and not made.reports
    assert made.rows[0].outcome == "stopped: deadlock: no wave can go on"
    assert made.verdict == "2 of 9 comparisons failed: k1 whole, k1 gemv."
    assert "2 of 9 comparisons failed" in made.save(tmp_path).read_text()


def test_cases_cover_every_launch_and_fit_the_backend():
    assert set(selftest.CASES) == set(launches.LAUNCHES)
    for name, case, about in selftest.cases(list(launches.LAUNCHES), "sim"):
        assert case.key.geometry.name == "mini" and units(case) and "tokens=" in about, name
    alone = [case for _, case, _ in selftest.cases(list(launches.LAUNCHES), "gfx950", "mini")]
    assert {case.launch for case in alone} == set(launches.LAUNCHES)
    assert all(case.key.rank_count == 1 for case in alone)


def test_launches_without_a_kernel_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(selftest, "has_kernel", lambda launch: launch.name == "k1")
    assert selftest.chosen([]) == (["k1"], ["m1a", "k2a"])
    with pytest.raises(BackendUnavailable, match="expected a launch with a kernel, got k2a with none"):
        selftest.chosen(["k2a"])


def test_what_cannot_be_tested_is_refused():
    with pytest.raises(BadInput, match="launch: expected one of k1"):
        selftest.chosen(["k9"])
    with pytest.raises(BadInput, match="backend: expected one that runs kernels"):
        selftest.self_test("twin")
