"""A lowered module in a file, and the cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3lab.errors import BadInput
from k3lab.lowering.store import Artefact, cache_dir, cached, digest, load, save


@pytest.fixture
def artefact(lowered) -> Artefact:
    return Artefact(lowered["block_sum"], {"key": {"tokens": 4}})


def test_round_trip(artefact, tmp_path):
    path = save(artefact, tmp_path / "new" / "block_sum.mlir")
    again = load(path)
    assert again == artefact and again.digest == artefact.digest


def test_a_plain_module_loads_too(artefact, tmp_path):
    (tmp_path / "plain.mlir").write_text(artefact.module.text, encoding="utf-8")
    assert load(tmp_path / "plain.mlir") == Artefact(artefact.module)


def test_the_saved_file_is_still_mlir(artefact, tmp_path):
    from dataclasses import replace

    from k3lab.lowering.isa import compile_isa

    text = save(artefact, tmp_path / "ir").read_text(encoding="utf-8")
    assert compile_isa(replace(artefact.module, text=text), in_subprocess=False).resources


def test_a_changed_file_is_refused(artefact, tmp_path):
    path = save(artefact, tmp_path / "ir")
    path.write_text(path.read_text(encoding="utf-8").replace("llvm.fadd", "llvm.fsub"), encoding="utf-8")
    with pytest.raises(BadInput, match="it was changed"):
        load(path)
    path.write_text("// k3lab-ir 1 {oops\n", encoding="utf-8")
    with pytest.raises(BadInput, match="expected a heading that k3lab wrote"):
        load(path)


def test_a_file_that_is_not_there_or_no_text(tmp_path):
    with pytest.raises(BadInput, match="No such file"):
        load(tmp_path / "nothing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="expected a readable text file"):
        load(tmp_path / "binary")
    (tmp_path / "other").write_text("hello\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"other'.*IR line 1"):
        load(tmp_path / "other")


def test_the_cache_folder(monkeypatch):
    monkeypatch.delenv("K3LAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/k3lab")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert cache_dir() == Path.home() / ".cache" / "k3lab"
    monkeypatch.setenv("K3LAB_CACHE", "/chosen")
    assert cache_dir() == Path("/chosen")


def test_what_is_cached_is_made_once_and_an_unusable_cache_is_done_without(monkeypatch, tmp_path):
    made = []

    def make() -> bytes:
        made.append(1)
        return b"bytes"

    assert cached("kind", ["a", "b"], make) == cached("kind", ["a", "b"], make) == b"bytes" and len(made) == 1
    assert cached("kind", ["ab", ""], make) == b"bytes" and len(made) == 2
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("K3LAB_CACHE", str(tmp_path / "file"))
    assert cached("kind", ["a", "b"], make) == b"bytes" and len(made) == 3


def test_parts_are_told_apart():
    assert digest("ab", "c") != digest("a", "bc") and digest("a") == digest("a")
