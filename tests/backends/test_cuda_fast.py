"""What the fast build knows of a kernel, on graphs made by hand and on the launches' kernels."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from k3lab.backends.cuda import device
from k3lab.backends.cuda.emit import Source, translate
from k3lab.backends.cuda.fast.alignment import alignment, check_aligned
from k3lab.backends.cuda.fast.chains import Chains
from k3lab.backends.cuda.fast.places import dealt
from k3lab.backends.cuda.fast.twice import Twice
from k3lab.backends.cuda.fast.waits import guarding, publishing
from k3lab.backends.cuda.uniform import Uniformity
from k3lab.errors import BadInput
from k3lab.kernels.host import Buffers
from k3lab.kernels.lowered import lowered
from k3lab.lowering.ir import Global, Module
from k3lab.lowering.parse import parse
from k3lab.lowering.types import parse_type
from k3lab.sim.checks.touch import drains
from k3lab.sim.decode.program import BARRIERS

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from tests.backends.made import BF16, I32, I64, IN_GLOBAL, IN_LDS, PAIR, SCALED, Made
from tests.backends.test_cuda_kernels import QUICK, case_of
from tests.backends.test_cuda_translation import lowered as small


@cache
def module_of(launch: str) -> Module:
    case = case_of(launch, QUICK[launch])
    return lowered(case.declaration, case.key, frozenset(stage.name for stage in case.declaration.stages))


class TestAlignment:
    LDS = Module({}, {"lds": Global("lds", 64, 4, 3), "far": Global("far", 64, 4, 1)}, (), (), "")

    def known(self, made: Made) -> Any:
        return alignment(made.graph(), self.LDS)

    @pytest.mark.parametrize(
        ("name", "by", "bytes_"),
        [
            ("llvm.mul", 1, 1), ("llvm.mul", 4, 4), ("llvm.mul", 12, 4), ("llvm.mul", 64, 16), ("llvm.mul", -8, 8),
            ("llvm.shl", 3, 8), ("llvm.and", -8, 8), ("llvm.and", 7, 1), ("llvm.or", 64, 1),
        ],
    )  # fmt: skip
    def test_a_stride_gives_what_it_is_multiplied_by(self, name, by, bytes_):
        made = Made(I64, I64)
        base, stride = made.params
        address = made("llvm.add", base, made(name, stride, made.constant(by)))
        pointer = made("llvm.inttoptr", address, kind=IN_GLOBAL)
        made.to()
        known = self.known(made)
        assert known.of(stride) == 1 and known.of(pointer) == bytes_
        assert known.assumed == (0,)

    def test_what_an_address_is_added_up_of_is_assumed(self):
        made = Made(I64, I64, I64)
        base, offset, other = made.params
        address = made("llvm.add", base, made("llvm.add", offset, made.constant(8)))
        pointer = made("llvm.inttoptr", address, kind=IN_GLOBAL)
        made.to()
        known = self.known(made)
        assert known.assumed == (0, 1) and known.of(pointer) == 8 and known.of(other) == 1

    @pytest.mark.parametrize("name", ["llvm.ashr", "llvm.lshr"])
    def test_a_shift_to_the_right_takes_as_many_away(self, name):
        made = Made(I64)
        wide = made("llvm.mul", made.params[0], made.constant(64))
        narrow, lost, by_any = (
            made(name, wide, made.constant(3)),
            made(name, wide, made.constant(9)),
            made(name, wide, made.params[0]),
        )
        made.to()
        assert [self.known(made).of(value) for value in (narrow, lost, by_any)] == [8, 1, 1]

    def test_a_choice_has_what_both_ways_have_and_both_are_assumed(self):
        made = Made(I64, I64, I32)
        one, other, which = made.params
        chosen = made("llvm.select", which, one, other)
        pointer = made("llvm.inttoptr", chosen, kind=IN_GLOBAL)
        uneven = made("llvm.select", which, made.constant(32), made.constant(4))
        made.to()
        known = self.known(made)
        assert known.assumed == (0, 1) and known.of(pointer) == 16 and known.of(uneven) == 4

    @pytest.mark.parametrize(("start", "step", "bytes_"), [(0, 32, 16), (0, 8, 8), (4, 32, 4), (3, 32, 1)])
    def test_a_loop_has_what_its_start_and_its_step_have(self, start, step, bytes_):
        made = Made(I32)
        made.to((1, (made.constant(start),)))
        (offset,) = made.block(I64)
        more = made("llvm.add", offset, made.constant(step))
        made.to((1, (more,)), (2, ()), when=made.params[0])
        made.block()
        made.to()
        assert self.known(made).of(offset) == bytes_

    @pytest.mark.parametrize(("index", "bytes_"), [(8, 16), (3, 2), (-4, 8), (None, 4)])
    def test_a_step_from_lds(self, index, bytes_):
        made = Made(I64)
        place = made("llvm.mlir.addressof", kind=IN_LDS, global_name="@lds")
        far = made("llvm.mlir.addressof", kind=IN_GLOBAL, global_name="@far")
        twos = made("llvm.mul", made.params[0], made.constant(2))
        indices = [-(1 << 31)] if index is None else [index]
        operands = (place, twos) if index is None else (place,)
        stepped = made("llvm.getelementptr", *operands, elem_type=parse_type("bf16"), rawConstantIndices=indices)
        made.to()
        known = self.known(made)
        assert (known.of(place), known.of(far), known.of(stepped)) == (16, 1, bytes_)
        assert known.of(place, stepped) == bytes_ and known.of(-1) == 1

    @pytest.mark.parametrize("launch", QUICK)
    def test_the_kernels_addresses_are_assumed_and_no_number_is(self, launch):
        case, module = case_of(launch, QUICK[launch]), module_of(launch)
        source = translate(module, True)
        held = Buffers.of(case.declaration, case.key, case.ranks[0]).arguments
        given = [held[which] for how, which in module.launches[0].args if how == "arg"]
        assert source.aligned and translate(module).aligned == ()
        assumed = [given[place] for place in source.aligned]
        weight = {"k1": "w_in", "m1a": "w_qkv", "k2a": "w_o"}[launch]
        assert {"scratch", weight} <= {each.tensor for each in assumed}
        assert all(each.tensor and each.axis < 0 and not each.size for each in assumed)
        weights = re.findall(r"k3_buffer_load<K3Vec<int, 4>, 2, (\d+), ", source.body)
        operands = re.findall(r"k3_load_lds<K3Vec<u16, 8>, (\d+)>", source.body)
        assert weights and operands and {*weights, *operands} == {"16"}

    def test_an_argument_that_is_not_aligned_is_refused(self):
        where = r"fast build of k: argument 2 of rank 1 of the launch"
        said = rf"{where}: expected .* multiple of 16, got 0x1008; .*exact build\.$"
        check_aligned("k", (0, 2), [16, 1, 32, 48, 7, 4096], 3)
        with pytest.raises(BadInput, match=said):
            check_aligned("k", (0, 2), [16, 1, 32, 48, 7, 4104], 3)

    def test_the_device_refuses_it_before_it_launches(self):
        source = Source("k", "", "", 64, 2, 0, 0, fast=True, aligned=(1,))
        with pytest.raises(BadInput, match="argument 1 of rank 1 of the launch"):
            device.start(device.Loaded(source, None, 2, 64, 0), 1, [8, 16, 8, 24], 0)


def branching(uniform: bool) -> tuple[Made, int, int]:
    """Two ways to an address in LDS, by the thread's number or by a parameter; that address, and what it holds."""
    made = Made(I32)
    thread = made("rocdl.workitem.id.x", kind=I32)
    place = made("llvm.mlir.addressof", kind=IN_LDS, global_name="@lds")
    by = made.params[0] if uniform else thread
    when = made("llvm.icmp", by, made.constant(3), predicate=2)
    steps = {"elem_type": parse_type("bf16"), "rawConstantIndices": [-(1 << 31)]}
    one = made("llvm.getelementptr", place, thread, kind=IN_LDS, **steps)
    other = made("llvm.getelementptr", place, made("llvm.mul", thread, made.constant(2)), kind=IN_LDS, **steps)
    made.to((1, ()), (2, ()), when=when)
    for passed in (one, other):
        made.block()
        made.to((3, (passed,)))
    (address,) = made.block(IN_LDS)
    return made, address, made.load(address)


