"""Always-on checks and what options make of them: poison, alignment, memory nothing has written, bounds."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from k3lab.errors import BadInput
from k3lab.lowering.ir import Module, Type
from k3lab.lowering.types import parse_type
from k3lab.sim.faults import SimFault
from k3lab.sim.launch import simulate
from k3lab.sim.memory.regions import SharedRegion
from k3lab.sim.options import Options
from tests.sim.test_micro_kit import F32, GLOBAL, I8, I32, I64, LDS, Build, run

I16 = parse_type("i16")
LANE = np.arange(64)
V2, V4 = parse_type("vector<2xi32>"), parse_type("vector<4xi32>")
PRIVATE = parse_type("!llvm.ptr<5>")
STRUCT = parse_type("!llvm.struct<(i32, i32)>")


class Poisonous(Build):
    """A kernel of (source, destination): `amounts` are the lanes' words of the source."""

    def __init__(self) -> None:
        super().__init__(GLOBAL, GLOBAL)
        self.lane = self.thread()
        self.amounts = self.load(I32, self.params[0], self.lane)
        self.zero, self.one, self.wide = (self.constant(I32, x) for x in (0, 1, 32))
        self.shifted = self.op("llvm.lshr", self.lane, self.amounts, gives=I32)

    def poison(self, kind: Type = I32) -> int:
        return self.op("llvm.mlir.poison", gives=kind)

    def result(self, value: int) -> Module:
        """Store it, and end."""
        self.store(value, self.params[1], self.lane)
        self.ret()
        return self.module(groups=1)

    def insert(self, vector: int, value: int, place: int) -> int:
        return self.op("llvm.insertelement", vector, value, self.constant(I64, place), gives=self.types[vector])

    def extract(self, vector: int, place: int) -> int:
        return self.op("llvm.extractelement", vector, self.constant(I64, place), gives=I32)


FINE = np.arange(64, dtype=np.int32) % 32
FAR = np.where(LANE == 9, 32, FINE).astype(np.int32)


def ends(module: Module, src: np.ndarray, **options: Any) -> str:
    """The finding's message, or nothing."""
    try:
        run(module, src, np.zeros(256, np.int32), **options)
    except SimFault as fault:
        assert fault.finding.kind == "poison"
        assert fault.finding.where.loc is not None and fault.finding.where.lane == 9
        return fault.finding.message
    return ""


def stored(build: Poisonous) -> Module:
    return build.result(build.shifted)


def added_and_stored(build: Poisonous) -> Module:
    return build.result(build.add(build.add(build.shifted, build.one), build.lane))


def branched_on(build: Poisonous) -> Module:
    build.cond(build.icmp("slt", build.shifted, build.one), ("end", ()), ("end", ()))
    build.at("end")
    return build.result(build.lane)


def loaded_from(build: Poisonous) -> Module:
    return build.result(build.load(I32, build.params[0], build.op("llvm.and", build.shifted, build.one, gives=I32)))


def passed_on_and_stored(build: Poisonous) -> Module:
    build.cond(build.icmp("slt", build.lane, build.wide), ("end", (build.shifted,)), ("end", (build.lane,)))
    [value] = build.at("end", I32)
    return build.result(value)


def stored_after_a_loop(build: Poisonous) -> Module:
    """Two values change places in every turn."""
    build.br("loop", build.zero, build.shifted, build.lane)
    turn, mine, other = build.at("loop", I32, I32, I32)
    turn = build.add(turn, build.one)
    build.cond(build.icmp("slt", turn, build.constant(I32, 5)), ("loop", (turn, other, mine)), ("end", (mine,)))
    [value] = build.at("end", I32)
    return build.result(value)


def selected(build: Poisonous) -> Module:
    return build.result(
        build.op("llvm.select", build.icmp("ule", build.amounts, build.wide), build.shifted, build.lane, gives=I32)
    )


