"""Cases and twins that tests of backends share, each made once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

import k3lab
from k3lab.analysis.compare import run_difference
from k3lab.kernels import lowered
from k3lab.lowering import store

K1 = {"tokens": 4, "qlen": 4, "nblocks": 4}


@cache
def _made(launch: str, options: tuple[tuple[str, Any], ...]) -> tuple[k3lab.Case, k3lab.Run]:
    case = k3lab.make_case(launch, geometry="mini", **dict(options))
    return case, k3lab.run(launch, case)


class Bench:
    """Makes mini cases and their kernel-order twins."""

    def case(self, launch: str = "k1", **options: Any) -> k3lab.Case:
        return self.made(launch, options)[0]

    def twin(self, launch: str = "k1", **options: Any) -> k3lab.Run:
        return self.made(launch, options)[1]

    def made(self, launch: str, options: Mapping[str, Any]) -> tuple[k3lab.Case, k3lab.Run]:
        given = {**(K1 if launch == "k1" else {}), **options}
        return _made(launch, tuple(sorted(given.items())))

    def differing(self, run: k3lab.Run, reference: k3lab.Run) -> dict[str, int]:
        """Elements that differ, by tensor of `run` that has any."""
        found = {name: run_difference(run, reference, name).differ for name in run.values}
        return {name: differ for name, differ in found.items() if differ}


@pytest.fixture(scope="session")
def bench() -> Bench:
    return Bench()


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that a test alters are lowered anew, and not kept for others."""
    monkeypatch.setattr(lowered, "_parsed", {})
    monkeypatch.setattr(store, "cached", lambda kind, parts, make: make())
