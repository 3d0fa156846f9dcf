"""Relaxed memory: missing drains and wrong scopes give wrong values there, correct kernels the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from k3lab.errors import BadInput
from k3lab.sim.checks.touch import DEVICE, Touch
from k3lab.sim.memory.relaxed import RelaxedMemory
from k3lab.sim.memory.spaces import Buffer
from k3lab.sim.options import Options

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from tests.sim.fault_kernels import NT, PLAIN, Flagged
from tests.sim.test_races import SCHEDULES, kinds, run_flagged, run_paired

SEEDS = [{"seed": seed} for seed in range(10)]
RANDOM = [{"schedule": "random", "seed": seed} for seed in range(10)]


@pytest.mark.parametrize("settings", [SEEDS, RANDOM], ids=["default", "random"])
class TestFaultsGiveWrongValues:
    @pytest.mark.parametrize("drains", ["none", "first"])
    def test_a_missing_drain(self, settings, drains):
        assert "wrong" in kinds(lambda o: run_flagged(Flagged(drains=drains), o), settings, memory="relaxed")

    @pytest.mark.parametrize("policy", [PLAIN, NT])
    def test_rows_read_from_a_cache(self, settings, policy):
        assert "wrong" in kinds(lambda o: run_flagged(Flagged(read=policy), o), settings, memory="relaxed")

    def test_a_flag_read_from_a_cache_never_comes(self, settings):
        assert "deadlock" in kinds(lambda o: run_flagged(Flagged(get=PLAIN), o), settings, memory="relaxed")


class TestSequentialMemoryHidesThem:
    @pytest.mark.parametrize("how", [Flagged(drains="none"), Flagged(read=PLAIN), Flagged(get=PLAIN)], ids=str)
    def test_faults_that_give_the_right_values(self, how):
        assert set(kinds(lambda o: run_flagged(how, o), SCHEDULES)) == {"right"}


class TestOneWord:
    """Waves 0 and 1 are workgroup 0, waves 2 and 3 workgroup 1; wave 0 stores 7 over 0."""

    def setup_method(self):
        self.words, self.memory = np.zeros(16, np.int32), RelaxedMemory(np.zeros(2, np.int64), 2, seed=0)
        self.buffer = Buffer("words", self.words.view(np.uint8), 0)
        self.memory.store(self.touch(0, "store"), np.array([[7, 0, 0, 0]], np.uint8), 1)

    def touch(self, wave, what="load"):
        one = np.array([0])
        return Touch(what, self.buffer, one, 4, one, one, one + wave, DEVICE, None)

    def loaded(self, wave, reach=1):
        data = self.buffer.data[None, :4].copy()
        return int(self.memory.load(self.touch(wave), data, reach)[0, 0])

    @pytest.mark.parametrize("reach", [0, 1])
    def test_its_own_workgroup_sees_it_at_once_and_others_once_it_is_drained(self, reach):
        assert self.memory.may_differ(self.touch(1), reach)
        assert [self.loaded(wave, reach) for wave in range(4)] == [7, 7, 0, 0] and self.words[0] == 0
        assert not self.memory.drained(np.array([1, 2, 3])) and self.memory.drained(np.array([0]))
        assert self.words[0] == 7 and [self.loaded(wave) for wave in range(4)] == [7] * 4

    def test_who_sees_the_store(self):
        assert [bool(self.memory.seen(self.touch(wave)).all()) for wave in range(4)] == [True, True, False, False]
        self.memory.drained(np.array([0]))
        assert self.memory.seen(self.touch(3)).all()

    def test_an_atomic_comes_after_what_is_under_way_to_its_word(self):
        self.memory.settle(self.touch(2, "atomic"), 1)
        assert self.words[0] == 7

    def test_a_later_store_of_another_wave_stays(self):
        self.memory.store(self.touch(2, "store"), np.array([[9, 0, 0, 0]], np.uint8), 1)
        assert self.words[0] == 7 and self.loaded(3) == 9
        self.memory.drained(np.arange(4))
        assert self.words[0] == 9

    def test_a_workgroup_gets_its_own_bytes_back_and_never_sees_a_byte_go_back(self):
        self.memory.drained(np.array([0]))
        assert self.loaded(0, reach=0) == 7
        first = self.loaded(2, reach=0)
        assert all(self.loaded(2, reach=0) == first for _ in range(5))
        self.memory.acquired(np.array([1]), 1)
        assert self.loaded(2, reach=0) == 7

    def test_it_arrives_in_the_end(self):
        assert self.memory.pass_time(idle=True) and self.words[0] == 7
        assert not self.memory.pass_time(idle=True)


class TestCorrectKernels:
    def test_an_acquire_fence_drops_what_was_cached(self):
        how = Flagged(read=PLAIN, acquires=True)
        assert set(kinds(lambda o: run_flagged(how, o), SEEDS + SCHEDULES[1:], memory="relaxed")) == {"right"}

    def test_pairs_need_no_drain(self):
        settings = SEEDS + SCHEDULES[1:]
        assert set(kinds(lambda o: run_paired(o, "both"), settings, memory="relaxed")) == {"right"}

    @pytest.mark.parametrize("polls", ["none", "last"])
    def test_the_race_detector_sees_what_gives_wrong_values(self, polls):
        settings = SEEDS + SCHEDULES[1:]
        checks = {"memory": "relaxed", "global_races": True}
        assert "wrong" not in kinds(lambda o: run_flagged(Flagged(polls=polls), o), settings, **checks)

    def test_all_has_arrived_when_the_launch_ends(self):
        rows, flags = np.zeros((4, 128), np.int32), np.zeros(4, np.int32)
        run_flagged(Flagged(), Options(memory="relaxed"), (rows, flags))
        assert rows[3, 127] == 127 * 3 + 3007 and flags.tolist() == [7] * 4

    def test_the_same_seed_gives_the_same(self):
        first, second = (run_flagged(Flagged(drains="none"), Options(memory="relaxed", seed=3))[0] for _ in range(2))
        assert np.array_equal(first, second)

    def test_a_memory_that_is_not_known(self):
        with pytest.raises(BadInput, match="memory: expected one of"):
            Options(memory="weak")