def selected_by(build: Poisonous) -> Module:
    return build.result(
        build.op("llvm.select", build.icmp("eq", build.shifted, build.one), build.one, build.one, gives=I32)
    )


def through_a_vector(build: Poisonous) -> Module:
    pair = build.insert(build.insert(build.poison(V2), build.shifted, 0), build.lane, 1)
    return build.result(build.extract(build.op("llvm.add", pair, pair, gives=V2), 0))


def through_other_bits(build: Poisonous) -> Module:
    pair = build.insert(build.insert(build.poison(V2), build.lane, 0), build.shifted, 1)
    return build.result(build.op("llvm.trunc", build.op("llvm.bitcast", pair, gives=I64), gives=I32))


def from_another_lane(build: Poisonous) -> Module:
    """Lane 41 reads lane 9."""
    place = build.op(
        "llvm.shl", build.op("llvm.xor", build.lane, build.wide, gives=I32), build.constant(I32, 2), gives=I32
    )
    moved = build.op("rocdl.ds_bpermute", place, build.shifted, gives=I32)
    build.cond(build.icmp("ult", build.lane, build.wide), ("out", ()), ("end", ()))
    build.at("end")
    build.store(moved, build.params[1], build.op("llvm.sub", build.lane, build.wide, gives=I32))
    build.br("out")
    build.at("out")
    build.ret()
    return build.module(groups=1)


def voted_on(build: Poisonous) -> Module:
    votes = build.op("rocdl.ballot", build.icmp("eq", build.shifted, build.one), gives=I64)
    build.cond(build.icmp("eq", votes, build.constant(I64, 0)), ("end", ()), ("end", ()))
    build.at("end")
    return build.result(build.lane)


def as_an_index(build: Poisonous) -> Module:
    four = build.op("llvm.mlir.zero", gives=V4)
    return build.result(
        build.op(
            "llvm.extractelement",
            four,
            build.op("llvm.lshr", build.amounts, build.constant(I32, 3), gives=I32),
            gives=I32,
        )
    )


@pytest.mark.parametrize(
    "make",
    [
        stored,
        added_and_stored,
        branched_on,
        loaded_from,
        passed_on_and_stored,
        stored_after_a_loop,
        selected,
        selected_by,
        through_a_vector,
        through_other_bits,
        as_an_index,
    ],
)
class TestPoisonThatShows:
    def test_it_is_found(self, make):
        assert ends(make(Poisonous()), FAR)

    def test_and_silent_without(self, make):
        assert ends(make(Poisonous()), FINE) == ""

    def test_and_in_random_order(self, make):
        assert ends(make(Poisonous()), FAR, schedule="random", seed=2)


@pytest.mark.parametrize(("make", "lane"), [(from_another_lane, 41), (voted_on, 0)])
def test_poison_that_crosses_lanes(make, lane):
    with pytest.raises(SimFault, match="poison") as caught:
        run(make(Poisonous()), FAR, np.zeros(256, np.int32))
    assert caught.value.finding.where.lane == lane
    assert ends(make(Poisonous()), FINE) == ""


def test_the_finding_names_both_places():
    message = ends(stored(Poisonous()), FAR)
    assert message == "llvm.store of what LLVM leaves undefined: shift by 32 bits or more, at micro.py:7:0"


def not_used(build: Poisonous) -> Module:
    return build.result(build.lane)


def not_selected(build: Poisonous) -> Module:
    return build.result(
        build.op("llvm.select", build.icmp("ult", build.amounts, build.wide), build.shifted, build.zero, gives=I32)
    )


def frozen(build: Poisonous) -> Module:
    return build.result(build.op("llvm.freeze", build.shifted, gives=I32))


def not_active(build: Poisonous) -> Module:
    """Only lanes whose shift is not too far shift and store."""
    build.cond(build.icmp("ult", build.amounts, build.wide), ("do", ()), ("out", ()))
    build.at("do")
    build.store(build.op("llvm.lshr", build.lane, build.amounts, gives=I32), build.params[1], build.lane)
    build.br("out")
    build.at("out")
    build.ret()
    return build.module(groups=1)


