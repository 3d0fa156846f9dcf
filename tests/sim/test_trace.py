"""A trace says what one wave computed, where, and with which lanes; it changes nothing."""

from __future__ import annotations

import inspect
import json

import numpy as np
import pytest

from k3lab.errors import BadInput
from k3lab.sim.chain import Launch, simulate_chain
from k3lab.sim.launch import simulate
from k3lab.sim.options import Options
from k3lab.sim.record.trace import Trace
from tests.sim.test_micro_kit import GLOBAL, I32, Build, run

LANE = np.arange(64)


class TestByHand:
    """Without FlyDSL: a store by half of the lanes."""

    @staticmethod
    def module(groups: int = 1):
        build = Build(GLOBAL)
        thread = build.thread()
        build.cond(build.icmp("slt", thread, build.constant(I32, 32)), ("half", ()), ("out", ()))
        build.at("half")
        build.store(build.add(thread, thread), build.params[0], thread)
        build.br("out")
        build.at("out")
        build.ret()
        return build.module(groups=groups)

    def test_masks_and_operands(self):
        trace = Trace()
        run(self.module(), np.zeros(64, np.int32), trace=trace)
        [add] = trace.named("llvm.add")
        assert add.mask.tolist() == (LANE < 32).tolist()
        assert add.value[:32].tolist() == (2 * LANE[:32]).tolist()
        assert add.operand_values[0].tolist() == LANE.tolist()
        assert add.text == f"%{add.result} = llvm.add %1, %1 : (i32, i32) -> i32"
        [store] = trace.named("llvm.store")
        assert store.result is None and store.value is None and add.lane(5) == 10
        assert trace.maker(store.number, 0) is add
        assert trace.of(add.result) == [add]

    def test_another_wave_is_not_recorded(self):
        trace = Trace(group=3)
        run(self.module(groups=2), np.zeros(64, np.int32), trace=trace)
        assert len(trace) == 0

    def test_another_device(self):
        """Two devices with an argument each: the second one's wave is recorded."""
        build = Build(I32, GLOBAL)
        build.store(build.add(build.params[0], build.params[0]), build.params[1], build.thread())
        build.ret()
        module, trace = build.module(groups=2), Trace(rank=1, group=1)
        queues = [[Launch(module, (number, np.zeros(64, np.int32)))] for number in (5, 7)]
        simulate_chain(queues, options=Options(trace=trace))
        assert [step.value[0] for step in trace.named("llvm.add")] == [14]

    def test_limit(self):
        trace = Trace(limit=3)
        run(self.module(), np.zeros(64, np.int32), trace=trace)
        assert len(trace) == 3 and trace.full

    def test_region(self):
        trace, out = Trace(), np.zeros(64, np.int32)
        run(self.module(), out, trace=trace)
        [store] = trace.named("llvm.store")
        base = int(store.operand_values[1][0])
        assert trace.touching(base + 12, 4) == [store]
        assert trace.touching(base + 32 * 4, 4) == []  # lane 32 is not active

    def test_buffer(self):
        trace = Trace()
        engine = run(self.module(), np.zeros(64, np.int32), trace=trace)
        [store] = trace.named("llvm.store")
        assert trace.touching_buffer(engine.globals, "argument 0") == [store]
        assert trace.touching_buffer(engine.globals, "argument 0", 128) == []
        with pytest.raises(BadInput, match="argument 0"):
            trace.touching_buffer(engine.globals, "y")

    def test_dicts_are_plain(self):
        trace = Trace(ops=("llvm.add",))
        run(self.module(), np.zeros(64, np.int32), trace=trace)
        [step] = json.loads(json.dumps(trace.as_dicts()))
        assert step["name"] == "llvm.add" and step["file"] == "micro.py" and step["value"][3] == 6
        assert sum(step["mask"]) == 32

    def test_npz(self, tmp_path):
        trace = Trace()
        run(self.module(), np.zeros(64, np.int32), trace=trace)
        path = trace.save(tmp_path / "new" / "trace")
        [add] = trace.named("llvm.add")
        with np.load(path) as saved:
            assert saved["text"][add.number] == add.text
            assert np.array_equal(saved[f"value_{add.number}"], add.value)
            assert np.array_equal(saved["mask"][add.number], add.mask)
            assert len(saved["line"]) == len(trace)

    def test_no_place_to_write(self, tmp_path):
        with pytest.raises(BadInput):
            Trace().save(tmp_path)

    @pytest.mark.parametrize("wrong", [{"group": -1}, {"wave": -1}, {"limit": 0}])
    def test_what_makes_no_sense(self, wrong):
        with pytest.raises(BadInput):
            Trace(**wrong)


