"""Chains of launches on one rank and on several: kernel boundaries, mailboxes by the reuse rule, planted faults."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from k3lab.errors import BadInput
from k3lab.layout import step_tag as tag_of
from k3lab.sim.chain import Launch, simulate_chain
from k3lab.sim.engine import Engine
from k3lab.sim.faults import SimFault
from k3lab.sim.launch import simulate
from k3lab.sim.memory.buffers import Memory
from k3lab.sim.memory.regions import SharedRegion
from k3lab.sim.options import Options
from k3lab.sim.schedule.standing import describe

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from k3lab.lowering.capture import lower
from tests.sim import chain_kernels as kernels
from tests.sim.chain_kernels import DEVICE, GROUPS, LANES, PART, Pairs, Rows
from tests.sim.fault_kernels import Flagged
from tests.sim.test_races import FLAGS, ROWS, run_flagged

CHECKS = {"races": True, "global_races": True, "guards": True, "scopes": True}
RANKS = [2, 8]
LAUNCHES = 5


@cache
def lowered(builder, *args, hosts):
    return lower(builder(*args), *[0] * hosts)


class Boxes:
    """Every rank's inputs, outputs and mailbox, and the launches of an all-reduce on them."""

    def __init__(self, ranks: int, launches: int = LAUNCHES, seed: int = 0) -> None:
        self.ranks = ranks
        self.memory = Memory()
        self.src = np.random.default_rng(seed).integers(0, 10**6, (ranks, launches, PART)).astype(np.int32)
        self.dst = np.zeros_like(self.src)
        self.boxes = [np.zeros((2, ranks, PART, 2), np.int32) for _ in range(ranks)]
        self.rows = [np.zeros((2, ranks, PART), np.int32) for _ in range(ranks)]
        self.flags = [np.zeros((2, ranks, GROUPS), np.int32) for _ in range(ranks)]
        for what in ("boxes", "rows", "flags"):
            for rank, array in enumerate(getattr(self, what)):
                self.memory.add(f"{what} {rank}", array)

    @property
    def expected(self) -> np.ndarray:
        total = np.zeros_like(self.src[0])
        for rank in range(self.ranks):
            total = total * 3 + self.src[rank]
        return np.broadcast_to(total, self.dst.shape)

    def pairs(self, how: Pairs, steps: list[tuple[int, int, int, int]], options: Options):
        """Launch by launch (epoch, slot, uses, use) on every rank."""
        module = lowered(kernels.pairs_reduce, self.ranks, how, hosts=9)
        table = self.memory.table(self.boxes)
        ranks = [
            [
                Launch(
                    module,
                    (table, self.boxes[r], self.src[r, i], self.dst[r, i], r, tag_of(epoch, slot), epoch, uses, use),
                )
                for i, (epoch, slot, uses, use) in enumerate(steps)
            ]
            for r in range(self.ranks)
        ]
        regions = [
            SharedRegion("QP", f"boxes {r}", 0, box.nbytes, "pairs", scope="system", rank=r)
            for r, box in enumerate(self.boxes)
        ]
        return simulate_chain(ranks, memory=self.memory, options=options, regions=regions)

    def guarded(self, how: Rows, steps: list[tuple[int, int]], options: Options):
        """Launch by launch (tag, half)."""
        module = lowered(kernels.rows_reduce, self.ranks, how, hosts=9)
        rows, flags = self.memory.table(self.rows), self.memory.table(self.flags)
        ranks = [
            [
                Launch(
                    module,
                    (rows, flags, self.rows[r], self.flags[r], self.src[r, i], self.dst[r, i], r, tag, half),
                )
                for i, (tag, half) in enumerate(steps)
            ]
            for r in range(self.ranks)
        ]
        regions = []
        for r in range(self.ranks):
            regions.append(SharedRegion("QF", f"flags {r}", 0, self.flags[r].nbytes, "flags", scope="system", rank=r))
            regions.append(SharedRegion("QR", f"rows {r}", 0, self.rows[r].nbytes, "rows", guard="QF", rank=r))
        return simulate_chain(ranks, memory=self.memory, options=options, regions=regions)

    def end(self, run, *args, **settings) -> str:
        """What a run ends with: a finding's kind, `wrong` values, or `right`."""
        try:
            run(*args, Options(**settings))
        except SimFault as fault:
            return fault.finding.kind
        return "right" if np.array_equal(self.dst, self.expected) else "wrong"


