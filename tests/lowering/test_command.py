"""`k3lab compile`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from k3lab.cli import cli
from k3lab.kernels import rules
from k3lab.lowering import store

HERE = Path(__file__).parent


def call(code: int, *args: str | Path) -> str:
    """What the command prints; a failing one, its sentence."""
    result = CliRunner().invoke(cli, ["compile", *map(str, args)], prog_name="k3lab")
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stderr if code > 1 else result.stdout


@pytest.fixture
def saved(lowered, tmp_path: Path):
    """Writes a test kernel's module to a file."""
    return lambda name: store.save(store.Artefact(lowered[name]), tmp_path / f"{name}.mlir")


def test_a_launcher_by_name(kernels, monkeypatch, tmp_path):
    monkeypatch.chdir(HERE)
    text = call(0, "kernels:block_sum", "--args", "0,0,1000", "--lint", "--emit", "ir", "-o", tmp_path / "ir")
    assert "block_sum" in text and "VGPR" in text and "512" in text and "lint: 0 findings" in text
    artefact = store.load(tmp_path / "ir")
    assert artefact.about["target"] == "kernels:block_sum" and list(artefact.module.kernels) == ["block_sum"]


K1 = ("k1", "--geometry", "mini", "--tokens", "4", "--qlen", "4", "--nblocks", "2")


def test_a_launch(kernels, tmp_path):
    text = call(0, *K1, "--lint", "--emit", "ir", "-o", tmp_path / "k1.mlir")
    assert "kda_pre" in text and "lint: 0 findings" in text
    artefact = store.load(tmp_path / "k1.mlir")
    assert artefact.about["target"] == "k1" and json.loads(artefact.about["key"])["qlen"] == 4
    assert call(0, *K1, "--emit", "isa").count("s_sleep") == 9
    bounded = call(0, *K1, "--set", "bounded=true", "--lint", "--emit", "isa", "-o", tmp_path / "k1.s")
    assert "lint: 0 findings" in bounded and "s_memrealtime" in (tmp_path / "k1.s").read_text(encoding="utf-8")


def test_a_launch_with_findings(kernels, monkeypatch):
    """A build that asks for more than the kernel has."""
    real = rules.rules_for
    monkeypatch.setattr(rules, "rules_for", lambda *args: replace(real(*args), polls=10))
    assert "poll-reloads: kernel kda_pre" in call(1, *K1, "--lint")


def test_a_module_from_a_file(saved, tmp_path):
    path = saved("wait_badly")
    assert "wait_badly" in call(0, "--from-ir", path)
    assert "poll-reloads: kernel wait_badly" in call(1, "--from-ir", path, "--lint")
    assert call(0, "--from-ir", path, "--emit", "isa").lstrip().startswith(".amdgcn_target")
    call(0, "--from-ir", path, "--emit", "isa", "-o", tmp_path / "out.s")
    assert "s_endpgm" in (tmp_path / "out.s").read_text(encoding="utf-8")
    assert call(0, "--from-ir", path, "--emit", "ir").startswith("#loc")


def test_an_aborting_compiler_and_a_missing_linker(saved, monkeypatch, tmp_path):
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    assert "SIGABRT" in call(2, "--from-ir", saved("four_bytes"))
    assert "ld.lld" in call(3, "--from-ir", saved("block_sum"), "--emit", "object", "-o", tmp_path / "x.hsaco")
    assert not (tmp_path / "x.hsaco").exists()


INPUT_OPTIONS = ("--values", "--seed", "--null", "--slots")
"""Of a case; no kernel depends on them."""


def test_only_options_of_the_key_are_offered():
    text = call(0, "--help")
    assert not any(option in text for option in INPUT_OPTIONS)
    assert all(option in text for option in ("--tokens", "--ranks", "--geometry", "--set"))
    for option in INPUT_OPTIONS:
        refused = call(2, "k1", option, "3")
        assert "No such option" in refused and option in refused


@pytest.mark.parametrize(
    ("code", "args", "why"),
    [
        (2, ("k9",), "expected a launch (k1, m1a, k2a) or a FlyDSL launcher as package.module:launcher, got 'k9'"),
        (2, ("k1", "--tokens", "3", "--qlen", "2"), "expected a multiple of qlen 2"),
        (2, ("k1", "--set", "colour=1"), "k1 option: expected one of"),
        (2, ("k1", "--tokens", "4", "--set", "tokens=4"), "--set: expected fields that no other option gives"),
        (2, ("k1", "--args", "1"), "--args: expected none beside k1"),
        (2, ("a:b", "--tokens", "4"), "options of a key: expected a launch as TARGET (k1, m1a, k2a), got tokens"),
        (2, ("a:b", "--table"), "--table: expected a launch (k1, m1a, k2a), got 'a:b'"),
        (2, ("k1", "--table", "--tokens", "4"), "--table: expected no --tokens beside it"),
        (2, ("k1", "--table", "--lint"), "--table: expected neither --emit nor --lint beside it"),
        (2, (), "expected either TARGET or --from-ir FILE"),
        (2, ("a:b", "--from-ir", "x"), "expected either TARGET or --from-ir FILE"),
        (2, ("a:b", "--args", "1,two"), "--args: expected numbers with commas between, got 'two'"),
        (2, ("a:b", "--emit", "object"), "expected -o FILE"),
        (2, ("a:b", "-o", "x"), "expected --emit beside it"),
        (2, ("--from-ir", "nothing.mlir"), "No such file"),
    ],
)
def test_refusals(code, args, why):
    assert why in call(code, *args)
