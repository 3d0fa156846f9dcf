"""Launches in a row on one scratch, and the waits that a bounded build gives up."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import k3lab
from k3lab.backends import Session
from k3lab.backends.sim import WAIT_TICKS, simulated
from k3lab.errors import BadInput, InternalFault
from k3lab.kernels.health import GaveUp, GivenUp, given_up, in_time, tag_text
from k3lab.kernels.host import Buffers
from k3lab.layout import EPOCHS, step_tag

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")


@pytest.mark.parametrize("epochs", [(None, None, None), (EPOCHS - 1, EPOCHS, EPOCHS + 1)])
def test_launches_in_a_row_on_the_same_scratch(bench, epochs):
    """New inputs each time, so that a word of an earlier launch taken for this one's would show."""
    session = Session(bench.case(), "sim", dumps=True)
    seen = []
    for seed, epoch in enumerate(epochs):
        run = session.step(bench.case(seed=seed), epoch=epoch, slot=seed)
        assert bench.differing(run, bench.twin(seed=seed)) == {}
        seen.append(run.provenance["build"]["epoch"])
    assert seen == [1, 2, 3] if epochs[0] is None else list(epochs)


def test_ranks_take_the_halves_of_their_peer_buffers_in_turn(bench):
    session = Session(bench.case("k2a", ranks=2), "sim")
    for seed in range(3):
        run = session.step(bench.case("k2a", ranks=2, seed=seed))
        assert bench.differing(run, bench.twin("k2a", ranks=2, seed=seed)) == {}


def test_a_run_keeps_its_values_when_the_session_goes_on(bench):
    session = Session(bench.case(), "sim")
    first = session.step()
    held = {name: value.clone() for name, value in first.values.items()}
    session.step(bench.case(seed=1))
    assert all(torch.equal(held[name], value) for name, value in first.values.items())


def test_a_step_of_another_key_or_a_bad_tag_is_refused(bench):
    session = Session(bench.case(), "sim")
    with pytest.raises(BadInput, match="inputs of the session's launch and key"):
        session.step(bench.case(qlen=1))
    for options, says in (({"slot": 256}, "slot"), ({"epoch": -1}, "epoch"), ({"epoch": 1 << 31}, "32 bits")):
        with pytest.raises(BadInput, match=says):
            session.step(**options)


def test_pairs_of_another_launch_are_not_read(bench):
    buffers = Buffers.of(bench.case().declaration, bench.case().key, bench.case().ranks[0], frozenset({"gate"}))
    buffers.fill({"WGT": bench.twin().values["WGT"]})
    buffers.next_step(slot=1)
    with pytest.raises(InternalFault, match=rf"region WGT: expected tag {step_tag(2, 1)} in every pair, got 257 at"):
        buffers.exposed()


# Bounded waits.


def _starved(bench, **filled: torch.Tensor) -> Buffers:
    """gate alone, whose PART nobody has written."""
    case = bench.case(bounded=True)
    buffers = Buffers.of(case.declaration, case.key, case.ranks[0], frozenset({"gate"}))
    buffers.numbers["wait_ticks"] = WAIT_TICKS
    buffers.fill(filled)
    return buffers


def test_a_wait_that_is_given_up_becomes_a_sentence(bench):
    buffers = _starved(bench)
    simulated(buffers)
    with pytest.raises(
        GaveUp, match=r"CTA \d gave up waiting for pair \[\d+, \d, \d, \d\] \(number \d+\) of region PART"
    ):
        buffers.check_health()
    records = given_up(buffers.launch, buffers.key, buffers.tensors["health"].numpy())
    assert {record.cta for record in records} == set(range(buffers.key.tokens))  # a token's gate is on its own CTA
    assert all((record.expected, record.seen) == (step_tag(1, 0), 0) for record in records)
    assert all(np.ravel_multi_index(r.index, (16, 4, 5, 2)) == r.pair for r in records)
    assert int(buffers.tensors["alarm"][0]) == 1


def test_a_stale_pair_is_named_with_its_tag(bench):
    buffers = _starved(bench, PART=bench.twin().values["PART"])
    buffers.pairs("PART")[7, 2, 1, 0, 1] = step_tag(5, 3)
    simulated(buffers)
    with pytest.raises(GaveUp) as raised:
        buffers.check_health()
    (record,) = raised.value.records
    assert (record.region, record.index, record.seen, record.cta) == ("PART", (7, 2, 1, 0), step_tag(5, 3), 2)
    assert "expected tag 0x101 (epoch 1, slot 0), saw tag 0x504 (epoch 5, slot 3)." in str(raised.value)
    assert raised.value.exit_code == 4


def test_a_bounded_build_that_waits_for_nothing_is_the_twin(bench):
    run = k3lab.run("k1", bench.case(bounded=True), backend="sim", dumps=True)
    assert bench.differing(run, bench.twin()) == {}


def test_run_raises_what_was_given_up(bench, monkeypatch):
    monkeypatch.setattr("k3lab.backends.session.peers.fill", lambda ranks, values: None)
    with pytest.raises(GaveUp, match="of region PART"):
        k3lab.run_stage("k1.gate", bench.case(bounded=True), backend="sim")


def _record(cta: int, time: int) -> GivenUp:
    return GivenUp("PART", 0, (0,), 257, 0, cta, time)


def test_records_are_in_time_even_where_the_clock_wraps():
    wrapped = [_record(0, 5), _record(1, (1 << 31) - 10), _record(2, (1 << 31) - 20)]
    assert [record.cta for record in in_time(wrapped)] == [2, 1, 0]
    assert [record.cta for record in in_time([_record(3, 9), _record(1, 9), _record(2, 4)])] == [2, 1, 3]
    assert in_time([]) == []


def test_many_records_are_counted():
    raised = GaveUp([_record(cta, cta) for cta in range(12)])
    assert str(raised).count("gave up waiting") == 8 and str(raised).endswith("4 more CTAs gave up.")
    assert all(a.time < b.time for a, b in pairwise(raised.records))


def test_what_no_region_explains_is_shown_as_it_is(bench):
    health = np.zeros((2, 8), np.int32)
    health[1] = [1, 12345, 7, -1, 0, 1, 99, 0]
    (record,) = given_up(bench.case().declaration, bench.case().key, health)
    assert (record.region, record.index, record.expected) == (hex(12345), None, 0xFFFFFFFF)
    assert "pair 7 of region 0x3039" in str(record) and tag_text(0) == "tag 0 (nothing yet)"