ALTERNATE = [(epoch, slot, 2, slot) for epoch in range(3) for slot in range(2)][:LAUNCHES]  # an even number of uses
ODD = [(epoch, slot, 3, slot) for epoch in range(2) for slot in range(3)][:LAUNCHES]  # an odd one
ONE_A_STEP = [(epoch, 0, 1, 0) for epoch in range(LAUNCHES)]
BY_EPOCH = [(epoch, slot, 2, 0) for epoch in range(3) for slot in range(2)][:LAUNCHES]  # broken: one half for ever
TAGS = [(tag_of(epoch, 0), epoch % 2) for epoch in range(LAUNCHES)]
ONE_HALF = [(tag, 0) for tag, _ in TAGS]  # broken


def orders(ranks: int) -> list[dict]:
    """The default order, random ones, drawn adversaries, and one that starves a workgroup or a rank."""
    seeds = range(6 if ranks == 2 else 1)
    held = [frozenset({(1, 0)}), frozenset({(1, 0), (1, 1)})]
    some = [{"hold": slots, "hold_launch": launch} for slots, launch in zip(held, (1, 0), strict=True)]
    some += [{"schedule": how, "seed": seed} for seed in seeds for how in ("adversarial", "random")]
    return [{}, *some]


RELAXED = [{"memory": "relaxed", "seed": seed} for seed in range(8)]


def until(wanted: str, settings: list[dict], end) -> set[str]:
    """Run until a setting ends as `wanted`; what those before ended with."""
    before = set()
    for setting in settings:
        if (how := end(**setting)) == wanted:
            return before
        before.add(how)
    raise AssertionError(f"{wanted} in none of {len(settings)} settings, but {before}")


@pytest.mark.parametrize("memory", ["sequential", "relaxed"])
@pytest.mark.parametrize("ranks", RANKS)
class TestTheReuseRule:
    @pytest.mark.parametrize("steps", [ALTERNATE, ODD], ids=["even", "odd"])
    def test_pairs_in_alternating_halves_are_right_and_silent(self, ranks, memory, steps):
        for order in orders(ranks)[:: 1 if memory == "sequential" else 4]:
            boxes = Boxes(ranks)
            assert boxes.end(boxes.pairs, Pairs(), steps, memory=memory, **order, **CHECKS) == "right", order

    def test_rows_in_alternating_halves_are_right_and_silent(self, ranks, memory):
        for order in orders(ranks)[:: 1 if memory == "sequential" else 4]:
            boxes = Boxes(ranks)
            assert boxes.end(boxes.guarded, Rows(), TAGS, memory=memory, **order, **CHECKS) == "right", order


@pytest.mark.parametrize("ranks", RANKS)
class TestTheReuseRuleBroken:
    """The default order passes it all; an adversary shows it."""

    def test_pairs_used_again_a_launch_too_early_hang(self, ranks):
        boxes = Boxes(ranks)
        assert boxes.end(boxes.pairs, Pairs(), BY_EPOCH) == "right"
        boxes = Boxes(ranks)
        assert boxes.end(boxes.pairs, Pairs(), BY_EPOCH, hold=frozenset({(0, 0)}), **CHECKS) == "deadlock"

    def test_rows_used_again_a_launch_too_early_race(self, ranks):
        boxes = Boxes(ranks)
        assert boxes.end(boxes.guarded, Rows(), ONE_HALF) == "right"
        boxes = Boxes(ranks)
        assert boxes.end(boxes.guarded, Rows(), ONE_HALF, global_races=True, hold=frozenset({(1, 0)})) == "race"

    def test_tags_of_the_epoch_before_give_wrong_values(self, ranks):
        def end(**settings) -> str:
            boxes = Boxes(ranks)
            return boxes.end(boxes.pairs, Pairs(fresh=False), ONE_A_STEP, **settings)

        assert until("wrong", [{**order, **CHECKS} for order in orders(ranks)], end) <= {"right"}

    def test_flags_of_the_epoch_before_race(self, ranks):
        def end(**settings) -> str:
            boxes = Boxes(ranks)
            return boxes.end(boxes.guarded, Rows(fresh=False), TAGS, global_races=True, **settings)

        assert until("race", orders(ranks), end) <= {"right"}