def twice_of(made: Made) -> Twice:
    graph = made.graph()
    return Twice(graph, Uniformity.of(graph))


class TestTwice:
    @pytest.mark.parametrize("uniform", [True, False])
    def test_ways_that_lanes_may_have_come_by_apart_are_not_followed(self, uniform):
        made, address, loaded = branching(uniform)
        made.to()
        twice = twice_of(made)
        assert twice.can(address) == twice.can(loaded) == uniform

    def test_what_is_wanted_is_all_it_is_made_of_but_what_lanes_share(self):
        made, address, loaded = branching(True)
        spared = made.product(made.load(made.params[0], IN_GLOBAL), loaded, made.constant([0.0] * 4))
        made.to()
        twice = twice_of(made)
        twice.want(loaded)
        thread, place = 1, 2
        assert {thread, address, loaded} <= twice.wanted
        assert not {place, *made.params} & twice.wanted
        twice.spare({(spared, 1)})
        assert loaded in twice.spared and address not in twice.spared  # arguments are handed on for every lane

    @pytest.mark.parametrize("again", [True, False])
    def test_what_this_lane_needs_itself_is_not_spared(self, again):
        made, _, loaded = branching(True)
        product = made.product(made.load(made.params[0], IN_GLOBAL), loaded, made.constant([0.0] * 4))
        if again:
            made("llvm.store", loaded, made.params[0], kind=None)
        made.to()
        twice = twice_of(made)
        twice.want(loaded)
        twice.spare({(product, 1)})
        assert (loaded in twice.spared) == (not again)

    def test_other_memory_and_other_lanes_values_are_not_made_again(self):
        made = Made(I64)
        thread = made("rocdl.workitem.id.x", kind=I32)
        outside = made.load(thread, IN_GLOBAL)
        ordered = made("llvm.load", thread, kind=I32, of=IN_LDS, ordering=2)
        turned = made("rocdl.update.dpp", thread, thread, kind=I32, dppCtrl=0x121)
        sum_ = made("llvm.add", thread, turned)
        made.to()
        twice = twice_of(made)
        assert not any(map(twice.can, (outside, ordered, turned, sum_))) and twice.can(thread)

    def test_a_load_in_a_loop_that_lanes_leave_apart_is_not_made_again(self):
        """After the loop it is what LDS held in this lane's last round, and the other lane's may have been another."""
        made = Made(I64)
        thread = made("rocdl.workitem.id.x", kind=I32)
        made.to((1, ()))
        made.block()
        loaded = made.load(thread)
        made.to((1, ()), (2, ()), when=made("llvm.icmp", loaded, thread, predicate=0))
        made.block()
        made.to()
        assert not twice_of(made).can(loaded)

    def test_what_a_loop_hands_on_is_not_followed(self):
        made = Made(I32)
        thread = made("rocdl.workitem.id.x", kind=I32)
        made.to((1, (thread,)))
        (held,) = made.block(I32)
        more = made("llvm.add", held, made.constant(1))
        made.to((1, (more,)), (2, ()), when=made.params[0])
        made.block()
        made.to()
        assert not twice_of(made).can(held)