def computed_before_the_branch(build: Poisonous) -> Module:
    build.cond(build.icmp("ult", build.amounts, build.wide), ("do", ()), ("out", ()))
    build.at("do")
    build.store(build.shifted, build.params[1], build.lane)
    build.br("out")
    build.at("out")
    build.ret()
    return build.module(groups=1)


def replaced_in_a_loop(build: Poisonous) -> Module:
    build.br("loop", build.zero, build.shifted)
    turn, _ = build.at("loop", I32, I32)
    turn = build.add(turn, build.one)
    build.cond(build.icmp("slt", turn, build.constant(I32, 3)), ("loop", (turn, turn)), ("end", (turn,)))
    [value] = build.at("end", I32)
    return build.result(value)


def filled_vector(build: Poisonous) -> Module:
    pair = build.insert(build.insert(build.poison(V2), build.lane, 0), build.lane, 1)
    return build.result(build.op("llvm.add", pair, pair, gives=V2))


def half_filled_vector(build: Poisonous) -> Module:
    return build.result(build.extract(build.insert(build.poison(V2), build.lane, 1), 1))


def shuffled_vector(build: Poisonous) -> Module:
    pair = build.insert(build.poison(V2), build.lane, 0)
    return build.result(build.op("llvm.shufflevector", pair, build.poison(V2), gives=V4, mask=[0, 0, 0, 0]))


def filled_struct(build: Poisonous) -> Module:
    both = build.op("llvm.insertvalue", build.poison(STRUCT), build.lane, gives=STRUCT, position=[0])
    return build.result(build.op("llvm.extractvalue", both, gives=I32, position=[0]))


def other_lanes(build: Poisonous) -> Module:
    """A permutation of which the lane with poison takes no part."""
    place = build.constant(I32, 4 * 7)
    return build.result(build.op("rocdl.ds_bpermute", place, build.shifted, gives=I32))


def overwritten_lanes(build: Poisonous) -> Module:
    attrs = {"dppCtrl": 0xB1, "rowMask": 15, "bankMask": 15, "boundCtrl": True}
    return build.result(build.op("rocdl.update.dpp", build.poison(), build.lane, gives=I32, **attrs))


def masked_shift(build: Poisonous) -> Module:
    amount = build.op("llvm.and", build.amounts, build.constant(I32, 31), gives=I32)
    return build.result(build.op("llvm.lshr", build.lane, amount, gives=I32))


@pytest.mark.parametrize(
    "make",
    [
        not_used,
        not_selected,
        frozen,
        not_active,
        computed_before_the_branch,
        replaced_in_a_loop,
        filled_vector,
        half_filled_vector,
        shuffled_vector,
        filled_struct,
        other_lanes,
        overwritten_lanes,
        masked_shift,
    ],
)
def test_poison_that_does_not_show(make):
    assert ends(make(Poisonous()), FAR) == ""


def unfilled_vector(build: Poisonous) -> Module:
    return build.result(build.extract(build.insert(build.poison(V2), build.lane, 0), 1))


def unfilled_element_stored(build: Poisonous) -> Module:
    return build.result(build.insert(build.poison(V2), build.lane, 0))


def shuffled_from_nowhere(build: Poisonous) -> Module:
    both = build.op("llvm.mlir.zero", gives=V2)
    return build.result(build.op("llvm.shufflevector", both, both, gives=V2, mask=[0, -1]))


def unfilled_struct(build: Poisonous) -> Module:
    both = build.op("llvm.insertvalue", build.poison(STRUCT), build.lane, gives=STRUCT, position=[0])
    return build.result(build.op("llvm.extractvalue", both, gives=I32, position=[1]))


def passed_poison(build: Poisonous) -> Module:
    build.cond(build.icmp("eq", build.lane, build.constant(I32, 9)), ("end", (build.poison(),)), ("end", (build.lane,)))
    [value] = build.at("end", I32)
    return build.result(value)


