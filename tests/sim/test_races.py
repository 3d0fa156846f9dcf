"""Planted faults of hand-offs: each detector finds its own, and is silent on the correct twin."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from k3lab.errors import BadInput
from k3lab.sim.faults import SimFault
from k3lab.sim.launch import simulate
from k3lab.sim.memory.regions import SharedRegion
from k3lab.sim.options import Options

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from k3lab.lowering.capture import lower
from tests.sim import fault_kernels as kernels
from tests.sim import kernels as textbook
from tests.sim.fault_kernels import CONSUMERS, NT, PLAIN, PRODUCERS, THREADS, Flagged

CHECKS = {"races": True, "global_races": True, "guards": True, "scopes": True}
SCHEDULES = [
    {},
    *({"schedule": "random", "seed": seed} for seed in range(10)),
    *({"schedule": "adversarial", "seed": seed} for seed in range(5)),
]
MEMORIES = ["sequential", "relaxed"]
ROWS = SharedRegion("X", 0, 0, PRODUCERS * THREADS * 4, "rows", guard="XRDY")
FLAGS = SharedRegion("XRDY", 1, 0, PRODUCERS * 4, "flags")
PAIRS = SharedRegion("QN", 1, 0, 64 * 16, "pairs")


@cache
def lowered(builder, *args, hosts=4, **kwargs):
    return lower(builder(*args, **kwargs), *[0] * hosts)


def run_flagged(how, options, scratch=None, tag=7, regions=(ROWS, FLAGS)):
    """(the consumers' sums, what they should be)."""
    rows, flags = scratch or (np.zeros((PRODUCERS, THREADS), np.int32), np.zeros(PRODUCERS, np.int32))
    out = np.zeros((CONSUMERS, THREADS), np.int32)
    simulate(lowered(kernels.flagged, how), rows, flags, out, tag, options=options, regions=regions)
    row = np.arange(PRODUCERS)[:, None] * 1000 + np.arange(THREADS) * 3 + tag
    return out, np.broadcast_to(row.sum(0), out.shape)


def run_paired(options, *args, scratch=None, tag=7, regions=(PAIRS,), **kwargs):
    """(what the consumer got of both pairs, what it should)."""
    row, pairs = scratch or (np.zeros(128, np.int32), np.zeros((64, 2, 2), np.int32))
    out = np.zeros(64, np.int32)
    module = lowered(kernels.paired, *args, **kwargs)
    simulate(module, row, pairs, out, tag, options=options, regions=regions)
    value = np.arange(64) * 2 + tag
    rows = 2 * (np.arange(64) + tag) + 1 if kwargs.get("rows") else 0
    return out, value * 1000 + value + 1 + rows


def kinds(run, settings, **checks):
    """What each setting ends with: a finding's kind, `wrong` values, or `right`."""
    ends = []
    for setting in settings:
        try:
            got, wanted = run(Options(**setting, **checks))
            ends.append("right" if np.array_equal(got, wanted) else "wrong")
        except SimFault as fault:
            ends.append(fault.finding.kind)
    return ends


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("setting", SCHEDULES, ids=str)
class TestCorrectKernelsAreSilent:
    """All detectors on; two epochs on one scratch."""

    @pytest.mark.parametrize("how", [Flagged(), Flagged(read=PLAIN, acquires=True)], ids=str)
    def test_rows_guarded_by_flags(self, setting, memory, how):
        scratch = np.zeros((PRODUCERS, THREADS), np.int32), np.zeros(PRODUCERS, np.int32)
        for tag in (7, 263):
            got, wanted = run_flagged(how, Options(memory=memory, **setting, **CHECKS), scratch, tag)
            assert np.array_equal(got, wanted)

    @pytest.mark.parametrize("rows", [False, True])
    def test_pairs(self, setting, memory, rows):
        scratch = np.zeros(128, np.int32), np.zeros((64, 2, 2), np.int32)
        for tag in (7, 263):
            options = Options(memory=memory, **setting, **CHECKS)
            got, wanted = run_paired(options, "both", rows=rows, scratch=scratch, tag=tag)
            assert np.array_equal(got, wanted)

    def test_an_atomic_count(self, setting, memory):
        rows, count, out = np.zeros(192, np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32)
        options = Options(memory=memory, **setting, **CHECKS)
        simulate(lowered(kernels.counted, True, hosts=3), rows, count, out, options=options)
        assert np.array_equal(out, np.arange(64) * 6) and count[0] == 3

    def test_values_stored_elsewhere(self, setting, memory):
        src, dst = np.arange(192, dtype=np.int32), np.zeros(128, np.int32)
        options = Options(memory=memory, **setting, **CHECKS)
        simulate(lowered(kernels.shifted, True, hosts=2), src, dst, options=options)
        assert np.array_equal(dst, np.arange(64, 192))

    def test_a_reduction_with_its_barrier(self, setting, memory):
        src, dst = np.arange(THREADS, dtype=np.float32), np.zeros(THREADS, np.float32)
        options = Options(memory=memory, **setting, **CHECKS)
        simulate(lowered(kernels.softmax, True, hosts=2), src, dst, options=options)
        assert np.array_equal(dst, (src - 127) / (src - 127).sum())


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("setting", SCHEDULES[::3], ids=str)
class TestTextbookKernelsAreSilent:
    def test_atomics_of_many_lanes(self, setting, memory):
        values, out = np.arange(1000, dtype=np.int32) % 7, np.zeros(7, np.int32)
        options = Options(memory=memory, **setting, **CHECKS)
        simulate(lowered(lambda: textbook.histogram), values, out, 1000, 16, options=options)
        assert np.array_equal(out, np.bincount(values))

    def test_lanes_past_the_end_of_a_buffer(self, setting, memory):
        data, out = np.arange(1, 65, dtype=np.int32), np.zeros(64, np.int32)
        options = Options(memory=memory, **setting, **CHECKS)
        simulate(lowered(lambda: textbook.clamped, hosts=2), data, out, options=options)
        assert out.tolist() == [*range(1, 17), *[0] * 48]


class TestRaces:
    @pytest.mark.parametrize("setting", SCHEDULES, ids=str)
    def test_an_unpolled_flag(self, setting):
        with pytest.raises(SimFault, match=r"race: .* X.*|race: .*argument 0 \+ ") as caught:
            run_flagged(Flagged(polls="none"), Options(global_races=True, **setting))
        message = str(caught.value)
        assert message.count("fault_kernels.py:") == 2 and "nothing orders the two" in message
        assert caught.value.finding.where.workgroup is not None

    def test_only_the_last_flag_polled(self):
        ends = kinds(lambda o: run_flagged(Flagged(polls="last"), o), SCHEDULES[1:], global_races=True)
        assert ends.count("race") >= 8 and "wrong" not in ends

    def test_a_flag_without_a_barrier_before_it(self):
        ends = kinds(lambda o: run_flagged(Flagged(barrier=False), o), SCHEDULES, global_races=True)
        assert set(ends) == {"race"}

    def test_the_tag_of_the_epoch_before(self):
        def second_epoch(options):
            scratch = np.zeros((PRODUCERS, THREADS), np.int32), np.zeros(PRODUCERS, np.int32)
            run_flagged(Flagged(polls="any"), Options(), scratch, 7)
            return run_flagged(Flagged(polls="any"), options, scratch, 263)

        assert "wrong" in kinds(second_epoch, SCHEDULES)
        ends = kinds(second_epoch, SCHEDULES, global_races=True)
        assert ends.count("race") >= 12 and "wrong" not in ends

    def test_both_pairs_of_one_access_are_acquired(self):
        ends = kinds(lambda o: run_paired(o, "both", rows=True), SCHEDULES, global_races=True)
        assert set(ends) == {"right"}

    def test_rows_of_a_pair_whose_tag_was_not_looked_at(self):
        ends = kinds(lambda o: run_paired(o, "last", rows=True), SCHEDULES[1:], global_races=True)
        assert "race" in ends

    def test_values_of_a_pair_whose_tag_was_not_looked_at_are_wrong(self):
        assert "wrong" in kinds(lambda o: run_paired(o, "last"), SCHEDULES[1:], global_races=True)

    def test_undeclared_words_order_nothing(self):
        assert set(kinds(lambda o: run_flagged(Flagged(), o, regions=()), SCHEDULES, global_races=True)) == {"race"}

    def test_unscoped_pairs_order_nothing(self):
        ends = kinds(lambda o: run_paired(o, "both", put=NT, rows=True), SCHEDULES, global_races=True)
        assert set(ends) == {"race"}

    def test_rows_read_by_the_last_workgroup_without_an_atomic(self):
        def run(options):
            rows, count, out = np.zeros(192, np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32)
            simulate(lowered(kernels.counted, False, hosts=3), rows, count, out, options=options)
            return out, np.arange(64) * 6

        assert set(kinds(run, SCHEDULES, global_races=True)) == {"race"}

    def test_a_store_over_what_another_workgroup_reads(self):
        def run(options):
            data = np.arange(192, dtype=np.int32)
            simulate(lowered(kernels.shifted, False, hosts=2), data, data[:0].copy(), options=options)
            return data[:128], np.arange(64, 192)

        assert set(kinds(run, SCHEDULES, global_races=True)) == {"race"}

    def test_a_reduction_that_uses_its_lds_slots_again_without_a_barrier(self):
        def run(options):
            src, dst = np.arange(THREADS, dtype=np.float32), np.zeros(THREADS, np.float32)
            simulate(lowered(kernels.softmax, False, hosts=2), src, dst, options=options)
            return dst, (src - 127) / (src - 127).sum()

        assert set(kinds(run, SCHEDULES, races=True)) == {"race"}


class TestGuards:
    @pytest.mark.parametrize("setting", SCHEDULES, ids=str)
    def test_a_missing_drain(self, setting):
        with pytest.raises(SimFault, match=r"undrained: .* in the flags XRDY, while wave 0's store .*fault_kernels.py"):
            run_flagged(Flagged(drains="none"), Options(guards=True, **setting))

    def test_a_missing_drain_is_invisible_to_bits_and_races(self):
        ends = kinds(lambda o: run_flagged(Flagged(drains="none"), o), SCHEDULES, global_races=True, scopes=True)
        assert set(ends) == {"right"}

    def test_another_wave_that_has_not_drained_at_the_barrier(self):
        with pytest.raises(SimFault, match="undrained: .* while wave 1's store"):
            run_flagged(Flagged(drains="first"), Options(guards=True))


class TestScopes:
    def test_guarded_rows_stored_without_their_scope(self):
        """Drained, but into this die's cache: readers on another die need not see them."""
        with pytest.raises(SimFault, match=r"scope: store of .* in the rows X, has cache policy 0; device scope"):
            run_flagged(Flagged(rows=PLAIN), Options(scopes=True))

    @pytest.mark.parametrize("policy", [PLAIN, NT])
    @pytest.mark.parametrize("side", ["put", "get"])
    def test_a_flag_without_device_scope(self, side, policy):
        what = "store" if side == "put" else "load"
        with pytest.raises(SimFault, match=f"scope: {what} of 4 bytes .* flags XRDY, has cache policy {policy}"):
            run_flagged(replace(Flagged(), **{side: policy}), Options(scopes=True))

    def test_a_pair_without_device_scope(self):
        with pytest.raises(SimFault, match="scope: store of 8 bytes .* pairs QN"):
            run_paired(Options(scopes=True), "both", put=PLAIN)

    def test_device_scope_where_every_gpu_reads(self):
        with pytest.raises(SimFault, match="cache policy 16; system scope needs 17"):
            run_paired(Options(scopes=True), "both", regions=[replace(PAIRS, scope="system")])


class TestAdversary:
    """What only looking at the last flag of a batch does depends on which producer is late."""

    def test_a_producer_held_back_shows_what_the_default_order_hides(self):
        settings = [{}, {"hold": frozenset({1})}]
        assert kinds(lambda o: run_flagged(Flagged(polls="last"), o), settings) == ["right", "wrong"]

    def test_holding_from_a_block_that_is_not_reached_changes_nothing(self):
        settings = [{"hold": frozenset({1}), "hold_from": first} for first in (0, 1, 1000)]
        assert kinds(lambda o: run_flagged(Flagged(polls="last"), o), settings) == ["wrong", "wrong", "right"]

    def test_drawn_adversaries_find_it_more_often_than_random_orders(self):
        found = [
            kinds(lambda o: run_flagged(Flagged(polls="last"), o), [{"schedule": how, "seed": s} for s in range(20)])
            for how in ("adversarial", "random")
        ]
        assert found[0].count("wrong") > found[1].count("wrong")

    @pytest.mark.parametrize("hold_from", [0, 1, 2, 3, 4])
    def test_lanes_of_a_held_wave_meet_again(self, hold_from):
        src, dst = np.arange(THREADS, dtype=np.float32), np.zeros(THREADS, np.float32)
        options = Options(hold=frozenset({0}), hold_from=hold_from)
        simulate(lowered(kernels.softmax, True, hosts=2), src, dst, options=options)
        assert np.array_equal(dst, (src - 127) / (src - 127).sum())


class TestRegions:
    @pytest.mark.parametrize(
        "regions",
        [
            [replace(FLAGS, buffer=2), ROWS, replace(PAIRS, buffer=2)],
            [replace(FLAGS, nbytes=4096)],
            [replace(FLAGS, buffer=9)],
            [replace(FLAGS, buffer=3)],
            [ROWS],
            [FLAGS, FLAGS],
        ],
        ids=["overlap", "too long", "no such argument", "a number", "no such guard", "same name"],
    )
    def test_regions_that_do_not_fit(self, regions):
        with pytest.raises(BadInput):
            run_flagged(Flagged(), Options(), regions=regions)

    @pytest.mark.parametrize("change", [{"start": 2}, {"nbytes": 0}, {"guard": "XRDY"}, {"kind": "words"}])
    def test_declarations_that_make_no_sense(self, change):
        with pytest.raises(BadInput):
            replace(FLAGS, **change)
