"""A report of a kernel in the simulator holds kernel, twin and oracle, in every mode of every launch."""

from __future__ import annotations

import pytest

import k3lab
from k3lab.launches import get

pytest.importorskip("flydsl", reason="needs flydsl to lower the kernels")

MODES = {
    "k1": ("k1", {"tokens": 4, "qlen": 2}),
    "k1 written and gated locally": ("k1", {"tokens": 2, "qlen": 1, "write_idx": 2, "gate_local": True}),
    "m1a": ("m1a", {"tokens": 3}),
    "m1a with bf16 queries": ("m1a", {"tokens": 3, "qbf16": True}),
    "m1a on two ranks": ("m1a", {"tokens": 3, "ranks": 2}),
    "m1a on two ranks with pads": ("m1a", {"tokens": 3, "ranks": 2, "q_heads": 5}),
    "k2a": ("k2a", {"tokens": 3, "ranks": 2}),
    "k2a in two shots": ("k2a", {"tokens": 3, "ranks": 2, "shots": "two", "reset": True}),
    "k2a with a sentinel": ("k2a", {"tokens": 3, "ranks": 2, "sentinel": True}),
}

QUICK = ("m1a", "m1a with bf16 queries", "m1a on two ranks", "k2a with a sentinel")


@pytest.mark.parametrize(
    "mode", [pytest.param(m, marks=[] if m in QUICK else [pytest.mark.slow], id=m.replace(" ", "_")) for m in MODES]
)
def test_a_report_in_every_mode(mode, tmp_path):
    name, options = MODES[mode]
    case = k3lab.make_case(name, geometry="mini", nblocks=2, **options)
    report = k3lab.make_report(name, case, backend="sim", budget=False, spread=False)
    assert report.passed and report.ranks == options.get("ranks", None if name == "k1" else 1)
    assert [point.name for point in report.points] == list(get(name).points_for(case.key))
    assert all(row.total is not None and row.difference.differ == 0 for row in report.tensors)
    page = report.save(tmp_path)
    assert f"All {len(report.tensors)} tensors are equal to the twin" in page.read_text(encoding="utf-8")