def kept_lanes(build: Poisonous) -> Module:
    attrs = {"dppCtrl": 0xB1, "rowMask": 15, "bankMask": 3, "boundCtrl": True}
    return build.result(build.op("rocdl.update.dpp", build.poison(), build.lane, gives=I32, **attrs))


@pytest.mark.parametrize(
    "make",
    [unfilled_vector, unfilled_element_stored, shuffled_from_nowhere, unfilled_struct, passed_poison, kept_lanes],
)
def test_constant_poison_that_shows(make):
    with pytest.raises(SimFault, match="poison"):
        run(make(Poisonous()), FINE, np.zeros(256, np.int32))


@pytest.mark.parametrize(
    ("name", "kind", "attrs", "bad", "good"),
    [
        ("llvm.add", I32, {"overflowFlags": 1}, (2**31 - 1, 1), (2**31 - 2, 1)),
        ("llvm.mul", I32, {"overflowFlags": 2}, (2**16, 2**16), (2**16, 2**15)),
        ("llvm.mul", I32, {"overflowFlags": 1}, (2**16, 2**15), (2**16, 2**14)),
        ("llvm.shl", I32, {"overflowFlags": 1}, (1, 31), (1, 30)),
        ("llvm.shl", I32, {"overflowFlags": 2}, (2, 31), (1, 31)),
        ("llvm.ashr", I32, {"isExact": True}, (6, 2), (8, 2)),
        ("llvm.lshr", I32, {"isExact": True}, (1, 1), (2, 1)),
        ("llvm.sdiv", I32, {"isExact": True}, (-7, 2), (-8, 2)),
        ("llvm.udiv", I32, {"isExact": True}, (7, 2), (8, 2)),
        ("llvm.sdiv", I32, {}, (-(2**31), -1), (-(2**31), 1)),
        ("llvm.urem", I32, {}, (3, 0), (3, 2)),
        ("llvm.or", I32, {"isDisjoint": True}, (3, 1), (2, 1)),
        ("llvm.trunc", I16, {"overflowFlags": 1}, (40000,), (30000,)),
        ("llvm.trunc", I16, {"overflowFlags": 2}, (70000,), (60000,)),
        ("llvm.zext", I64, {"nonNeg": True}, (-1,), (1,)),
        ("llvm.intr.abs", I32, {"is_int_min_poison": True}, (-(2**31),), (-5,)),
        ("llvm.intr.cttz", I32, {"is_zero_poison": True}, (0,), (1,)),
    ],
    ids=str,
)
def test_broken_promises(name, kind, attrs, bad, good):
    for operands, wrong in ((bad, True), (good, False)):
        build = Build(GLOBAL, GLOBAL)
        values = [build.load(I32, build.params[0], build.constant(I32, i)) for i in range(len(operands))]
        result = build.op(name, *values, gives=kind, **attrs)
        build.store(result, build.params[1], build.thread())
        build.ret()
        out, source = np.zeros(64, np.int64), np.array(operands, np.int32)
        if wrong:
            with pytest.raises(SimFault, match="poison"):
                run(build.module(groups=1), source, out)
        else:
            run(build.module(groups=1), source, out)


def test_a_float_outside_of_the_integers():
    build = Build(GLOBAL, GLOBAL)
    value = build.load(F32, build.params[0], build.thread())
    build.store(build.op("llvm.fptosi", value, gives=I32), build.params[1], build.thread())
    build.ret()
    module, out = build.module(groups=1), np.zeros(64, np.int32)
    run(module, np.linspace(-2e9, 2e9, 64).astype(np.float32), out)
    with pytest.raises(SimFault, match="float outside"):
        run(module, np.full(64, 3e9, np.float32), out)


