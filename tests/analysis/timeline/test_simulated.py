"""Timelines of the launches' kernels in the simulator, on its modelled clock: times, causes and counted bytes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

import k3lab
from k3lab.analysis.timeline import Timeline, critical_path, run_timeline, timeline_of, wait_matrix
from k3lab.analysis.timeline.formulas import expected_bytes
from k3lab.analysis.timeline.make import with_clock, with_stamps
from k3lab.analysis.timeline.waits import Producer
from k3lab.backends import sim as simulator
from k3lab.errors import BadInput
from k3lab.kernels.lowered import _text, lowered
from k3lab.launches import K1
from k3lab.lowering.isa import cached_isa
from k3lab.lowering.parse import parse
from k3lab.sim.clock.costs import costs_of
from tests.analysis.timeline.test_exports import trace_faults
from tests.kernels.harness import differences, mini_case

CASES = {
    "k1": {"tokens": 6, "qlen": 2, "nblocks": 2},
    "m1a": {"tokens": 3, "nblocks": 2},
    "k2a": {"tokens": 3, "nblocks": 2, "ranks": 2},
}
MORE = {
    "k1-one": ("k1", {"tokens": 1, "qlen": 1, "nblocks": 1, "delta": False}),
    "k1-many": ("k1", {"tokens": 20, "qlen": 4, "nblocks": 8, "write_idx": 8}),
    "k1-none-null": ("k1", {"tokens": 4, "qlen": 4, "nblocks": 1, "null": "none"}),
    "m1a-ranks": ("m1a", {"tokens": 2, "nblocks": 1, "ranks": 2, "q_heads": 6}),
    "m1a-bf16": ("m1a", {"tokens": 2, "nblocks": 1, "qbf16": True}),
    "k2a-reset": ("k2a", {"tokens": 3, "nblocks": 1, "ranks": 2, "reset": True}),
    "k2a-two": ("k2a", {"tokens": 3, "nblocks": 1, "ranks": 2, "shots": "two"}),
}


@pytest.fixture(scope="module")
def made() -> dict[str, Timeline]:
    return {name: run_timeline(name, mini_case(name, **options)) for name, options in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_every_path_adds_up_and_every_trace_keeps_to_the_format(made, name):
    timeline = made[name]
    path = critical_path(timeline)
    assert path[0].start == timeline.begin and path[-1].end == timeline.end
    assert all(a.end == b.start and a.length >= 0 for a, b in pairwise(path))
    assert sum(part.length for part in path) == pytest.approx(timeline.end - timeline.begin, rel=1e-12)
    assert trace_faults(k3lab.analysis.timeline.exports.chrome_trace(timeline)) == []
    assert timeline.clock.kind == "modelled" and timeline.ranks == CASES[name].get("ranks", 1)


@pytest.mark.parametrize("name", CASES)
def test_unique_bytes_are_the_formulas_to_the_byte(made, name):
    assert_bytes(made[name], mini_case(name, **CASES[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_unique_bytes_are_the_formulas_in_other_builds(name):
    launch, options = MORE[name]
    case = mini_case(launch, **options)
    assert_bytes(run_timeline(launch, case), case)


def assert_bytes(timeline, case):
    """What is counted of weights, states and rows is the formula, on every rank; clamped lanes ask more than once."""
    assert timeline.traffic.misfits == []
    for rank, tensors in enumerate(case.ranks):
        mine = [row for row in timeline.traffic.moved if row.rank == rank and row.formula is not None]
        wanted = expected_bytes(case.declaration, case.key, tensors)
        assert {(row.stage, row.buffer, row.what): row.unique for row in mine} == wanted
        assert all(row.issued >= row.unique for row in mine)
    weights = [row for row in timeline.traffic.moved if row.buffer.startswith("w_") and row.what == "load"]
    assert weights and sum(row.issued for row in weights) > sum(row.unique for row in weights) > 0


def test_a_formula_that_is_off_by_a_byte_is_found(made):
    traffic = made["k1"].traffic
    row = next(row for row in traffic.moved if row.buffer == "rstate" and row.what == "load")
    wrong = replace(traffic, moved=(replace(row, formula=row.formula + 1),))
    assert wrong.misfits == list(wrong.moved) and not replace(traffic, moved=(row,)).misfits


def test_products_count_at_least_their_operations(made):
    by_stage = {row.stage: row for row in made["k1"].traffic.multiplied}
    assert set(by_stage) == {"gemv", "gates"}
    assert all(row.issued >= row.formula > 0 for row in by_stage.values())
    m1a = {row.stage: row for row in made["m1a"].traffic.multiplied}
    assert m1a["proj+qb"].issued >= m1a["proj"].formula + m1a["qb"].formula
    (o,) = {row.stage for row in made["k2a"].traffic.multiplied}
    assert o == "o"


def test_a_planted_slow_producer_is_named_by_the_matrix_and_the_path(made, monkeypatch):
    """CTA 5 sleeps before its slice, by modelled time as long as the table says: all that grows is its doing."""
    from k3lab.kernels import seam
    from tests.analysis.timeline import slow_kernel

    case = with_stamps(mini_case("k1", **CASES["k1"]))
    monkeypatch.setattr(seam.slices, "run", slow_kernel.run)
    stages = frozenset(stage.name for stage in K1.stages)
    module = parse(_text(K1, case.key, stages))
    monkeypatch.setattr(simulator, "lowered", lambda *args: module)
    run = k3lab.run("k1", case, backend="sim", sim=with_clock(None))
    slow = timeline_of(run)

    costs = costs_of("mi355x")
    slept = slow_kernel.NAPS * slow_kernel.UNITS * costs.sleep_cycles * costs.cycle_ns / 1e3
    assert slow.us(slow.end) - made["k1"].us(made["k1"].end) == pytest.approx(slept, rel=0.05)
    longest = max(critical_path(slow), key=lambda part: part.length)
    assert (longest.kind, longest.cta, longest.stage) == ("work", slow_kernel.SLOW, "slice")
    assert slow.clock.us(longest.length) > slept
    gate = next(row for row in wait_matrix(slow) if (row.stage, row.region) == ("gate", "PART"))
    assert gate.producer == Producer(0, slow_kernel.SLOW) and gate.share > 0.9
    assert gate.longest == pytest.approx(slept, rel=0.2)
    assert not any(part.cta == slow_kernel.SLOW and part.stage == "slice" for part in critical_path(made["k1"]))


@pytest.mark.parametrize("name", CASES)
def test_stamps_change_no_bit_of_any_output(name):
    case = mini_case(name, **CASES[name])
    without = k3lab.run(name, case, backend="sim")
    stamped = k3lab.run(name, with_stamps(case), backend="sim")
    assert without.stamps is None and stamped.stamps is not None
    for rank, values in enumerate(without.ranks):
        assert set(values) == set(stamped.ranks[rank]) and differences(values, stamped.ranks[rank]) == []


@pytest.mark.parametrize("name", CASES)
def test_without_stamps_the_assembly_reads_no_clock(name):
    case = mini_case(name, **CASES[name])
    off, on = (lowered(case.declaration, key) for key in (case.key, with_stamps(case).key))
    assert "memrealtime" not in off.text and "memrealtime" in on.text
    assert "s_memrealtime" not in cached_isa(off).text and "s_memrealtime" in cached_isa(on).text


def test_a_run_without_stamps_or_clock_has_no_timeline():
    case = mini_case("k1", **CASES["k1"])
    with pytest.raises(BadInput, match="timeline: expected a run with stamps"):
        timeline_of(k3lab.run("k1", case))
    stamped = k3lab.run("k1", with_stamps(case), backend="sim")
    with pytest.raises(BadInput, match="a simulation with the modelled clock"):
        timeline_of(stamped)
    assert isinstance(stamped.stamps, torch.Tensor)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("name", ("k1", "m1a", "k2a"))
def test_full_size_bytes_are_the_formulas(name):
    case = k3lab.make_case(name, tokens=4, nblocks=4, **({"qlen": 4} if name == "k1" else {}))
    timeline = run_timeline(name, case)
    assert_bytes(timeline, case)
    assert sum(part.length for part in critical_path(timeline)) == pytest.approx(timeline.end - timeline.begin)
