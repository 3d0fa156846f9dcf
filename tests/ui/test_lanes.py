"""The lane stepper's view says what a trace holds, and finds its way in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import k3lab.stages.kda.norm.twin as source
from k3lab.errors import BadInput
from k3lab.lowering.ir import Loc
from k3lab.sim.record.trace import Trace
from k3lab.ui.lanes import lane_texts, lane_view, mask_text, run_to, source_file, source_lines, values_of
from tests.ui.lane_trace import half_wave


@pytest.fixture(scope="module")
def trace():
    return half_wave()


def test_values_and_mask_of_a_step(trace):
    [add] = trace.named("llvm.add")
    assert list(values_of(add)) == ["result", "operand 0: %1", "operand 1: %1"]
    assert lane_texts(add.value)[:32] == [str(2 * lane) for lane in range(32)]
    assert mask_text(add.mask) == "0x00000000ffffffff"
    text = str(lane_view(trace, add.number))
    assert "exec mask <code>0x00000000ffffffff</code>: 32 lanes of 64 active" in text
    assert text.count(", off'") == 32 and text.count("<td") == 64 and add.text.replace(">", "&gt;") in text
    assert "title='lane 31'>62</td>" in text
    assert "title='lane 31'>31</td>" in str(lane_view(trace, add.number, "operand 0: %1"))


def test_a_store_shows_what_it_stores(trace):
    [store] = trace.named("llvm.store")
    assert "result" not in values_of(store)
    assert "title='lane 5'>10</td>" in str(lane_view(trace, store.number))


def test_vectors_and_structs():
    assert lane_texts(np.float32([[1.5, -2], [0, 3]])) == ["[1.5, -2]", "[0, 3]"]
    assert lane_texts((np.int32([1, 2]), np.array([True, False]))) == ["(1, True)", "(2, False)"]


def test_the_source_line(trace):
    lines = Path(source.__file__).read_text(encoding="utf-8").splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "r = a.rms_scale" in text)
    step = replace(trace.steps[0], loc=Loc(source.__file__, line, 1))
    text = str(source_lines(step))
    assert f"k3lab/stages/kda/norm/twin.py:{line}" in text and f"<b>▶ {line:4}     r = a.rms_scale" in text
    assert str(source_lines(replace(step, loc=None))).count("unknown") == 1
    assert source_file("/elsewhere/k3lab/stages/kda/norm/twin.py")[0].samefile(source.__file__)
    assert source_file("/gone/<kernel>.py") == (None, "<kernel>.py")
    assert "&lt;kernel&gt;.py:1" in str(source_lines(replace(step, loc=Loc("/gone/<kernel>.py", 1, 1))))


def test_run_to(trace):
    [add], [store] = trace.named("llvm.add"), trace.named("llvm.store")
    assert run_to(trace, 0, "llvm.add") == run_to(trace, 0, f"%{add.result}") == add.number
    assert run_to(trace, add.number, "llvm.st*") == store.number
    with pytest.raises(BadInput, match="after step"):
        run_to(trace, add.number, "llvm.add")
    placed = Trace()
    placed.steps = [replace(step, loc=Loc("a/kernel.py", 10 + step.number, 1)) for step in trace.steps]
    assert run_to(placed, 0, "13") == run_to(placed, 0, "kernel.py:13") == 3
    with pytest.raises(BadInput):
        run_to(placed, 0, "other.py:13")


def test_what_was_not_recorded_is_refused(trace):
    with pytest.raises(BadInput, match="empty"):
        lane_view(Trace())
    with pytest.raises(BadInput, match="step"):
        lane_view(trace, len(trace))
    with pytest.raises(BadInput, match="value"):
        lane_view(trace, 0, "operand 9")
