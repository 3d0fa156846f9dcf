from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from k3lab import __version__, launches
from k3lab.analysis.bisect import Bisection, Element, StageCheck
from k3lab.analysis.selftest import Row, SelfTest
from k3lab.backends import BACKENDS
from k3lab.cases.make import DISTRIBUTIONS
from k3lab.cases.specials import SETS
from k3lab.cli import cli, options
from k3lab.cli.progress import _lines
from k3lab.errors import BackendUnavailable, InternalFault
from k3lab.hardware.mfma import MODELS

needs_flydsl = pytest.mark.skipif(find_spec("flydsl") is None, reason="needs flydsl to lower its kernels")

MINI = ("--geometry", "mini")
QUICK = ("--no-budget", "--no-spread")


def call(*args: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args], prog_name="k3lab")


def fine(*args: str | Path) -> str:
    result = call(*args)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(code: int, *args: str | Path) -> str:
    """The one sentence a failing command ends with."""
    result = call(*args)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    sentence = result.stderr.splitlines()[-1]
    assert sentence.startswith("k3lab: ") and sentence.endswith("."), result.stderr
    return sentence


def process(*args: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "k3lab.cli", *map(str, args)]
    root = str(Path(__file__).parents[1])
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": root, **environment}
    )


@pytest.fixture
def case_file(tmp_path: Path) -> Path:
    path = tmp_path / "case.safetensors"
    fine("case", "make", "k1", "-o", path, *MINI)
    return path


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without the seconds that drawing takes."""
    monkeypatch.setattr("k3lab.analysis.charts.png", lambda figure: b"")


# What works.


def test_version_and_help():
    assert fine("--version") == f"k3lab {__version__}\n"
    text = fine("--help")
    for name in ("doctor", "run", "report", "bisect", "selftest", "budget", "orders", "case", "lab"):
        assert re.search(rf"^  {name}\b", text, re.M)
        assert "Usage:" in fine(name, "-h")


def test_help_is_quick_and_loads_nothing_heavy():
    code = "import sys, k3lab.cli; sys.exit(bool({'torch', 'numpy', 'rich', 'matplotlib'} & set(sys.modules)))"
    root = str(Path(__file__).parents[1])
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": root}, check=False)
    assert done.returncode == 0
    assert time.perf_counter() - start < 5  # 0.1 s on a quiet machine; a loaded one gets time


def test_doctor_says_what_works_and_what_does_not():
    facts = json.loads(fine("doctor", "--json"))
    backends = {backend["name"]: backend for backend in facts["backends"]}
    assert list(backends) == ["twin", "oracle", "sim", "gfx950", "cuda"]
    assert backends["twin"]["works"] and backends["oracle"]["works"]
    assert facts["launches"] == list(launches.LAUNCHES)
    assert set(facts["packages"]) >= {"torch", "numpy", "flydsl", "aiter"}
    text = fine("doctor")
    assert all(name in text for name in (*backends, "flydsl", "aiter", "GPU"))
    named = [row["name"] for row in (*facts["backends"], *facts["lowering"])]
    assert len(set(named)) == len(named) and not any(name.startswith("sim") and name != "sim" for name in named)


def _rows() -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in json.loads(fine("doctor", "--json"))["backends"]}


def test_doctor_passes_over_files_that_others_are_just_renaming(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "kept").write_bytes(b"12345")
    (tmp_path / "going.tmp").write_bytes(b"123")
    size = os.path.getsize

    def gone(path: str) -> int:
        (tmp_path / "going.tmp").unlink(missing_ok=True)
        return size(path)

    monkeypatch.setattr("os.path.getsize", gone)
    monkeypatch.setenv("K3LAB_CACHE", str(tmp_path))
    (folder,) = json.loads(fine("doctor", "--json"))["caches"]
    assert (folder["files"], folder["bytes"]) == (1, 5)


def test_doctor_says_whether_kernels_can_be_simulated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("k3lab.lowering.codegen.version", lambda: "0.5.0")
    monkeypatch.setattr("k3lab.kernels.lowered.has_kernel", lambda launch: launch.name == "k1")
    row = _rows()["sim"]
    assert row["works"] and "ready, lowered by FlyDSL 0.5.0; kernels of k1, none of m1a, k2a yet" in str(row["why"])
    monkeypatch.setattr("k3lab.kernels.lowered.has_kernel", lambda launch: False)
    assert not _rows()["sim"]["works"]
    monkeypatch.setattr("k3lab.lowering.codegen.version", _raising(BackendUnavailable("flydsl is not installed here.")))
    assert _rows()["sim"] == {"name": "sim", "works": False, "why": "flydsl is not installed here."}


def test_doctor_says_why_there_is_no_gfx950(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.version.hip", None)
    row = _rows()["gfx950"]
    assert not row["works"] and "expected a ROCm build of torch" in str(row["why"])


def test_doctor_says_why_there_is_no_cuda(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.version.cuda", None)
    row = _rows()["cuda"]
    assert not row["works"] and "expected a CUDA build of torch" in str(row["why"])


def test_doctor_imports_neither_flydsl_nor_aiter(tmp_path: Path):
    for name in ("flydsl", "aiter"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')\n")
    root = str(Path(__file__).parents[1])
    done = process("doctor", "--json", PYTHONPATH=os.pathsep.join([str(tmp_path), root]))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["packages"]["flydsl"]


def test_run_lists_every_exposed_tensor():
    text = fine("run", "k1", *MINI)
    for name in set(launches.get("k1").exposed) - {"blocks"}:  # only written with --write-idx
        assert name in text
    assert "measured on cpu" in text and "kernel order" in text


def test_run_writes_what_it_exposes(tmp_path: Path):
    import safetensors.torch

    out = tmp_path / "new" / "run.safetensors"
    fine("run", "k1", *MINI, "--backend", "oracle", "--out", out)
    assert set(safetensors.torch.load_file(out)) >= {"core_out", "x", "PART"}
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_case_make_info_and_run(case_file: Path):
    facts = json.loads(fine("case", "info", case_file, "--json"))
    assert facts["launch"] == "k1" and facts["key"]["geometry"]["name"] == "mini"
    assert facts["tensors"]["prefix"] == {"shape": [4, 2048], "dtype": "bfloat16"}
    text = fine("case", "info", case_file)
    assert facts["hash"][:12] in text and "num_acc" in text
    assert facts["hash"][:12] in fine("run", "k1", "--case", case_file)


def test_case_options_reach_the_case(tmp_path: Path):
    path = tmp_path / "case.safetensors"
    options = "--tokens 6 --qlen 2 --nblocks 3 --values normal --seed 7 --no-delta --write-idx 5 --null none --slots 20"
    fine("case", "make", "k1", "-o", path, *MINI, *options.split(), "--set", "eps=1e-6", "--set", "gate-local=true")
    facts = json.loads(fine("case", "info", path, "--json"))
    key = facts["key"]
    assert (key["tokens"], key["qlen"], key["nblocks"], key["write_idx"], key["delta"]) == (6, 2, 3, 5, False)
    assert (key["eps"], key["gate_local"]) == (1e-6, True)
    assert (facts["values"], facts["seed"]) == ("normal", 7)
    assert facts["tensors"]["rstate"]["shape"][0] == 20 and "delta" not in facts["tensors"]


def test_tp_changes_the_geometry(tmp_path: Path):
    from k3lab.cli.options import take_geometry

    given = {"tp": 4, "blocks": 128, "seed": 1}
    made = take_geometry(given)
    assert (made.heads, made.blocks, given) == (24, 128, {"seed": 1})
    assert "blocks: expected more than the 16 attention CTAs" in refused(2, "run", "k1", *MINI, "--blocks", "16")
    assert "tp 4" in refused(2, "case", "make", "k1", "-o", tmp_path / "c", *MINI, "--tp", "4")


def test_report_writes_three_files_and_prints_the_page(tmp_path: Path, case_file: Path):
    text = fine("report", "k1", "--case", case_file, "--out", tmp_path / "out", *QUICK)
    page = tmp_path / "out" / "k1" / "report.html"
    assert str(page) in text.replace("\n", "")
    assert "All 8 roundings are correctly rounded." in text and "core_out" in text
    assert {path.name for path in page.parent.iterdir()} == {"report.html", "report.json", "points.csv"}


@pytest.mark.usefixtures("no_charts")
def test_report_against_an_older_one(tmp_path: Path, case_file: Path):
    arguments = ("report", "k1", "--case", case_file, "--out", tmp_path, *QUICK)
    fine(*arguments)
    old = tmp_path / "old.json"
    (tmp_path / "k1" / "report.json").rename(old)
    assert "Nothing changed since the report made" in fine(*arguments, "--against", old)
    assert "Every figure is the same." in (tmp_path / "k1" / "report.html").read_text()


@pytest.mark.usefixtures("no_charts")
def test_report_all_covers_every_launch_and_has_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    text = fine("report", "all", *MINI, "--qlen", "4", "--out", tmp_path, *QUICK, "--open")
    for name in launches.LAUNCHES:
        assert (tmp_path / name / "report.html").exists()
        assert f'href="{name}/report.html"' in (tmp_path / "index.html").read_text()
    if sys.platform.startswith("linux"):
        assert f"open {(tmp_path / 'index.html').as_uri()} in a browser" in text


@pytest.mark.usefixtures("no_charts")
def test_reports_name_the_ranks(tmp_path: Path):
    text = fine("report", "all", *MINI, "--out", tmp_path, *QUICK)
    heads = {line.partition(":")[0] for line in text.splitlines() if " against twin" in line}
    assert heads == {"k1", "m1a (1 rank)", "m1a-ranks8 (8 ranks)", "k2a (8 ranks)"}
    assert "<h1>m1a, 8 ranks " in (tmp_path / "m1a-ranks8" / "report.html").read_text()
    index = (tmp_path / "index.html").read_text()
    assert '<a href="m1a-ranks8/report.html">m1a, 8 ranks</a>' in index


def test_a_variant_that_an_option_contradicts_is_left_out():
    folders = [folder for folder, _, _ in options.report_jobs("all", {"ranks": 2})]
    assert folders == list(launches.LAUNCHES)


def test_choices_are_what_there_is():
    """The command line names them itself, so that --help imports nothing heavy."""
    assert tuple(DISTRIBUTIONS) == options.VALUES
    assert tuple(SETS) == options.SPECIALS
    assert tuple(MODELS) == options.MFMA_MODELS
    assert set(options.BACKENDS) >= set(BACKENDS)
    text = " ".join(fine("run", "--help").split())
    for names in (options.MFMA_MODELS, options.ORDERS, options.BACKENDS):
        assert f"[{'|'.join(names)}]" in text
    assert all(name in text for name in (*options.VALUES, *options.SPECIALS, "--ranks"))


def test_specials_of_one_tensor(tmp_path: Path):
    path = tmp_path / "case.safetensors"
    fine("case", "make", "m1a", "-o", path, *MINI, "--values", "specials:nans:in_nw", "--ranks", "2")
    facts = json.loads(fine("case", "info", path, "--json"))
    assert (facts["values"], facts["ranks"]) == ("specials:nans:in_nw", 2)


SIM = ("k1", *MINI, "--qlen", "4", "--backend", "sim")


@needs_flydsl
def test_run_of_a_kernel(tmp_path: Path):
    import safetensors.torch

    out = tmp_path / "run.safetensors"
    text = fine(
        "run", *SIM, "--dumps", "--schedule", "random", "--sim-seed", "3", "--detectors", "guards", "--out", out
    )
    assert "kernel in the simulator" in text and "s of wall time to simulate" in text and "not a GPU's time" in text
    assert set(safetensors.torch.load_file(out)) >= {"core_out", "vals", "PART"}
    assert "vals" not in fine("run", *SIM)


@needs_flydsl
@pytest.mark.usefixtures("no_charts")
def test_report_of_a_kernel(tmp_path: Path):
    text = fine("report", *SIM, "--out", tmp_path, *QUICK)
    assert "k1: kernel in the simulator, MFMA model fused, cpu against twin, kernel order" in text
    assert "All 18 tensors are equal to the twin's, bit for bit. All 8 roundings are correctly rounded." in text


@needs_flydsl
def test_bisect_ends_in_0_where_all_is_equal():
    text = fine("bisect", "k1", *MINI, "--qlen", "1", "--mfma", "fused")
    assert text.splitlines()[-1] == "k1: 8 stages, each equal to its twin bit for bit."


@pytest.mark.parametrize(("code", "stopped"), [(1, ""), (4, "deadlock: no wave can go on.")])
def test_bisect_ends_in_1_at_a_difference_and_in_4_at_a_fault(monkeypatch: pytest.MonkeyPatch, code: int, stopped: str):
    element = Element("QK", 0, (0, 5), 1.0, 2.0, "0x3f80", "0x4000", "bf16", 128, 1, 12)
    check = StageCheck(("conv",), {"QK": 12}, () if stopped else (element,), stopped)
    found = Bisection("k1", "kernel, stage by stage", "a case", [check])
    monkeypatch.setattr("k3lab.analysis.bisect.bisect", lambda *_: found)
    result = call("bisect", "k1", *MINI)
    assert result.exit_code == code and "k1: stage conv is the first that" in result.stdout
    assert ("QK[0, 5]: kernel 1.0 (0x3f80), twin 2.0 (0x4000), 128 ulp apart in bf16" in result.stdout) == (not stopped)


@pytest.mark.parametrize(("code", "equal", "stopped"), [(0, True, False), (1, False, False), (4, False, True)])
def test_selftest_ends_in_what_it_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: int, equal: bool, stopped: bool
):
    row = Row("k1", "tokens=4", "whole", equal, "what came of it", 1.0, stopped)
    made = SelfTest("sim", "a simulator", "now", {"k3lab": "0"}, [row], {}, ["k2a"])
    monkeypatch.setattr("k3lab.analysis.selftest.self_test", lambda *_: made)
    result = call("selftest", "k1", "--out", tmp_path / "out")
    assert result.exit_code == code, result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"selftest.html", "selftest.json"}
    assert "what came of it" in result.stdout and "no kernel in this version: k2a" in result.stdout


def test_detectors_of_the_simulator_are_what_there_is():
    from k3lab.backends.sim import DETECTORS
    from k3lab.sim.options import Options

    assert {*options.DETECTORS.values(), "strict"} == set(DETECTORS)
    described = {"schedule": "adversarial", "sim_seed": 4, "memory": "relaxed", "detectors": "all", "tokens": 4}
    made = options.simulation("sim", described)
    assert described == {"tokens": 4}
    wanted = Options("adversarial", 4, memory="relaxed", races=True, global_races=True, guards=True, scopes=True)
    assert made == wanted
    assert options.simulation("twin", {"schedule": None, "sim_seed": None}) is None


def test_budget_prints_shares_by_point_and_tensor():
    text = fine("budget", "k1", *MINI)
    for point in launches.get("k1").points:
        assert point in text
    assert "100 %" in text and "nothing rounded" in text
    assert "–: cannot reach the tensor, or explains less than a millionth of its error" in text
    assert next(line for line in text.splitlines() if "hw.rsq" in line).count("–") == 5


@pytest.mark.usefixtures("no_charts")
def test_progress_is_one_line_off_a_terminal_and_on_stderr(tmp_path: Path):
    result = call("report", "k1", *MINI, "--out", tmp_path, *QUICK)
    assert result.stderr == "k1: twin, kernel order (1 of 4)\n"


def test_progress_estimates_what_is_left(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    times = iter([0.0, 0.0, 20.0, 25.0, 200.0])
    monkeypatch.setattr("k3lab.cli.progress.time.monotonic", lambda: next(times))
    show = _lines("k1", 5)
    for what in ("a", "b", "c", "d"):
        show(what)
    assert capsys.readouterr().err.splitlines() == [
        "k1: a (1 of 5)",
        "k1: b (2 of 5, about 80 s left)",
        "k1: d (4 of 5, about 2 min left)",
    ]


@pytest.mark.usefixtures("no_charts")
def test_a_failed_bound_ends_in_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("k3lab.analysis.compare.HALF_ULP", 0.01)
    result = call("report", "k1", *MINI, "--out", tmp_path, *QUICK)
    assert result.exit_code == 1
    assert "not correctly rounded" in result.stdout.splitlines()[1]
    assert (tmp_path / "k1" / "report.html").exists()


def test_lab_without_jupyter(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("k3lab.cli.commands.find_spec", lambda name: None)
    assert "pip install" in refused(3, "lab")


def test_lab_opens_the_notebooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("k3lab.cli.commands.find_spec", lambda name: object())
    called: list[list[str]] = []
    monkeypatch.setattr("k3lab.cli.commands.subprocess.call", lambda command: called.append(command) or 0)
    assert call("lab").exit_code == 0
    assert called == [[sys.executable, "-m", "jupyterlab", str(tmp_path / "notebooks")]]


# What is refused: one sentence, an exit code, nothing left behind.


@pytest.mark.parametrize(
    ("code", "arguments", "says"),
    [
        (2, "run k9", "launch: expected one of"),
        (2, "report k9", "or all, got 'k9'"),
        (2, "budget k9", "launch: expected one of"),
        (2, "run k1 --geometry mini --values foo", "values: expected one of normal"),
        (2, "run k1 --geometry tiny", "geometry: expected 'k3' or 'mini'"),
        (2, "run k1 --geometry mini --tokens 5", "tokens: expected a multiple of qlen 4, got 5"),
        (2, "run k1 --geometry mini --tokens 0", "tokens: expected at least 1, got 0"),
        (2, "run k1 --geometry mini --null some", "null: expected one of"),
        (2, "run k1 --geometry mini --set nonsense=1", "expected one of"),
        (2, "run k1 --geometry mini --set nonsense", "--set: expected NAME=VALUE"),
        (2, "run k1 --geometry mini --set tokens=4.5", "tokens: expected a whole number"),
        (2, "run k1 --tp 3", "tp: expected one of (1, 2, 4, 8), got 3"),
        (2, "run k1 --geometry mini --mfma exact", "--mfma: expected one of fused, sequential, pairwise, cdna3, got"),
        (2, "report k1 --geometry mini --mfma exact", "--mfma: expected one of fused"),
        (2, "run k1 --geometry mini --mfma fused --order torch", "--mfma: expected no MFMA model beside --order torch"),
        (2, "run k1 --geometry mini --mfma cdna3 --backend oracle", "no MFMA model beside --backend oracle"),
        (2, "run k1 --geometry mini --values specials:foo", "values: expected specials[:SET[:TENSOR]]"),
        (2, "run k1 --geometry mini --ranks 2", "k1 option: expected one of"),
        (2, "run m1a --geometry mini --ranks 3", "ranks: expected one of (1, 2, 4, 8), got 3"),
        (2, "run m1a --geometry mini --ranks 2 --set ranks=4", "--set: expected fields that no other option gives"),
        (2, "run k1 --geometry mini --backend hip", "--backend: expected one of twin"),
        (2, "run k1 --geometry mini --order random", "order: expected one of"),
        (2, "run k1 --geometry mini --device nowhere", "device: expected a torch device"),
        (2, "run k1 --case missing.safetensors", "there is no such file"),
        (
            2,
            "run k1 --case x --tokens 4 --set eps=1",
            "expected none beside --case (the file holds them), got eps, tokens",
        ),
        (2, "report all --case x", "--case: expected one launch"),
        (2, "report k1 --against missing.json", "expected a readable JSON file"),
        (2, "case info missing.safetensors", "there is no such file"),
        (2, "run k1 --geometry mini --backend sim --device cuda", "device: expected 'cpu' or none"),
        (2, "run k1 --geometry mini --backend sim --order torch", "order: expected 'kernel' beside backend='sim'"),
        (2, "run k1 --geometry mini --schedule random", "--schedule: expected --backend sim beside it, got --backend"),
        (2, "report k1 --geometry mini --detectors all", "--detectors: expected --backend sim beside it"),
        (
            2,
            "run k1 --geometry mini --backend sim --detectors x",
            "--detectors: expected all, or some of races, global",
        ),
        (2, "run k1 --geometry mini --backend sim --memory none", "--memory: expected one of sequential, relaxed"),
        (2, "run k1 --geometry mini --dumps", "dumps: expected none beside a twin"),
        (2, "bisect k9", "launch: expected one of"),
        (2, "bisect k1 --geometry mini --backend twin", "--backend: expected one of sim, gfx950, cuda, got 'twin'"),
        (2, "selftest k9", "launch: expected one of k1"),
        (3, "run k1 --geometry mini --backend gfx950", "gfx950: expected"),
        (3, "bisect k1 --geometry mini --backend gfx950", "gfx950: expected"),
        (3, "selftest k1 --geometry mini --backend gfx950", "gfx950: expected"),
        (3, "run k1 --geometry mini --backend cuda", "cuda: expected"),
        (3, "selftest k1 --geometry mini --backend cuda", "cuda: expected"),
        (3, "run k1 --geometry mini --device meta", "cpu and cuda devices only"),
    ],
)
def test_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, arguments: str, says: str):
    monkeypatch.chdir(tmp_path)
    assert says in refused(code, *arguments.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["run", "report", "budget"])
def test_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "torch sees no GPU here" in refused(3, command, "k1", *MINI, "--device", "cuda")
    assert not list(tmp_path.iterdir())


def test_damaged_case_files(tmp_path: Path, case_file: Path):
    data = case_file.read_bytes()
    corrupt = data[:-1000] + bytes([data[-1000] ^ 1]) + data[-999:]
    for name, content in {"truncated": data[:-100], "corrupt": corrupt, "empty": b"", "text": b"hello, world"}.items():
        path = tmp_path / name
        path.write_bytes(content)
        for arguments in (("run", "k1", "--case", path), ("case", "info", path)):
            assert f"case file '{path}'" in refused(2, *arguments)


def test_a_case_of_another_launch(case_file: Path):
    others = [name for name in launches.LAUNCHES if name != "k1"]
    for name in others:
        assert f"expected inputs of {name}, got inputs of k1" in refused(2, "run", name, "--case", case_file)


def test_bad_older_reports(tmp_path: Path):
    for name, text in {"text.json": "hello", "list.json": "[]", "version.json": '{"version": 2}'}.items():
        (tmp_path / name).write_text(text)
        sentence = refused(2, "report", "k1", *MINI, "--out", tmp_path / "out", "--against", tmp_path / name)
        assert "expected a" in sentence and name in sentence
    assert not (tmp_path / "out").exists()


def test_an_unwritable_place_is_refused_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("k3lab.cli.options.make_case", lambda *_, **__: pytest.fail("computed"))
    (tmp_path / "file").write_text("")
    under = tmp_path / "file" / "deep"
    assert "Not a directory" in refused(2, "report", "k1", *MINI, "--out", under)
    assert "Not a directory" in refused(2, "run", "k1", *MINI, "--out", under / "run.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.usefixtures("no_charts")
def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    monkeypatch.setattr(Path, "write_bytes", full)
    assert "no space left" in refused(2, "report", "k1", *MINI, "--out", tmp_path / "out", *QUICK)
    assert "no space left" in refused(2, "run", "k1", *MINI, "--out", tmp_path / "out" / "run.safetensors")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch):
    def hungry(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("k3lab.cli.options.make_case", hungry)
    assert "use fewer tokens" in refused(2, "run", "k1", *MINI)


def _raising(error: BaseException):
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_a_bug_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("k3lab.cli.options.make_case", _raising(ZeroDivisionError("a\nb")))
    sentence = refused(4, "run", "k1")
    assert "this is a bug in k3lab (ZeroDivisionError: a b)" in sentence
    assert len(call("run", "k1").stderr.splitlines()) == 1


def test_an_internal_fault_ends_in_4(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("k3lab.cli.options.make_case", _raising(InternalFault("a race was found.")))
    assert refused(4, "run", "k1") == "k3lab: a race was found."


@pytest.mark.parametrize("how", ["option", "environment"])
def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, how: str):
    monkeypatch.setattr("k3lab.cli.options.make_case", _raising(ZeroDivisionError()))
    if how == "environment":
        monkeypatch.setenv("K3LAB_DEBUG", "1")
    result = call(*(["--debug"] if how == "option" else []), "run", "k1")
    assert result.exit_code == 4 and "Traceback" in result.stderr and "ZeroDivisionError" in result.stderr


def test_an_interrupt_ends_in_130(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("k3lab.cli.options.make_case", _raising(KeyboardInterrupt()))
    assert refused(130, "run", "k1") == "k3lab: interrupted."


@pytest.mark.parametrize("arguments", ["run", "run k1 --nonsense", "nonsense", "run k1 --tokens many", "case make k1"])
def test_usage_errors_end_in_2(arguments: str):
    result = call(*arguments.split())
    assert result.exit_code == 2 and "Usage:" in result.stderr and "Traceback" not in result.output


def test_the_real_process_keeps_streams_and_codes_apart(tmp_path: Path):
    done = process("run", "k9")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("k3lab: launch: expected one of")
    assert process("--nonsense").returncode == 2
    done = process("case", "make", "k1", "-o", tmp_path / "c", *MINI)
    assert (done.returncode, done.stderr) == (0, "")