class TestChains:
    def made(self, kinds: str, start: float = 0.0) -> tuple[Made, list[int]]:
        """A chain for each word of `kinds`: operands from `l`ds or `g`lobal memory, or `s`caled products."""
        made = Made(I64)
        thread = made("rocdl.workitem.id.x", kind=I32)
        sums = []
        for chain in kinds.split():
            held = made.constant([start] * 4)
            for kind in chain:
                operand = made.load(thread, IN_GLOBAL if kind == "g" else IN_LDS)
                held = made.product(made.load(thread, IN_GLOBAL), operand, held, SCALED if kind == "s" else BF16)
                sums.append(held)
            made("llvm.store", held, thread, kind=None)
        made.to()
        return made, sums

    @pytest.mark.parametrize(
        ("kinds", "turned"),
        [
            ("lll", [0, 1, 2]),
            ("ggg", []),
            ("lgl", []),
            ("ll gg", [0, 1]),
            ("s ll", [1, 2]),
            ("ls", []),
            ("l l", [0, 1]),
        ],
    )
    def test_a_chain_is_turned_as_a_whole_or_not_at_all(self, kinds, turned):
        made, sums = self.made(kinds)
        graph = made.graph()
        twice = Twice(graph, Uniformity.of(graph))
        chains = Chains.of(graph, twice)
        ends = {len("".join(kinds.split()[: i + 1])) - 1 for i in range(len(kinds.split()))}
        assert chains.fragments == {value for place, value in enumerate(sums) if place not in ends}
        assert chains.turned == {sums[place] for place in turned}
        assert chains.all_turned == (len(turned) == len(sums))
        assert bool(twice.wanted) == bool(turned)

    @pytest.mark.parametrize(("start", "zero"), [(0.0, True), (-0.0, False), (1.0, False)])
    def test_a_chain_starts_from_plus_zero_only_without_an_exchange(self, start, zero):
        made, _ = self.made("l", start)
        graph = made.graph()
        assert bool(Chains.of(graph, Twice(graph, Uniformity.of(graph))).zeros) == zero

    def test_a_sum_that_is_looked_at_on_the_way_is_no_fragment(self):
        made, sums = self.made("ll")
        made.blocks[0][1].pop()
        made("llvm.store", sums[0], made.params[0], kind=None)
        made.to()
        graph = made.graph()
        assert not Chains.of(graph, Twice(graph, Uniformity.of(graph))).fragments


