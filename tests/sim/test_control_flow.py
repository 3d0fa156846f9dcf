"""Control flow by hand: blocks in a bad order, odd loops, polls and what only looks like one, bounded waits."""

from __future__ import annotations

import re

import numpy as np
import pytest

from k3lab.errors import BadInput
from k3lab.sim.faults import SimFault
from tests.sim.test_micro_kit import GLOBAL, I1, I32, I64, Build, by_lanes, run

FULL = -1  # ballot of a whole wave
SCHEDULES = [{}, *({"schedule": "random", "seed": seed} for seed in range(4))]
every_schedule = pytest.mark.parametrize("options", SCHEDULES, ids=str)


def both(module, *args, **options):
    """The first argument as the engine leaves it, after comparing it with what each lane by itself leaves."""
    expected = [np.array(arg) for arg in args]
    by_lanes(module, *expected)
    run(module, *args, **options)
    wrong = np.flatnonzero(args[0] != expected[0])
    assert not len(wrong), f"{len(wrong)} differ, first {wrong[0]}: {args[0][wrong[0]]}, not {expected[0][wrong[0]]}"
    return args[0]


def ballot(build: Build) -> int:
    return build.op("rocdl.ballot", build.constant(I1, 1), gives=I64)


def count_down(build: Build, label: str, start: int, after: str) -> None:
    """Blocks `label` .. that take 1 off `start` until it is below 1, then go to `after`."""
    build.br(label, start)
    (left,) = build.at(label, I32)
    again = build.icmp("sgt", left, build.constant(I32, 0))
    build.cond(again, (f"{label}_body", ()), (after, ()))
    build.at(f"{label}_body")
    build.br(label, build.add(left, build.constant(I32, -1)))


