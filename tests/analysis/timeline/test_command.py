"""`k3lab timeline` and the timeline section of `k3lab report`, at mini size."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from k3lab.analysis.timeline import page
from k3lab.analysis.timeline.roofline import DEVICES
from k3lab.cli.timeline import CEILINGS
from tests.analysis.test_html import Page
from tests.test_cli import call, fine

MINI = ("--geometry", "mini", "--tokens", "2", "--nblocks", "1")


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files without the seconds that drawing takes."""
    monkeypatch.setattr(page, "png", lambda figure: b"\x89PNG")


def test_it_writes_the_page_and_compares_with_an_older_one(tmp_path):
    said = fine("timeline", "k2a", *MINI, "--ranks", "2", "--out", tmp_path)
    assert "K2a (attn_post), 2 ranks, S = 2, NB = 1, geometry mini: modelled, not measured" in said
    assert "critical path" in said and str(tmp_path / "k2a" / "timeline.html") in said
    held = json.loads((tmp_path / "k2a" / "timeline.json").read_text())
    assert len(held["stamps"]) == 2 and held["clock"]["kind"] == "modelled"

    older = tmp_path / "older.json"
    held["stamps"][0][0][-1] += 10**9
    older.write_text(json.dumps(held))
    again = fine("timeline", "k2a", *MINI, "--ranks", "2", "--out", tmp_path / "again", "--against", older)
    changed = {line.partition(": ")[2].rpartition(": ")[0] for line in again.splitlines() if "changed:" in line}
    assert {"launch, end", "mix: mix, longest"} <= changed
    assert changed <= {"launch, end", "mix: mix, longest", "mix: mix, median"}  # the model has no noise
    text = Page((tmp_path / "again" / "k2a" / "timeline.html").read_text()).text
    assert "every stage's unique bytes of weights, state and rows equal it, to the byte" in text
    assert "Changes since the older timeline" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    (
        (("timeline", "k1", "--backend", "twin"), "--backend: expected one of"),
        (("timeline", "nosuch"), "launch: expected one of"),
        (("timeline", "k1", "--against", "nosuch.json"), "none of that name"),
        (("timeline", "k1", "--ceilings", "abacus"), "--ceilings: expected one of mi355x, h200"),
        (("report", "k1", "--timeline"), "--timeline: expected --backend sim"),
    ),
)
def test_what_makes_no_sense_is_bad_input(arguments, said):
    result = call(*arguments, "--geometry", "mini") if arguments[1] != "nosuch" else call(*arguments)
    assert result.exit_code == 2 and said in result.stderr


def test_an_older_timeline_of_another_launch_is_refused_before_anything_runs(tmp_path):
    fine("timeline", "k2a", *MINI, "--ranks", "2", "--out", tmp_path)
    result = call("timeline", "k1", *MINI[:2], "--against", tmp_path / "k2a" / "timeline.json")
    assert result.exit_code == 2 and "expected one of k1, got one of k2a" in result.stderr


@pytest.mark.slow
def test_a_report_has_a_timeline_section(tmp_path):
    how = ("--backend", "sim", "--timeline", "--no-budget", "--no-spread", "--out", tmp_path)
    fine("report", "k1", *MINI, "--qlen", "2", *how)
    text = Page((tmp_path / "k1" / "report.html").read_text()).text
    assert "Where the time goes" in text and "modelled clock" in text
    assert (tmp_path / "k1" / "timeline.html").is_file() and (tmp_path / "k1" / "trace.json").is_file()


def test_ceilings_are_those_that_there_are():
    assert set(CEILINGS) == set(DEVICES)