def test_a_compiled_shift_that_is_too_far():
    """No fault where a guard keeps the result from being stored; else at the store, naming the shift."""
    amounts = np.where(LANE == 9, 40, 3).astype(np.int32)
    out = np.full(64, -1, np.int32)
    simulate(lowered("shifting", 3), amounts, out, 1)
    assert out.tolist() == np.where(LANE == 9, -1, LANE >> 3).tolist()
    simulate(lowered("shifting", 3), amounts % 32, out, 0)
    with pytest.raises(SimFault, match=r"poison: llvm.store of .* shift by 32 bits.*check_kernels.*lane 9") as caught:
        simulate(lowered("shifting", 3), amounts, out, 0)
    assert caught.value.finding.where.lane == 9


def test_options_for_poison():
    module = stored(Poisonous())
    engine = run(module, FAR, np.zeros(256, np.int32), poison="warn")
    [finding] = engine.findings
    assert finding.kind == "poison" and finding.where.lane == 9
    assert run(module, FAR, np.zeros(256, np.int32), poison="off").findings == []
    assert run(module, FINE, np.zeros(256, np.int32), poison="warn").findings == []
    for make in (unfilled_vector, passed_poison):
        assert run(make(Poisonous()), FINE, np.zeros(256, np.int32), poison="off").findings == []
        assert len(run(make(Poisonous()), FINE, np.zeros(256, np.int32), poison="warn").findings) == 1


class TestAtomics:
    @pytest.mark.parametrize(("name", "number"), [("uinc_wrap", 15), ("udec_wrap", 16), ("usub_cond", 17)])
    def test_counters(self, name, number):
        build = Build(GLOBAL)
        base, lane = build.params[0], build.thread()
        place = build.element(I32, base, build.constant(I32, 0))
        before = build.op("llvm.atomicrmw", place, build.constant(I32, 5), gives=I32, bin_op=number)
        build.store(before, base, build.add(lane, build.constant(I32, 1)))
        build.ret()
        out = np.zeros(65, np.int32)
        out[0] = 100 if name == "usub_cond" else 3
        run(build.module(groups=1), out)
        wanted = {
            "uinc_wrap": [(3 + i) % 6 for i in range(64)],
            "udec_wrap": [(3 - i) % 6 for i in range(64)],
            "usub_cond": [max(100 - 5 * i, 0) for i in range(64)],
        }
        assert out[1:].tolist() == wanted[name]

    def test_pairs_of_halves_through_a_generic_pointer_to_lds(self):
        """Each lane adds (1, its number) in f16 to one word of LDS."""
        halves = parse_type("vector<2xf16>")
        f16, generic = parse_type("f16"), parse_type("!llvm.ptr")
        build = Build(GLOBAL)
        lane, base = build.thread(), build.lds("shared")
        build.store(build.constant(I32, 0), base, build.constant(I32, 0))
        build.op("rocdl.s.barrier")
        pair = build.op("llvm.mlir.poison", gives=halves)
        numbers = build.constant(f16, 1.0), build.op("llvm.sitofp", lane, gives=f16)
        for place, number in enumerate(numbers):
            pair = build.op("llvm.insertelement", pair, number, build.constant(I64, place), gives=halves)
        anywhere = build.op("llvm.addrspacecast", base, gives=generic)
        build.op("llvm.atomicrmw", anywhere, pair, gives=halves, bin_op=11)
        build.op("rocdl.s.barrier")
        build.store(build.load(I32, base, build.constant(I32, 0)), build.params[0], lane)
        build.ret()
        out = np.zeros(64, np.int32)
        run(build.module(groups=1, lds=16), out)
        assert out[:1].view(np.float16).tolist() == [64, 2016]