@pytest.mark.parametrize("ranks", RANKS)
class TestFaultsBetweenRanks:
    def test_a_missing_drain(self, ranks):
        boxes = Boxes(ranks)
        with pytest.raises(SimFault, match=r"undrained: .* in the flags QF of rank \d, .* \(rank \d, launch 0, work"):
            boxes.guarded(Rows(drains=False), TAGS, Options(guards=True))

        def end(**settings) -> str:
            boxes = Boxes(ranks)
            return boxes.end(boxes.guarded, Rows(drains=False), TAGS, **settings)

        until("wrong", RELAXED, end)

    @pytest.mark.parametrize("side", ["put", "get"])
    def test_device_scope(self, ranks, side):
        with pytest.raises(SimFault, match=r"scope: .* has cache policy 16; system scope needs 17"):
            Boxes(ranks).pairs(Pairs(**{side: DEVICE}), ONE_A_STEP, Options(scopes=True))

        def end(**settings) -> str:
            boxes = Boxes(ranks)
            return boxes.end(boxes.pairs, Pairs(**{side: DEVICE}), ONE_A_STEP, **settings)

        assert until("deadlock", RELAXED, end) <= {"right"}

    def test_device_scope_where_the_region_asks_for_no_more(self, ranks):
        boxes = Boxes(ranks)
        boxes_ranks = [f"boxes {r}" for r in range(ranks)]
        module = lowered(kernels.pairs_reduce, ranks, Pairs(put=DEVICE), hosts=9)
        table = boxes.memory.table(boxes.boxes)
        launches = [
            [Launch(module, (table, boxes.boxes[r], boxes.src[r, 0], boxes.dst[r, 0], r, 1, 0, 1, 0))]
            for r in range(ranks)
        ]
        regions = [SharedRegion("QP", name, 0, boxes.boxes[0].nbytes, "pairs") for name in boxes_ranks[:1]]
        with pytest.raises(SimFault, match=r"scope: load .* and rank \d stored it with policy 16; between ranks both"):
            simulate_chain(launches, memory=boxes.memory, options=Options(scopes=True), regions=regions)

    @pytest.mark.parametrize("how", [Rows(put=DEVICE), Rows(get=DEVICE)], ids=["put", "get"])
    def test_flags_of_device_scope_order_nothing_between_ranks(self, ranks, how):
        boxes = Boxes(ranks)
        assert boxes.end(boxes.guarded, how, TAGS, global_races=True) == "race"

    @pytest.mark.parametrize("how", [Rows(rows=DEVICE), Rows(read=DEVICE)], ids=["rows", "read"])
    def test_rows_of_device_scope_are_wrong(self, ranks, how):
        def end(**settings) -> str:
            boxes = Boxes(ranks)
            return boxes.end(boxes.guarded, how, TAGS, **settings)

        assert until("wrong", RELAXED, end) <= {"right"}


