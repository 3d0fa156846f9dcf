from __future__ import annotations

import pytest

import k3lab
from k3lab.analysis.walk import Walk


@pytest.fixture(scope="session")
def walk() -> Walk:
    pytest.importorskip("flydsl", reason="needs flydsl to lower the kernels")
    return Walk(k3lab.make_case("k1", geometry="mini", tokens=4, qlen=2, nblocks=1, seed=3))