class TestPrivate:
    @staticmethod
    def module(stores: bool) -> Module:
        """Two words of each lane's own; the second one is read, and written before if `stores`."""
        build = Build(GLOBAL)
        lane, one = build.thread(), build.constant(I32, 1)
        base = build.op("llvm.alloca", build.constant(I32, 2), gives=PRIVATE, elem_type=I32)
        build.store(lane, base, build.constant(I32, 0))
        if stores:
            build.store(build.add(lane, lane), base, one)
        build.store(build.load(I32, base, one), build.params[0], lane)
        build.ret()
        return build.module(groups=1)

    def test_written(self):
        out = np.zeros(64, np.int32)
        run(self.module(True), out)
        assert out.tolist() == (2 * LANE).tolist()

    def test_not_written(self):
        with pytest.raises(SimFault, match="uninitialised: load of 4 bytes of private memory"):
            run(self.module(False), np.zeros(64, np.int32))

    @pytest.mark.parametrize(("how", "word"), [("nan", 0x7FA17FA1), ("zero", 0)])
    def test_filled(self, how, word):
        out = np.full(64, 7, np.int32)
        assert run(self.module(False), out, uninitialised=how).findings == [] and (out == word).all()


def test_a_bit_made_of_many():
    """Poison is followed per wave: another wave's lanes stay clean when they meet again."""
    build = Poisonous()
    build.cond(
        build.icmp("ult", build.lane, build.constant(I32, 64)), ("end", (build.shifted,)), ("end", (build.lane,))
    )
    [value] = build.at("end", I32)
    build.cond(build.icmp("ugt", build.lane, build.constant(I32, 63)), ("do", ()), ("out", ()))
    build.at("do")
    build.store(value, build.params[1], build.lane)
    build.br("out")
    build.at("out")
    build.ret()
    module = build.module(groups=1, threads=128)
    run(module, np.concatenate([FAR, FINE]), np.zeros(256, np.int32))
    run(module, np.concatenate([FAR, FAR]), np.zeros(256, np.int32))


# -- memory that nothing has written, bounds, alignment ----------------------------------------------------------------

SCRATCH = SharedRegion("X", 0, 64, 192, "rows", scratch=True)
SIGNALLING = 0x7FA17FA1


@cache
def lowered(name: str, hosts: int) -> Module:
    pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")
    from k3lab.lowering.capture import lower
    from tests.sim import check_kernels

    return lower(getattr(check_kernels, name), *[0] * hosts)


class TestScratch:
    """64 words, of which the last 48 are declared scratch."""

    @staticmethod
    def run(written: int, regions: Any = (SCRATCH,), **options: Any) -> tuple[np.ndarray, Any]:
        rows, out = np.full(64, 5, np.int32), np.zeros(64, np.int32)
        engine = simulate(
            lowered("scratch", 3), rows, out, written, names={0: "X"}, options=Options(**options), regions=regions
        )
        return out, engine

    @pytest.mark.parametrize("memory", ["sequential", "relaxed"])
    def test_all_of_it_written(self, memory):
        out, engine = self.run(64, memory=memory)
        assert out.tolist() == (LANE * 3).tolist() and engine.findings == []

    @pytest.mark.parametrize("memory", ["sequential", "relaxed"])
    def test_a_word_that_is_not(self, memory):
        with pytest.raises(SimFault, match=r"uninitialised: load of 4 bytes at X \+ 252 .*check_kernels.py") as caught:
            self.run(63, memory=memory)
        assert caught.value.finding.where.lane == 63

    def test_what_is_not_declared(self):
        assert self.run(3, regions=())[0].tolist() == np.where(LANE < 3, LANE * 3, 5).tolist()
        declared = SharedRegion("X", 0, 0, 256, "rows")
        assert self.run(3, regions=(declared,))[0].tolist() == np.where(LANE < 3, LANE * 3, 5).tolist()

    def test_warn(self):
        out, engine = self.run(20, uninitialised="warn")
        assert out.tolist() == np.where(LANE < 20, LANE * 3, 5).tolist()
        assert [finding.kind for finding in engine.findings] == ["uninitialised"]

    @pytest.mark.parametrize(("how", "word"), [("nan", SIGNALLING), ("zero", 0)])
    def test_filled(self, how, word):
        out, engine = self.run(20, uninitialised=how)
        assert out.tolist() == np.where(LANE < 20, LANE * 3, word).tolist() and engine.findings == []

    def test_only_rows(self):
        with pytest.raises(BadInput, match="only rows"):
            SharedRegion("F", 0, 0, 64, "flags", scratch=True)