def polling(taken: bool = False, bounded: bool = False, word: bool = False, policy: int = 16) -> Made:
    """Block 1 polls; block 2 goes on, and takes the value if `taken`; block 3 gives up."""
    made = Made(I64, I64, I32)
    made.to((1, ()))
    made.block()
    read = made("rocdl.raw.ptr.buffer.load", *made.params[:1], kind=I32 if word else PAIR, aux=policy)
    tag = read if word else made("llvm.extractelement", read, made.constant(1), kind=I32)
    there = made("llvm.icmp", tag, made.params[2], predicate=0)
    if not bounded:
        made.to((2, ()), (1, ()), when=there)
    else:
        made.to((2, ()), (4, ()), when=there)
    made.block()
    if taken:
        made("llvm.extractelement", read, made.constant(0), kind=I32)
    made.to()
    made.block()
    made.to()
    if bounded:
        made.block()
        made.to((1, ()), (3, ()), when=made("llvm.icmp", made.params[1], made.params[1], predicate=2))
    return made


DRAIN, LDS_ONLY = 0x3F70, 0xC07F  # vmcnt 0, and lgkmcnt 0 alone


class TestWaits:
    @pytest.mark.parametrize("bounded", [False, True])
    def test_a_poll_for_a_flag_has_a_fence_after_it_and_one_for_data_none(self, bounded):
        def labels(**how: Any) -> set[str]:
            graph = polling(bounded=bounded, **how).graph()
            return {graph.blocks[number].label for number in guarding(graph)}

        after = {"b2", "b3"} if bounded else {"b2"}
        assert labels() == after and labels(word=True) == after
        assert labels(taken=True) == set() and labels(policy=0) == set()

    @pytest.mark.parametrize("value", [True, False])
    def test_a_pair_that_is_handed_on_to_where_its_value_is_taken_is_data(self, value):
        made = Made(I64, I64)
        made.to((1, ()))
        made.block()
        read = made("rocdl.raw.ptr.buffer.load", made.params[0], kind=PAIR, aux=16)
        made.to((1, ()), (2, (read,)), when=made("llvm.extractelement", read, made.constant(1), kind=I32))
        (held,) = made.block(PAIR)
        made("llvm.extractelement", held, made.constant(int(not value)), kind=I32)
        made.to()
        assert bool(guarding(made.graph())) == (not value)

    @pytest.mark.parametrize(
        ("ops", "barriers", "drained"),
        [
            ("db", {1}, {0}), ("d", set(), set()), ("b", set(), set()), ("bd", set(), set()), ("lb", set(), set()),
            ("dxb", {2}, {0}), ("ddb", {2}, {0, 1}), ("dbb", {1}, {0}), ("dbdb", {1, 3}, {0, 2}),
        ],
    )  # fmt: skip
    def test_the_barrier_after_a_drain_publishes(self, ops, barriers, drained):
        made = Made(I64)
        for kind in ops:
            if kind == "b":
                made("rocdl.s.barrier", kind=None)
            elif kind == "x":
                made("llvm.store", made.params[0], made.params[0], kind=None)
            else:
                made("rocdl.s.waitcnt", kind=None, bitfield=DRAIN if kind == "d" else LDS_ONLY)
        made.to()
        found = publishing(made.graph())
        assert (found.barriers, found.drains) == tuple(
            frozenset((0, place) for place in places) for places in (barriers, drained)
        )
        assert not found.flags

    def test_the_fence_stands_where_the_flag_is_put(self):
        """By one thread, in a block of its own; what all threads store after it has none."""
        made = Made(I64)
        self._publish(made)
        made.to((1, ()), (2, ()), when=made.params[0])
        made.block()
        self._store(made, 16)
        self._store(made, 16)
        made.to((2, ()))
        made.block()
        self._store(made, 16)
        made.to()
        found = publishing(made.graph())
        assert found.flags == {(1, 0)} and found.drains == {(0, 0)} and not found.barriers

    @pytest.mark.parametrize(
        ("policies", "barrier", "flags"),
        [
            ((16,), False, {2}),
            ((17, 16), False, {2}),
            ((0, 17), False, {3}),
            ((0,), False, set()),
            ((16,), True, set()),
        ],
    )
    def test_only_the_first_store_for_others_before_the_next_barrier_is_a_flag(self, policies, barrier, flags):
        made = Made(I64)
        self._publish(made)
        if barrier:
            made("rocdl.s.barrier", kind=None)
        for policy in policies:
            self._store(made, policy)
        made.to()
        found = publishing(made.graph())
        assert found.flags == {(0, place) for place in flags}
        assert found.barriers == (set() if flags else {(0, 1)})

    def _publish(self, made: Made) -> None:
        made("rocdl.s.waitcnt", kind=None, bitfield=DRAIN)
        made("rocdl.s.barrier", kind=None)

    def _store(self, made: Made, policy: int) -> None:
        made("rocdl.raw.ptr.buffer.store", made.params[0], made.params[0], kind=None, aux=policy)

    def test_where_the_fences_stand_in_the_text(self):
        body = translate(small("exchange"), True).body
        assert "k3_block_sync(); k3_fence" not in body
        assert len(re.findall(r"  k3_fence_device\(\);\n  k3_buffer_store", body)) == 1  # before the flag is put
        assert body.count("k3_fence_device();") == 2 and re.search(r"L\d+:;\n  k3_fence_device\(\);", body)
        text = small("exchange").text
        (barrier, *_) = re.findall(r".*(?:gpu|rocdl\.s)\.barrier.*\n", text)
        alone = translate(parse(text.replace(barrier, "", 1)), True).body
        assert "k3_block_sync(); k3_fence" not in alone and alone.count("  k3_fence_device();") == 2

    @pytest.mark.parametrize("launch", QUICK)
    def test_every_drain_of_the_kernels_is_published_by_the_flag_after_the_next_barrier(self, launch):
        module = module_of(launch)
        body = translate(module, True).body
        (kernel,) = module.kernels.values()
        count, waiting = 0, False
        for op in kernel.ops():
            waiting |= op.name == "rocdl.s.waitcnt" and drains(int(op.attrs["bitfield"]))
            if op.name in BARRIERS and waiting:
                count, waiting = count + 1, False
        assert count and not waiting
        scope = "system" if launch == "k2a" else "device"
        assert len(re.findall(rf"  k3_fence_{scope}\(\);\n  k3_buffer_store", body)) == count
        assert "k3_block_sync(); k3_fence" not in body and body.count("k3_block_sync();") > count