def test_a_trace_of_a_compiled_kernel():
    pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")
    from k3lab.lowering.capture import lower
    from tests.sim import check_kernels as kernels

    lines = inspect.getsource(kernels).splitlines()
    loop, branch, vector, end = (
        next(i for i, line in enumerate(lines, 1) if line.endswith(mark))
        for mark in ("# in the loop", "# in the branch", "# a vector", "# the end")
    )
    src = (np.arange(256) % 64).astype(np.int32)
    module, plain, traced = lower(kernels.winding, 0, 0, 0), np.zeros(256, np.int32), np.zeros(256, np.int32)
    trace = Trace(group=1, wave=1)
    simulate(module, src, plain, 3)
    simulate(module, src, traced, 3, options=Options(trace=trace))
    assert np.array_equal(plain, traced)
    value = src[192:]

    products = [step for step in trace.at(loop, "check_kernels.py") if step.name == "llvm.mul"]
    assert [step.visit for step in products] == [0, 1, 2]
    assert [step.value.tolist() for step in products] == [(value * i).tolist() for i in range(3)]
    assert all(step.mask.all() and step.operand_values[0].tolist() == value.tolist() for step in products)

    taken = trace.at(branch)
    assert taken and all(step.mask.tolist() == (value > 40).tolist() for step in taken if step.name != "llvm.br")
    [difference] = [step for step in taken if step.name == "llvm.sub"]
    assert difference.value[value > 40].tolist() == (value * 3 - value * 100)[value > 40].tolist()
    assert str(difference).startswith(f"{difference.loc} visit 0: %") and "(23 lanes)" in str(difference)

    [four] = [step for step in trace.at(vector) if step.name == "llvm.load"]
    assert four.value.shape == (64, 4) and four.value[:, 1].tolist() == (src[4 * (LANE & 31) + 1]).tolist()
    [store] = [step for step in trace.between(vector, end) if step.name == "llvm.store"]
    assert store.operand_values[0].tolist() == traced[192:].tolist() and store.mask.all()

    begun, some = Trace(group=1, wave=1, start=branch), Trace(group=1, wave=1, lines=range(loop, loop + 1))
    for other in (begun, some):
        simulate(module, src, traced, 3, options=Options(trace=other))
    assert begun.steps[0].loc.line == branch and not begun.at(loop) and begun.at(end)
    assert {step.loc.line for step in some} == {loop}


def test_buffer_accesses_and_poison_in_a_trace():
    """What has a shadow is recorded as well; accesses by buffer resources are found by their place."""
    pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")
    from k3lab.lowering.capture import lower
    from tests.sim import check_kernels, kernels

    words, out, trace = np.arange(16, dtype=np.int32), np.zeros(64, np.int32), Trace()
    engine = simulate(lower(kernels.clamped, 0, 0), words, out, names={0: "x"}, options=Options(trace=trace))
    [load] = trace.touching_buffer(engine.globals, "x", 8, 4)
    assert load.name == "rocdl.raw.ptr.buffer.load" and load.lane(2) == 2 and load.lane(63) == 0

    amounts = np.where(LANE == 9, 40, 3).astype(np.int32)
    trace = Trace(ops=("llvm.?shr",))
    simulate(lower(check_kernels.shifting, 0, 0, 0), amounts, out, 1, options=Options(trace=trace))
    assert [step.value[8] for step in trace] == [1]


@pytest.mark.parametrize("settings", [{}, {"schedule": "random", "seed": 3}], ids=str)
def test_the_whole_of_a_larger_kernel_is_bit_identical(settings):
    pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")
    from k3lab.lowering.capture import lower
    from tests.sim import kernels

    src, outs, engines = np.random.default_rng(0).standard_normal(4000).astype(np.float32), [], []
    for trace in (None, Trace(group=2)):
        out = np.zeros(4, np.float32)
        engines.append(
            simulate(lower(kernels.reduction, 0, 0, 0, 0), src, out, 1000, 4, options=Options(trace=trace, **settings))
        )
        outs.append(out.tobytes())
    assert outs[0] == outs[1]
    assert engines[0].steps == engines[1].steps and engines[0].lane_instructions == engines[1].lane_instructions
    assert len(trace) > 200