class TestLds:
    @staticmethod
    def run(written: int, distance: int = 0, **options: Any) -> tuple[np.ndarray, Any]:
        out = np.zeros(64, np.int32)
        return out, simulate(lowered("local", 3), out, written, distance, options=Options(**options))

    def test_a_word_that_nothing_has_written(self):
        with pytest.raises(SimFault, match="uninitialised: load of 4 bytes at LDS \\+ 160") as caught:
            self.run(40)
        assert caught.value.finding.where.lane == 40
        assert self.run(64)[0].tolist() == (LANE * 5).tolist()

    @pytest.mark.parametrize(("how", "word"), [("nan", SIGNALLING), ("zero", 0), ("warn", 0)])
    def test_filled(self, how, word):
        out, engine = self.run(40, uninitialised=how)
        assert out.tolist() == np.where(LANE < 40, LANE * 5, word).tolist()
        assert len(engine.findings) == (how == "warn")

    def test_the_pattern_is_a_signalling_nan(self):
        word = np.array([SIGNALLING], np.uint32)
        assert np.isnan(word.view(np.float32))[0] and not word[0] >> 22 & 1
        bf16 = np.array([SIGNALLING & 0xFFFF], np.uint32) << 16
        assert np.isnan(bf16.view(np.float32))[0] and not bf16[0] >> 22 & 1

    @pytest.mark.parametrize("distance", [1, -1, 1000])
    def test_bounds(self, distance):
        with pytest.raises(SimFault, match="out-of-bounds: load of 4 bytes at LDS"):
            self.run(64, distance)
        out, engine = self.run(64, distance, out_of_bounds="hardware")
        there = (LANE + distance >= 0) & (LANE + distance < 64)
        assert out.tolist() == np.where(there, (LANE + distance) * 5, 0).tolist()
        assert [finding.kind for finding in engine.findings] == ["out-of-bounds"]
        assert engine.counts["access out of bounds"] == 1

    def test_words_at_any_byte(self):
        """A word that lies across two is written in both, and read from both."""
        build = Build(GLOBAL)
        lane, base = build.thread(), build.lds("shared")
        octet = {"elem_type": I8, "rawConstantIndices": [2]}
        odd = build.op("llvm.getelementptr", base, gives=LDS, **octet)
        build.op("llvm.store", lane, odd, alignment=1)
        across = build.op("llvm.getelementptr", odd, gives=LDS, **octet)
        build.op("llvm.store", build.op("llvm.load", across, gives=I16, alignment=2), build.params[0], alignment=2)
        further = build.op("llvm.getelementptr", across, gives=LDS, **octet)
        build.op("llvm.store", build.op("llvm.load", further, gives=I32, alignment=1), build.params[0], alignment=1)
        build.ret()
        with pytest.raises(SimFault, match="uninitialised: load of 4 bytes at LDS \\+ 6") as caught:
            run(build.module(groups=1, lds=16), np.zeros(64, np.int32))
        assert caught.value.finding.message.endswith("which nothing has written")

    def test_stores_out_of_bounds_are_dropped(self):
        build = Build(GLOBAL)
        lane, base = build.thread(), build.lds("shared")
        build.store(lane, base, build.add(lane, lane))  # half of it is beyond
        build.store(build.load(I32, base, build.constant(I32, 6)), build.params[0], lane)
        build.ret()
        module, out = build.module(groups=1, lds=256), np.zeros(64, np.int32)
        with pytest.raises(SimFault, match="out-of-bounds: store of 4 bytes at LDS"):
            run(module, out)
        engine = run(module, out, out_of_bounds="hardware")
        assert (out == 3).all() and [finding.kind for finding in engine.findings] == ["out-of-bounds"]