class TestOneRank:
    @pytest.mark.parametrize("order", [{}, {"schedule": "random", "seed": 1}, {"schedule": "adversarial", "seed": 2}])
    @pytest.mark.parametrize("memory", ["sequential", "relaxed"])
    def test_what_one_launch_stores_the_next_one_reads(self, order, memory):
        """Different kernels, one after the other, through plain memory; the end of a launch orders them."""
        src = np.arange(PART, dtype=np.int32)
        between, out = np.zeros(PART, np.int32), np.zeros(PART, np.int32)
        first, second = lowered(lambda: kernels.scaled, hosts=3), lowered(lambda: kernels.rotated, hosts=2)
        chain = [Launch(first, (src, between, 3)), Launch(second, (between, out)), Launch(first, (out, between, 2))]
        simulate_chain([chain], options=Options(memory=memory, **order, **CHECKS))
        mirrored = src.reshape(GROUPS, LANES)[:, ::-1] * 3
        assert np.array_equal(out.reshape(GROUPS, LANES), mirrored[::-1] + 1)
        assert np.array_equal(between.reshape(GROUPS, LANES), out.reshape(GROUPS, LANES)[:, ::-1] * 2)

    def test_two_ranks_do_the_same_without_order_between_them(self):
        data, outs = np.zeros(PART, np.int32), [np.zeros(PART, np.int32) for _ in range(2)]
        module = lowered(lambda: kernels.rotated, hosts=2)
        simulate_chain([[Launch(module, (data, out))] for out in outs], options=Options(**CHECKS))
        with pytest.raises(
            SimFault, match=r"race: .* which rank 0 launch 1 workgroup \d wave 0 stored .*rank 1, launch 0"
        ):
            first = [Launch(module, (outs[0], outs[1])), Launch(module, (outs[1], data))]
            options = Options(hold=frozenset({(1, 0), (1, 1)}), **CHECKS)
            simulate_chain([first, [Launch(module, (data, outs[0]))]], options=options)

    def test_lds_keeps_its_garbage_but_counts_as_unwritten(self):
        out = np.zeros(LANES, np.int32)
        module = lowered(lambda: kernels.leftover, hosts=2)
        chain = [Launch(module, (out, 1)), Launch(module, (out, 0))]
        with pytest.raises(SimFault, match=r"uninitialised: .*\(launch 1, workgroup 0"):
            simulate_chain([chain])
        engine = simulate_chain([chain], options=Options(uninitialised="warn"))
        assert engine.findings and out.tolist() == [lane + 5 for lane in range(LANES)]

    def test_a_chain_of_one_is_a_plain_launch(self):
        out = np.zeros((2, PART), np.int32)
        module = lowered(lambda: kernels.scaled, hosts=3)
        src = np.arange(PART, dtype=np.int32)
        one = simulate(module, src, out[0], 5)
        other = simulate_chain([[Launch(module, (src, out[1], 5))]])
        assert np.array_equal(out[0], out[1]) and one.steps == other.steps

    def test_ranks_at_the_same_block_run_together(self):
        out = np.zeros((8, PART), np.int32)
        module = lowered(lambda: kernels.scaled, hosts=3)
        src = np.arange(PART, dtype=np.int32)
        engine = simulate_chain([[Launch(module, (src, row, r))] for r, row in enumerate(out)])
        assert engine.steps == simulate(module, src, out[0].copy(), 5).steps
        mirrored = src.reshape(GROUPS, LANES)[:, ::-1].ravel()
        assert np.array_equal(out, mirrored * np.arange(8)[:, None])


class TestMemory:
    def test_an_array_has_one_address_and_its_parts_lie_inside(self):
        memory, data = Memory(), np.zeros((4, 8), np.int32)
        base = memory.add("data", data)
        assert memory.add("again", data) == base and memory.add("row", data[2]) == base + 64
        assert memory.address(data[3, 4:]) == base + 112
        assert memory.table([data, data[1]]).tolist() == [base, base + 32]

    def test_parts_may_come_before_the_whole(self):
        memory, data = Memory(), np.zeros((4, 8), np.int32)
        row, whole, other = memory.add_all([("row", data[1]), ("whole", data), ("other", np.zeros(3))])
        assert row == whole + 32 and memory.globals.find(row).name == "whole" and other != whole

    def test_arrays_that_only_overlap(self):
        memory, data = Memory(), np.zeros(8, np.int32)
        memory.add("left", data[:5])
        for part in (data[3:], data):
            with pytest.raises(BadInput, match="part: expected an array inside or outside of those mapped before"):
                memory.add("part", part)
        assert memory.add("right", data[5:]) != memory.address(data[:1])

    def test_an_array_that_is_not_mapped(self):
        with pytest.raises(BadInput, match="add it first"):
            Memory().address(np.zeros(3))

    def test_empty_arrays_and_strided_ones(self):
        memory = Memory()
        assert memory.add("none", np.zeros(0, np.int32)) != memory.add("none", np.zeros(0, np.int32))
        with pytest.raises(BadInput, match="contiguous"):
            memory.add("column", np.zeros((3, 3))[:, 0])


