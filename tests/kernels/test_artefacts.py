"""Modules lowered on one machine and found on another, which has no flydsl."""

from __future__ import annotations

import pytest

from k3lab.errors import BackendUnavailable, BadInput
from k3lab.kernels import lowered as kernels
from tests.kernels.harness import mini_case


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder of artefacts with one build in it, on a machine with an empty cache and no flydsl."""
    case = mini_case("k1", tokens=1, qlen=1, nblocks=1)
    gate = frozenset({"gate"})
    path = kernels.keep(tmp_path / "kept", case.declaration, case.key, gate)
    text = kernels.lowered(case.declaration, case.key, gate).text

    def missing(*build):
        raise BackendUnavailable("flydsl is not installed here.")

    monkeypatch.setattr(kernels, "_parsed", {})
    monkeypatch.setattr(kernels, "_text", missing)
    monkeypatch.setattr(kernels, "flydsl_version", lambda: "none")
    monkeypatch.setenv("K3LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(kernels.ARTEFACTS, str(tmp_path / "kept"))
    return case, gate, path, text


def test_a_build_that_was_kept_is_found(elsewhere):
    case, gate, _, text = elsewhere
    assert kernels.lowered(case.declaration, case.key, gate).text == text


def test_another_build_is_not(elsewhere):
    case, _, _, _ = elsewhere
    with pytest.raises(BackendUnavailable, match="flydsl is not installed here"):
        kernels.lowered(case.declaration, case.key, frozenset({"mix"}))


def test_one_of_other_sources_is_not_taken(elsewhere, monkeypatch):
    case, gate, _, _ = elsewhere
    monkeypatch.setattr(kernels, "sources", lambda: "others")
    with pytest.raises(BackendUnavailable, match="flydsl is not installed here"):
        kernels.lowered(case.declaration, case.key, gate)


def test_one_that_was_changed_is_refused(elsewhere):
    case, gate, path, _ = elsewhere
    path.write_text(path.read_text().replace("llvm.fadd", "llvm.fsub"))
    with pytest.raises(BadInput, match="it was changed"):
        kernels.lowered(case.declaration, case.key, gate)
