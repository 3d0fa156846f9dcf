from __future__ import annotations

from importlib import import_module

import pytest
import torch
from click.testing import CliRunner

from k3lab.bench import make, subjects, tune
from k3lab.bench.result import Result, Row, load, to_json
from k3lab.cli import cli
from k3lab.launches import LAUNCHES
from tests.bench.fakes import FakeClock

command = import_module("k3lab.cli.bench")  # the package has the command itself under that name


def call(*args):
    return CliRunner().invoke(cli, ["bench", *map(str, args)], prog_name="k3lab")


def refused(code, *args):
    done = call(*args)
    assert done.exit_code == code, done.output
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("k3lab: ") and sentence.endswith(".")
    return sentence


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_one_sentence_and_nothing_is_written(tmp_path):
    assert "cuda" in refused(3, "k1", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("k3",), "expected one of k1, m1a, k2a or all, got 'k3'"),
        (("k1", "--tokens", "1,x"), "--tokens"),
        (("k1", "--tokens", ","), "--tokens"),
        (("k1", "--without", "cats"), "--without"),
        (("k1", "--compile-modes", "default,reduce-overhead"), "--compile-modes"),
        (("k1", "--repeats", "0"), "repeats"),
        (("k1", "--set", "nothing=1"), "field of a key"),
        (("k1", "--set", "tokens=1"), "--set"),
        (("k1", "--geometry", "huge"), "geometry"),
        (("k2a", "--ranks", "3"), "ranks"),
        (("k2a", "--tokens", "1", "--blocks", "20"), "blocks"),
    ],
)
def test_bad_input_ends_in_a_sentence(args, said):
    assert said in refused(2, *args)


def test_options_are_what_there_is():
    assert tuple(LAUNCHES) == command.LAUNCHES
    kinds = {kind for kind in command.KINDS if len(subjects.subjects("k1", (kind,))) < len(subjects.subjects("k1"))}
    assert kinds == set(command.KINDS)
    assert subjects.COMPILE_MODES == command.MODES and str(subjects.REPEATS) in call("-h").output
    assert ",".join(map(str, make.TOKENS)) in call("-h").output and str(tune.UNITS) in call("-h").output


@pytest.fixture
def told(monkeypatch):
    """A GPU that is not there: the command with a clock that says what it is told."""
    monkeypatch.setattr("k3lab.bench.clock.DeviceClock", lambda index: FakeClock())
    monkeypatch.setattr("k3lab.bench.sets.LEAST_SETS", 1)
    monkeypatch.setattr("k3lab.bench.sets.LEAST_LAUNCHES", 1)
    monkeypatch.setattr("k3lab.bench.sets.L2_TIMES", 0)


def some(fine):
    class Ours(subjects.Kernel):
        def row(self, job):
            return Row(self.name, self.about, "graph", (1e-6,), 1, snr={"x_out": 9.0}, fine=fine)

    return lambda *args: [Ours(), subjects.Torch("graph")]


@pytest.mark.parametrize(("fine", "code"), [(True, 0), (False, 1)])
def test_it_writes_three_files_and_fails_where_our_kernel_is_wrong(told, monkeypatch, tmp_path, fine, code):
    monkeypatch.setattr(subjects, "subjects", some(fine))
    monkeypatch.setattr(make, "subjects", some(fine))
    done = call("k2a", "--geometry", "mini", "--tokens", 1, "--nblocks", 1, "--repeats", 1, "--out", tmp_path)
    assert done.exit_code == code, done.output
    assert {path.name for path in tmp_path.iterdir()} == {"bench.json", "bench.md", "bench.png"}
    assert "attn_post, S = 1" in done.stdout and "nothing was measured" in done.stdout
    assert ("further from the oracle" in done.stdout) == (not fine)


@pytest.fixture
def stopped(told, monkeypatch):
    """Runs of the command that are stopped once so many tables are measured."""

    def run(tables, tokens, *args):
        left = iter(range(tables))

        class Counted(subjects.Torch):
            def row(self, job):
                if next(left, None) is None:
                    raise KeyboardInterrupt
                return Row("torch, graph", "", "graph", (1e-6,), 1)

        monkeypatch.setattr(make, "subjects", lambda *args: [Counted("graph")])
        return call("k2a", "--geometry", "mini", "--tokens", tokens, "--nblocks", 1, "--repeats", 1, *args)

    return run


def tokens_in(path):
    return [table.tokens for table in load(path).tables]


def test_a_run_that_is_stopped_keeps_what_it_measured_and_the_run_before(stopped, tmp_path):
    whole, part = tmp_path / "bench.json", tmp_path / "bench.partial.json"
    assert stopped(2, "1,2", "--out", tmp_path).exit_code == 0
    for tokens, left in (("3,4", [3]), ("5,6", [5])):  # what it adds to is not asked for
        assert stopped(1, tokens, "--out", tmp_path).exit_code == 130
        assert tokens_in(whole) == [1, 2] and tokens_in(part) == left
    assert stopped(1, "6,7", "--out", tmp_path, "--keep").exit_code == 130
    assert tokens_in(whole) == [1, 2] and tokens_in(part) == [1, 2, 5, 6]
    assert stopped(1, "2", "--out", tmp_path, "--keep").exit_code == 0
    assert tokens_in(whole) == [1, 2, 5, 6] and not part.exists()


@pytest.mark.parametrize("name", ["bench.json", "bench.partial.json"])
def test_tables_of_another_device_are_not_kept_and_nothing_is_measured(told, monkeypatch, tmp_path, name):
    there = Result("then", {**FakeClock().describe(), "name": "another"}, 1e9, ())
    (tmp_path / name).write_text(to_json(there))
    monkeypatch.setattr(make, "subjects", None)
    said = refused(2, "k2a", "--geometry", "mini", "--tokens", 1, "--nblocks", 1, "--out", tmp_path, "--keep")
    assert name in said and "'another'" in said


def test_builds_are_lowered_without_a_gpu(tmp_path):
    pytest.importorskip("flydsl", reason="needs flydsl to lower")
    done = call("all", "--geometry", "mini", "--tokens", "1,2", "--nblocks", 1, "--lower", tmp_path)
    assert done.exit_code == 0 and done.stdout.startswith("6 builds lowered"), done.output
    assert len(list(tmp_path.glob("*.mlir"))) == 6