class TestReports:
    def deadlock(self, ranks: int = 2) -> SimFault:
        boxes = Boxes(ranks)
        with pytest.raises(SimFault, match="deadlock") as caught:
            boxes.pairs(Pairs(), BY_EPOCH, Options(hold=frozenset({(0, 0)})))
        return caught.value

    def test_a_deadlock_says_who_waits_where_for_what(self):
        said = str(self.deadlock())
        assert "2 waves of workgroups 0, 1 of rank 1 in launch 1 poll in vain at " in said
        assert "for pairs 0, 1, 2, 3, 4, 5, 6, 7, ... of QP of rank 1 (expected 2, seen 1)" in said
        assert "1 wave of workgroup 0 of rank 0 in launch 0 polls in vain at " in said
        assert "of QP of rank 0 (expected 1, seen 2)" in said and said.count("chain_kernels.py:") == 2

    def test_a_deadlock_tells_waves_at_a_barrier_from_those_that_poll(self):
        with pytest.raises(SimFault, match="deadlock") as caught:
            run_flagged(Flagged(get=0), Options(memory="relaxed", seed=1), tag=9, regions=(ROWS, FLAGS))
        said = str(caught.value)
        assert "1 wave of workgroup 5 (wave 1) waits at the barrier before " in said
        assert "1 wave of workgroup 5 (wave 0) polls in vain at " in said
        assert "for flags 0, 1, 2, 3 of XRDY (expected 9, seen 0)" in said

    def test_the_state_is_kept_after_an_error(self):
        engine = self.deadlock().engine
        assert engine is not None and len(engine.parked) == 2 and engine.globals.buffers[0].name == "boxes 0"
        assert describe(engine).startswith(f"after {engine.steps} blocks: ") and "in vain" in describe(engine)

    def test_it_is_kept_after_any_error(self):
        with pytest.raises(SimFault) as caught:
            simulate(lowered(lambda: kernels.leftover, hosts=2), np.zeros(LANES, np.int32), 0)
        assert "1 wave of workgroup 0 runs at " in describe(caught.value.engine)

    def test_ctrl_c_ends_with_a_report(self, monkeypatch):
        boxes, steps = Boxes(2), []

        def interrupting(engine, cohort):
            steps.append(cohort)
            if len(steps) == 12:
                raise KeyboardInterrupt
            return advance(engine, cohort)

        advance = Engine._advance
        monkeypatch.setattr(Engine, "_advance", interrupting)
        with pytest.raises(SimFault, match=r"interrupted: after 12 blocks: .* of rank \d in launch \d run") as caught:
            boxes.pairs(Pairs(), ALTERNATE, Options())
        assert caught.value.engine.steps == 12

    def test_the_end_of_a_run(self):
        src = np.arange(PART, dtype=np.int32)
        engine = simulate(lowered(lambda: kernels.scaled, hosts=3), src, src.copy(), 3)
        assert describe(engine).endswith("all waves have ended")

    def test_races_can_be_kept(self):
        arrays = [np.zeros(PART, np.int32) for _ in range(3)]
        module = lowered(lambda: kernels.rotated, hosts=2)
        ranks = [[Launch(module, (arrays[0], arrays[1]))], [Launch(module, (arrays[1], arrays[2]))]]
        engine = simulate_chain(ranks, options=Options(global_races=True, on_race="warn", hold=frozenset({0})))
        lines = [finding.where.loc for finding in engine.findings if finding.kind == "race"]
        assert lines and len(lines) == len(set(lines)) == len(engine.findings)
        assert all(engine.counts[f"race at {line}"] >= 1 for line in lines)
        with pytest.raises(BadInput, match="on_race"):
            Options(on_race="ignore")