class TestBounds:
    @staticmethod
    def run(distance: int, **options: Any) -> tuple[np.ndarray, Any]:
        src, out = np.arange(1, 65, dtype=np.int32), np.full(64, -1, np.int32)
        module = lowered("reaching", 3)
        return out, simulate(module, src, out, distance, names={0: "x", 1: "y"}, options=Options(**options))

    def test_inside(self):
        out, engine = self.run(0, out_of_bounds="hardware")
        assert out.tolist() == (LANE + 1).tolist() and engine.findings == [] and not engine.counts

    def test_raised(self):
        with pytest.raises(SimFault, match=r"out-of-bounds: load of 4 bytes at x \+ 256 .*check_kernels.py"):
            self.run(3)

    @pytest.mark.parametrize("memory", ["sequential", "relaxed"])
    @pytest.mark.parametrize("distance", [3, -5, 64, 10**6])
    def test_as_the_hardware(self, distance, memory):
        """Loads give 0, stores are dropped, each is kept once for its line and counted."""
        out, engine = self.run(distance, out_of_bounds="hardware", memory=memory)
        there = (LANE - distance >= 0) & (LANE - distance < 64) & (LANE + 0 >= 0)
        assert out.tolist() == np.where(there, LANE + 1, -1).tolist()
        assert [finding.kind for finding in engine.findings] == ["out-of-bounds"] * 2
        assert "load" in engine.findings[0].message and "store" in engine.findings[1].message
        assert engine.counts["access out of bounds"] == 2

    def test_atomics(self):
        build = Build(GLOBAL)
        lane = build.thread()
        address = build.element(I32, build.params[0], lane)
        build.op("llvm.atomicrmw", address, lane, gives=I32, bin_op=1)
        build.ret()
        module, out = build.module(groups=1), np.ones(60, np.int32)
        with pytest.raises(SimFault, match="out-of-bounds"):
            run(module, out.copy())
        run(module, out, out_of_bounds="hardware")
        assert out.tolist() == (np.arange(60) + 1).tolist()


class TestAlignment:
    """Promised alignments hold in global memory and in LDS, of loads, stores and atomics."""

    def test_global(self):
        src, out = np.arange(65, dtype=np.int32), np.zeros(64, np.int32)
        simulate(lowered("wide", 3), src, out, 4)
        assert out.tolist() == (LANE + 1).tolist()
        with pytest.raises(
            SimFault, match=r"misaligned: address is 2 past a multiple of the promised 4.*check_kernels"
        ):
            simulate(lowered("wide", 3), src, out, 2)

    def test_lds(self):
        out = np.zeros(64, np.int32)
        simulate(lowered("crooked", 2), out, 8)
        assert out.tolist() == LANE.tolist()
        with pytest.raises(SimFault, match="misaligned: address is 1 past a multiple of the promised 4"):
            simulate(lowered("crooked", 2), out, 1)

    @pytest.mark.parametrize("name", ["llvm.atomicrmw", "llvm.cmpxchg"])
    def test_atomics(self, name):
        build = Build(GLOBAL)
        one = build.constant(I32, 1)
        octet = build.op(
            "llvm.getelementptr", build.params[0], one, gives=GLOBAL, elem_type=I8, rawConstantIndices=[-(2**31)]
        )
        if name == "llvm.cmpxchg":
            build.op(name, octet, one, one, gives=STRUCT)
        else:
            build.op(name, octet, one, gives=I32, bin_op=1)
        build.ret()
        with pytest.raises(SimFault, match="misaligned"):
            run(build.module(groups=1), np.zeros(4, np.int32))


@pytest.mark.parametrize("name", ["uninitialised", "out_of_bounds", "poison"])
def test_options_are_checked(name):
    with pytest.raises(BadInput, match=name):
        Options(**{name: "whatever"})