class TestPlaces:
    @pytest.mark.parametrize(
        ("units", "blocks", "attention", "ranks"),
        [(132, 188, 56, 1), (132, 94, 28, 2), (132, 264, 56, 1), (132, 66, 20, 4), (7, 10, 3, 1), (132, 132, 132, 1)],
    )
    def test_heavy_workgroups_lie_as_far_apart_as_they_can(self, units, blocks, attention, ranks):
        total = blocks * ranks
        where = np.random.default_rng(units + blocks).permutation(np.arange(total) % units).tolist()
        taken = dealt(where, blocks, attention)
        assert sorted(taken) == list(range(total))
        heavy = Counter(unit for unit, number in zip(where, taken, strict=True) if number % blocks >= attention)
        held = [heavy[unit] for unit in range(units)]
        count = ranks * (blocks - attention)
        assert sum(held) == count and max(held) <= -(-count // units) and min(held) >= count // units

    def test_188_on_132_units_is_one_each(self):
        taken = dealt([number % 132 for number in range(188)], 188, 56)
        assert taken[:132] == tuple(range(56, 188)) and taken[132:] == tuple(range(56))

    def test_a_deal_that_leaves_a_unit_more_than_its_share(self):
        """Three on one unit and one on the other: each takes a heavy one first."""
        assert dealt([5, 5, 5, 9], 4, 2) == (2, 0, 1, 3)