class TestOrder:
    @every_schedule
    @pytest.mark.parametrize("order", [["entry", "after", "loop_body", "loop", "other"], ["entry", "other", "after"]])
    def test_a_loop_that_ends_an_else_branch_exits_to_a_block_printed_earlier(self, order, options):
        build = Build(GLOBAL)
        thread = build.thread()
        low = build.op("llvm.and", thread, build.constant(I32, 3), gives=I32)
        build.cond(build.icmp("eq", low, build.constant(I32, 0)), ("after", ()), ("other", ()))
        build.at("other")
        count_down(build, "loop", low, "after")
        build.at("after")
        build.store(ballot(build), build.params[0], thread)
        build.ret()
        out = both(build.module(groups=1, threads=128, order=order), np.zeros(128, np.int64), **options)
        assert (out == FULL).all(), out[out != FULL]

    @every_schedule
    def test_a_break_out_of_one_branch_of_a_loop_does_not_split_the_loop(self, options):
        build = Build(GLOBAL)
        thread = build.thread()
        zero, one, three = (build.constant(I32, value) for value in (0, 1, 3))
        build.br("header", zero)
        (count,) = build.at("header", I32)
        odd = build.op("llvm.trunc", count, gives=I1)
        build.cond(odd, ("odd", ()), ("even", ()))
        build.at("odd")
        build.br("latch")
        build.at("even")
        many = build.icmp("ugt", count, build.op("llvm.and", thread, three, gives=I32))
        build.cond(many, ("left", ()), ("latch", ()))
        build.at("latch")
        build.br("header", build.add(count, one))
        build.at("left")
        build.store(count, build.params[0], thread)
        there = build.op("llvm.trunc", ballot(build), gives=I32)
        build.store(there, build.params[0], build.add(thread, build.constant(I32, 64)))
        build.ret()
        out = both(build.module(groups=1), np.zeros(128, np.int32), **options)
        assert out[:4].tolist() == [2, 2, 4, 4] and (out[64:] == FULL).all()

    def test_a_loop_of_one_block(self):
        build = Build(GLOBAL)
        thread = build.thread()
        build.br("self", thread, build.constant(I32, 0))
        left, total = build.at("self", I32, I32)
        more = build.add(total, left)
        less = build.add(left, build.constant(I32, -1))
        build.cond(build.icmp("sgt", less, build.constant(I32, 0)), ("self", (less, more)), ("end", ()))
        build.at("end")
        build.store(more, build.params[0], thread)
        build.ret()
        out = both(build.module(groups=1, order=["entry", "end", "self"]), np.zeros(64, np.int32))
        assert out.tolist() == [n * (n + 1) // 2 for n in range(64)]

    @every_schedule
    def test_a_loop_with_three_latches(self, options):
        build = Build(GLOBAL)
        thread = build.thread()
        build.br("header", thread, build.constant(I32, 0))
        value, rounds = build.at("header", I32, I32)
        build.cond(build.icmp("sgt", value, build.constant(I32, 1)), ("choose", ()), ("end", ()))
        build.at("choose")
        following = build.add(rounds, build.constant(I32, 1))
        build.switch(build.op("llvm.srem", value, build.constant(I32, 3), gives=I32), "rest", {0: "by3", 1: "less1"})
        for label, name, number in (("by3", "sdiv", 3), ("less1", "sub", 1), ("rest", "sub", 2)):
            build.at(label)
            less = build.op(f"llvm.{name}", value, build.constant(I32, number), gives=I32)
            build.br("header", less, following)
        build.at("end")
        build.store(rounds, build.params[0], thread)
        build.ret()
        both(build.module(groups=1), np.zeros(64, np.int32), **options)

    def test_an_irreducible_loop_is_refused(self):
        build = Build(GLOBAL)
        thread = build.thread()
        low = build.icmp("slt", thread, build.constant(I32, 32))
        build.cond(low, ("a", (thread,)), ("b", (thread,)))
        for label, other in (("a", "b"), ("b", "a")):
            (value,) = build.at(label, I32)
            less = build.add(value, build.constant(I32, -1))
            build.cond(build.icmp("sgt", less, build.constant(I32, 0)), (other, (less,)), ("end", ()))
        build.at("end")
        build.ret()
        with pytest.raises(BadInput, match="irreducible"):
            run(build.module(groups=1), np.zeros(64, np.int32))


class TestHolding:
    @pytest.mark.parametrize("options", [{}, {"schedule": "random", "seed": 1}], ids=str)
    def test_lanes_of_a_held_workgroup_meet_again(self, options):
        build = Build(GLOBAL)
        thread = build.thread()
        place = build.add(thread, build.op("llvm.mul", build.group(), build.constant(I32, 64), gives=I32))
        build.cond(build.op("llvm.trunc", thread, gives=I1), ("odd", ()), ("even", ()))
        build.at("odd")
        build.br("longer")
        build.at("longer")
        build.br("after")
        build.at("even")
        build.br("after")
        build.at("after")
        build.store(ballot(build), build.params[0], place)
        build.op("rocdl.s.barrier")
        build.ret()
        out = both(build.module(groups=2), np.zeros(128, np.int64), hold=frozenset({0}), **options)
        assert (out == FULL).all(), out


# -- polls -------------------------------------------------------------------------------------------------------------


def poll(build: Build, label: str, base: int, index: int, wanted: int, after: str) -> None:
    """A loop that reads until it finds `wanted`, then goes on to the block `after`."""
    build.br(label)
    build.at(label)
    seen = build.load(I32, base, index)
    build.op("rocdl.s.sleep", count=1)
    build.cond(build.icmp("eq", seen, wanted), (after, ()), (label, ()))


def carrying_poll(build: Build, label: str, base: int, index: int, wanted: int, after: str) -> None:
    """The same with the value that was read carried into the header, as `while` loops are lowered."""
    build.br(label, build.load(I32, base, index))
    (seen,) = build.at(label, I32)
    build.cond(build.icmp("eq", seen, wanted), (after, ()), (f"{label}_again", ()))
    build.at(f"{label}_again")
    build.br(label, build.load(I32, base, index))


POLLS = pytest.mark.parametrize("waiting", [poll, carrying_poll])


class TestPolls:
    @every_schedule
    @POLLS
    def test_workgroups_that_answer_one_another(self, waiting, options):
        """Each sets the next one's flag once its own is set."""
        groups = 5
        build = Build(GLOBAL)
        group, one = build.group(), build.constant(I32, 1)
        flags = build.params[0]
        build.cond(build.icmp("eq", group, build.constant(I32, 0)), ("go", ()), ("wait", ()))
        build.at("wait")
        waiting(build, "poll", flags, group, one, "go")
        build.at("go")
        build.store(one, flags, build.add(group, one))
        build.ret()
        flags = np.zeros(groups + 1, np.int32)
        run(build.module(groups=groups), flags, **options)
        assert flags.tolist() == [0, *[1] * groups]

    def test_a_spinning_wave_whose_flag_came_before_it_parked_wakes(self):
        """A loop of two blocks: in some orders the one store there is comes between its read and its jump back."""
        build = Build(GLOBAL)
        flags, group, one = build.params[0], build.group(), build.constant(I32, 1)
        zero = build.constant(I32, 0)
        build.cond(build.icmp("eq", group, zero), ("poll", (one,)), ("slow", ()))
        (wanted,) = build.at("poll", I32)
        seen = build.load(I32, flags, zero)
        build.cond(build.icmp("eq", seen, wanted), ("end", ()), ("again", ()))
        build.at("again")
        build.br("poll", wanted)
        build.at("slow")
        build.store(one, flags, zero)
        build.br("end")
        build.at("end")
        build.ret()
        for seed in range(60):  # a tenth of these orders do it
            flags = np.zeros(1, np.int32)
            run(build.module(groups=2, order=["entry", "slow"]), flags, schedule="random", seed=seed)
            assert flags[0] == 1

    @every_schedule
    def test_a_sum_loop_is_no_poll(self, options):
        """A loop that loads, stores nothing and carries what it carried before whenever it meets a zero."""
        build = Build(GLOBAL, GLOBAL)
        out, source = build.params
        thread = build.thread()
        build.br("sum", build.constant(I32, 0), build.constant(I32, 0))
        index, total = build.at("sum", I32, I32)
        more = build.add(total, build.load(I32, source, index))
        following = build.add(index, build.constant(I32, 1))
        build.cond(build.icmp("sle", index, thread), ("sum", (following, more)), ("end", ()))
        build.at("end")
        build.store(more, out, thread)
        build.ret()
        values = np.array([0, 0, 5, 0] * 20, np.int32)
        both(build.module(groups=1), np.zeros(64, np.int32), values, **options)

    @every_schedule
    def test_an_inner_loop_of_loads_that_starts_anew_with_what_it_ended_with(self, options):
        """Two rounds of the same reading loop see the same values and the same memory, and neither is a poll."""
        build = Build(GLOBAL, GLOBAL)
        out, source = build.params
        thread, zero, one = build.thread(), build.constant(I32, 0), build.constant(I32, 1)
        build.br("outer", zero, zero)
        rounds, total = build.at("outer", I32, I32)
        build.br("inner", zero, total)
        index, part = build.at("inner", I32, I32)
        more = build.add(part, build.load(I32, source, zero))
        following = build.add(index, one)
        build.cond(build.icmp("slt", following, one), ("inner", (following, more)), ("latch", ()))
        build.at("latch")
        build.cond(build.icmp("slt", rounds, thread), ("outer", (build.add(rounds, one), more)), ("end", ()))
        build.at("end")
        build.store(more, out, thread)
        build.ret()
        out = both(build.module(groups=1), np.zeros(64, np.int32), np.zeros(1, np.int32), **options)
        assert not out.any()

    @every_schedule
    @POLLS
    def test_a_wave_of_which_only_some_lanes_spin(self, waiting, options):
        """Lanes below 16 wait for the other workgroup; the others wait for them where both paths meet."""
        build = Build(GLOBAL, GLOBAL)
        out, flags = build.params
        thread, group, zero, one = build.thread(), build.group(), build.constant(I32, 0), build.constant(I32, 1)
        build.cond(build.icmp("eq", group, one), ("set", ()), ("wait", ()))
        build.at("set")
        build.store(one, flags, zero)
        build.ret()
        build.at("wait")
        build.cond(build.icmp("slt", thread, build.constant(I32, 16)), ("spin", ()), ("meet", ()))
        build.at("spin")
        waiting(build, "poll", flags, zero, one, "meet")
        build.at("meet")
        build.store(ballot(build), out, thread)
        build.ret()
        out, flags = np.zeros(64, np.int64), np.zeros(1, np.int32)
        run(build.module(groups=2), out, flags, **options)
        assert (out == FULL).all(), out

    @every_schedule
    @pytest.mark.parametrize("where", ["global", "lds"])
    @pytest.mark.parametrize("waiter", [0, 1])
    def test_a_flag_of_a_wave_of_the_same_workgroup(self, waiter, where, options):
        build = Build(GLOBAL, GLOBAL)
        thread, zero, one = build.thread(), build.constant(I32, 0), build.constant(I32, 7)
        flag = build.params[1] if where == "global" else build.lds("shared")
        build.store(zero, flag, zero)
        build.op("rocdl.s.barrier")
        ways = [("wait", ()), ("set", ())]
        build.cond(build.icmp("slt", thread, build.constant(I32, 64)), ways[waiter], ways[1 - waiter])
        build.at("wait")
        carrying_poll(build, "poll", flag, zero, one, "end")
        build.at("set")
        build.store(one, flag, zero)
        build.br("end")
        build.at("end")
        build.store(build.load(I32, flag, zero), build.params[0], thread)
        build.ret()
        out = np.zeros(128, np.int32)
        run(build.module(groups=1, threads=128, lds=4), out, np.zeros(1, np.int32), max_steps=500, **options)
        assert (out == 7).all(), out

    @every_schedule
    def test_a_lock_that_is_taken_by_compare_and_exchange(self, options):
        """One lane of every workgroup adds to a counter under a lock."""
        build = Build(GLOBAL, GLOBAL)
        lock, counter = build.params
        zero, one = build.constant(I32, 0), build.constant(I32, 1)
        build.cond(build.icmp("eq", build.thread(), zero), ("lock", ()), ("end", ()))
        build.at("lock")
        exchange = build.op("llvm.cmpxchg", build.element(I32, lock, zero), zero, one, gives=_exchanged())
        done = build.op("llvm.extractvalue", exchange, gives=I1, position=[1])
        build.cond(done, ("inside", ()), ("lock", ()))
        build.at("inside")
        build.br("add", build.load(I32, counter, zero))
        (before,) = build.at("add", I32)
        build.store(build.add(before, one), counter, zero)
        build.br("unlock")
        build.at("unlock")
        build.op("llvm.atomicrmw", build.element(I32, lock, zero), zero, gives=I32, bin_op=0)
        build.br("end")
        build.at("end")
        build.ret()
        lock, counter = np.zeros(1, np.int32), np.zeros(1, np.int32)
        run(build.module(groups=6), lock, counter, max_steps=2000, **options)
        assert (lock[0], counter[0]) == (0, 6)


def _exchanged():
    from k3lab.lowering.types import parse_type

    return parse_type("!llvm.struct<(i32, i1)>")


class TestBoundedWaits:
    @staticmethod
    def bounded(limit: int, *, flag_comes: bool, work: int = 0):
        """Workgroup 0 waits for a flag for `limit` ticks at most; workgroup 1 reads `work` words and puts it."""
        build = Build(GLOBAL, GLOBAL)
        out, flags = build.params
        zero, one = build.constant(I32, 0), build.constant(I32, 1)
        build.cond(build.icmp("eq", build.group(), zero), ("wait", ()), ("work", ()))
        build.at("wait")
        begun = build.clock()
        build.br("poll")
        build.at("poll")
        came = build.icmp("eq", build.load(I32, flags, zero), one)
        build.cond(came, ("end", (one,)), ("late", ()))
        build.at("late")
        passed = build.op("llvm.sub", build.clock(), begun, gives=I64)
        build.cond(build.icmp("slt", passed, build.constant(I64, limit)), ("poll", ()), ("end", (zero,)))
        build.at("work")
        build.br("read", zero, zero)
        index, total = build.at("read", I32, I32)
        more = build.add(total, build.load(I32, flags, one))
        following = build.add(index, one)
        build.cond(build.icmp("slt", index, build.constant(I32, work)), ("read", (following, more)), ("put", ()))
        build.at("put")
        if flag_comes:
            build.store(build.add(one, more), flags, zero)
        build.ret()
        (result,) = build.at("end", I32)
        build.store(result, out, zero)
        build.ret()
        return build.module(groups=2)

    @every_schedule
    def test_a_bounded_wait_gives_up(self, options):
        out = np.full(1, 9, np.int32)
        run(self.bounded(100_000, flag_comes=False), out, np.zeros(2, np.int32), **options)
        assert out[0] == 0

    @every_schedule
    def test_a_bounded_wait_sees_its_flag(self, options):
        out = np.full(1, 9, np.int32)
        run(self.bounded(100_000, flag_comes=True), out, np.zeros(2, np.int32), **options)
        assert out[0] == 1

    def test_no_time_passes_while_another_workgroup_reads(self):
        out = np.full(1, 9, np.int32)
        run(self.bounded(10_000, flag_comes=True, work=200), out, np.zeros(2, np.int32))
        assert out[0] == 1

    def test_a_pause_ends(self):
        build = Build(GLOBAL)
        begun = build.clock()
        build.br("pause")
        build.at("pause")
        passed = build.op("llvm.sub", build.clock(), begun, gives=I64)
        build.cond(build.icmp("slt", passed, build.constant(I64, 50_000)), ("pause", ()), ("end", ()))
        build.at("end")
        build.store(passed, build.params[0], build.constant(I32, 0))
        build.ret()
        out = np.zeros(1, np.int64)
        run(build.module(groups=1), out, max_steps=1000)
        assert out[0] >= 50_000


class TestDeadlock:
    @every_schedule
    def test_two_workgroups_that_wait_for_each_other_are_both_named(self, options):
        build = Build(GLOBAL)
        flags, group, one = build.params[0], build.group(), build.constant(I32, 1)
        other = build.op("llvm.xor", group, one, gives=I32)
        poll(build, "poll", flags, other, one, "put")
        build.at("put")
        build.store(one, flags, group)
        build.ret()
        with pytest.raises(SimFault, match=r"deadlock: no wave can go on: .*polls? in vain") as caught:
            run(build.module(groups=2), np.zeros(2, np.int32), **options)
        assert set(re.findall(r"workgroups ([\d, ]+\d)", str(caught.value))) <= {"0, 1", "0", "1"}, caught.value
        assert "0" in str(caught.value) and "micro.py" in str(caught.value)

    @pytest.mark.parametrize(
        ("sense", "joined", "goes_on", "said"),
        [
            ("eq", "llvm.or", True, "expected other than 7, seen 7"),  # words armed with 7
            ("ne", "llvm.or", True, "expected 7, seen 5"),  # tags
            ("eq", "llvm.and", False, "expected 7, seen 5"),
            ("ne", "llvm.and", False, "expected other than 7, seen 7"),
        ],
    )
    def test_of_two_words_only_the_one_that_is_waited_for_is_named(self, sense, joined, goes_on, said):
        """Word 1 is what the loop goes on for, word 0 is as it should be."""
        build = Build(GLOBAL)
        wanted, one = build.constant(I32, 7), build.constant(I32, 1)
        build.br("poll")
        build.at("poll")
        seen = [build.load(I32, build.params[0], place) for place in (build.constant(I32, 0), one)]
        build.op("rocdl.s.sleep", count=1)
        both = build.op(joined, *(build.icmp(sense, word, wanted) for word in seen), gives=I1)
        build.cond(both, *(("poll", ()), ("after", ()))[:: 1 if goes_on else -1])
        build.at("after")
        build.store(one, build.params[0], one)
        build.ret()
        late = int(said[-1])
        with pytest.raises(SimFault, match=rf"for byte 4 of \S+( \d+)? \({said}\)\.") as caught:
            run(build.module(groups=1, threads=64), np.array([12 - late, late], np.int32))
        assert "byte 0" not in str(caught.value)

    def test_a_wave_that_waits_at_a_barrier_for_one_that_spins_is_named_too(self):
        build = Build(GLOBAL)
        thread, zero, one = build.thread(), build.constant(I32, 0), build.constant(I32, 1)
        build.cond(build.icmp("slt", thread, build.constant(I32, 64)), ("meet", ()), ("spin", ()))
        build.at("spin")
        poll(build, "poll", build.params[0], zero, one, "meet")
        build.at("meet")
        build.op("rocdl.s.barrier")
        build.store(one, build.params[0], zero)
        build.ret()
        with pytest.raises(
            SimFault,
            match=r"1 wave of workgroup 0 \(wave 0\) waits at the barrier.*\(wave 1\) polls in vain.*seen 0",
        ):
            run(build.module(groups=1, threads=128), np.zeros(1, np.int32))