class TestOrders:
    """An adversary starves workgroups of a rank, from a launch on; drawn ones starve whole ranks, too."""

    def test_holding_from_a_launch_that_is_not_reached_changes_nothing(self):
        for launch, end in ((0, "deadlock"), (3, "deadlock"), (LAUNCHES, "right")):
            boxes = Boxes(2)
            hold = {"hold": frozenset({(0, 0)}), "hold_launch": launch}
            assert boxes.end(boxes.pairs, Pairs(), BY_EPOCH, **hold) == end

    def test_a_number_means_that_workgroup_on_every_rank(self):
        boxes = Boxes(2)
        engine = boxes.pairs(Pairs(), ALTERNATE, Options(hold=frozenset({0, (1, 1)})))
        assert engine.starved.slots.tolist() == [True, False, True, True]

    def test_a_workgroup_there_is_not(self):
        for name in (2, (2, 0), (0, -1)):
            with pytest.raises(BadInput, match="hold"):
                boxes = Boxes(2)
                boxes.pairs(Pairs(), ALTERNATE, Options(hold=frozenset({name})))

    def test_drawn_adversaries_starve_ranks_and_find_the_broken_rule(self):
        ends, starved = [], []
        for seed in range(12):
            boxes = Boxes(2)
            ends.append(boxes.end(boxes.pairs, Pairs(), BY_EPOCH, schedule="adversarial", seed=seed))
            boxes = Boxes(2)
            engine = boxes.pairs(Pairs(), ALTERNATE, Options(schedule="adversarial", seed=seed))
            starved.append(tuple(engine.starved.slots.tolist()))
        assert "deadlock" in ends and {(True, True, False, False), (False, False, True, True)} & set(starved)

    def test_random_orders_find_it_too(self):
        def end(**settings) -> str:
            boxes = Boxes(2)
            return boxes.end(boxes.pairs, Pairs(), BY_EPOCH, **settings)

        until("deadlock", [{"schedule": "random", "seed": seed} for seed in range(20)], end)


class TestResidency:
    @pytest.mark.parametrize("resident", [1, 2, 3, None])
    def test_workgroups_that_do_not_wait_for_others(self, resident):
        src, out = np.arange(PART, dtype=np.int32), np.zeros(PART, np.int32)
        simulate(lowered(lambda: kernels.scaled, hosts=3), src, out, 3, options=Options(resident=resident, **CHECKS))
        assert np.array_equal(out.reshape(GROUPS, LANES), src.reshape(GROUPS, LANES)[:, ::-1] * 3)

    def test_workgroups_that_wait_for_one_that_has_not_started(self):
        module = lowered(lambda: kernels.gathering, hosts=2)
        simulate(module, np.zeros(1, np.int32), 5, options=Options(resident=5))
        said = r"deadlock: .* 1 workgroup not started, as no more than 4 can be resident at once"
        with pytest.raises(SimFault, match=said):
            simulate(module, np.zeros(1, np.int32), 5, options=Options(resident=4))

    def test_ranks_each_have_their_own_room(self):
        counts = [np.zeros(1, np.int32) for _ in range(3)]
        module = lowered(lambda: kernels.gathering, hosts=2)
        simulate_chain([[Launch(module, (count, 4))] for count in counts], options=Options(resident=4))
        assert [int(count[0]) for count in counts] == [4] * 3

    def test_no_room_at_all(self):
        with pytest.raises(BadInput, match="resident"):
            Options(resident=0)
