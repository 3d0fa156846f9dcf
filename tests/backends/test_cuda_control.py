"""What `cuda_sanitize` records of a tool's run, and what the control kernels' results are held against."""

from __future__ import annotations

import json
import subprocess
import time

import pytest
import torch
from click.testing import CliRunner

from benchmarks import cuda_control, cuda_sanitize

CLEAN = "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
EQUAL = '{"kind": "a", "equal": true}'


@pytest.fixture
def says(monkeypatch):
    """Makes the sanitizer print what is given; returns the commands run."""

    def make(*lines):
        commands = []

        def run(command, **_):
            commands.append(command)
            return subprocess.CompletedProcess(command, 0, "\n".join(lines), "")

        monkeypatch.setattr(subprocess, "run", run)
        return commands

    return make


def sanitized(tmp_path, tool=cuda_sanitize.CONTROL, name=cuda_control.ALONE):
    return cuda_sanitize.sanitized(tmp_path, tool, 7, name)


@pytest.mark.parametrize(
    ("summary", "clean"),
    [
        (CLEAN, True),
        ("========= ERROR SUMMARY: 0 errors", True),
        ("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", False),
        ("========= RACECHECK SUMMARY: 1 hazards displayed (0 errors, 1 warnings)", False),
        ("========= RACECHECK SUMMARY: 20 hazards displayed (10 errors, 10 warnings)", False),
        ("========= ERROR SUMMARY: 10 errors", False),
    ],
)
def test_only_a_summary_of_nothing_is_clean(says, tmp_path, summary, clean):
    says("========= COMPUTE-SANITIZER", EQUAL, summary)
    made = sanitized(tmp_path)
    assert (made["clean"], made["said"], made["equal"]) == (clean, [summary.removeprefix("========= ")], True)
    assert ("found" in made) is not clean


@pytest.mark.parametrize("lines", [(EQUAL.replace("true", "false"), CLEAN), (CLEAN,), (EQUAL,)])
def test_wrong_or_missing_results_and_a_missing_summary_are_not_clean(says, tmp_path, lines):
    says(*lines)
    assert not sanitized(tmp_path)["clean"]


def test_a_run_that_does_not_end_is_recorded(monkeypatch, tmp_path):
    def run(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    assert sanitized(tmp_path) == {"clean": False, "said": "not done after 7 s"}


def test_racecheck_runs_over_items_as_they_are_with_barriers_twice_and_over_the_control(says, tmp_path):
    commands = says(EQUAL, CLEAN)
    for tool, name in [("racecheck", "item"), ("racecheck, barriers twice", "item"), (cuda_sanitize.CONTROL, "kind")]:
        sanitized(tmp_path, tool, name)
    assert all(command[:3] == ["compute-sanitizer", "--tool", "racecheck"] for command in commands)
    assert ["--racecheck" in command for command in commands] == [False, True, False]
    assert [command[5] for command in commands] == ["benchmarks.cuda_check"] * 2 + ["benchmarks.cuda_control"]
    assert commands[2][-1] == "kind"


def test_the_file_keeps_its_order_whatever_ends_first(monkeypatch, tmp_path):
    def run(command, **_):
        if command[-1] == next(iter(cuda_control.KINDS)):
            time.sleep(0.2)
        return subprocess.CompletedProcess(command, 0, f"{EQUAL}\n{CLEAN}", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(cuda_sanitize, "load", lambda folder: [])
    done = CliRunner().invoke(cuda_sanitize.main, [str(tmp_path), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    made = json.loads((tmp_path / "sanitizer.json").read_text())
    assert list(made[cuda_sanitize.CONTROL]) == list(cuda_control.KINDS)


def stored():
    return torch.arange(4 * cuda_control.THREADS, dtype=torch.int32).view(4, -1).flip(1)


def test_one_value_of_another_round_is_wrong():
    out = stored().clone()
    assert cuda_control.right(out.flatten())
    out[2, 5] = out[1, 5]
    assert not cuda_control.right(out.flatten())


@pytest.mark.parametrize("equal", [True, False])
def test_the_command_says_whether_the_results_are_right(monkeypatch, equal):
    out = stored() if equal else stored().flip(1)
    monkeypatch.setattr(cuda_control, "launched", lambda *_: out.flatten())
    done = CliRunner().invoke(cuda_control.main, [cuda_control.ALONE])
    assert (done.exit_code, json.loads(done.output)["equal"]) == (0 if equal else 1, equal)


def test_kinds_differ_in_who_meets_and_how_often_all_pass_the_barrier():
    texts = {kind: cuda_control.text(kind) for kind in cuda_control.KINDS}
    assert len(set(texts.values())) == len(texts) == 4
    alone, twice = cuda_control.ALONE, cuda_control.ALONE + cuda_control.TWICE
    assert [texts[kind].count("__syncthreads();") for kind in (alone, twice)] == [2, 4]
    assert texts[twice].replace("__syncthreads(); __syncthreads();", "__syncthreads();") == texts[alone]
