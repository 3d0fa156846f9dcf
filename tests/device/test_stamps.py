"""Time stamps, and the locals that stages of different builds hand over."""

from __future__ import annotations

import re

import numpy as np
import pytest

from k3lab.formats import bf16_bits, bf16_values
from k3lab.lowering.assembly import functions
from k3lab.lowering.isa import compile_isa

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from tests.device.toy import CHECKS, GEOMETRY, SCHEDULES, TOY, Toy

every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=("default", "random"))


@every_schedule
def test_stamps_are_in_order_and_what_a_cta_skips_is_0(schedule):
    """With room for 6 CTAs at once, so that others start late."""
    toy = Toy("pacing", timeline=True)
    toy.run(**CHECKS, **schedule, resident=6)
    start, one, two, skipped, last = toy["tl"].T
    assert (skipped == 0).all() and (two[1:] == 0).all()
    assert (start > 0).all() and (start > start.min() + 1000).sum() == len(start) - 6
    assert (start < one).all() and (one < last).all() and one[0] < two[0] < last[0]


def test_stamps_leave_the_cta_once_at_the_end():
    """A global store a point, all after the last clock read: none sits in front of a drain."""
    (kernel,) = functions(compile_isa(Toy("stamping", timeline=True).module).text)
    clocks = [place for place, at in enumerate(kernel.instructions) if at.opcode == "s_memrealtime"]
    wide = [place for place, at in enumerate(kernel.instructions) if at.family == "global store" and at.width >= 8]
    assert len(clocks) == 4
    assert sum(kernel.instructions[place].width for place in wide) == 8 * len(TOY.stamps)
    assert min(wide) > max(clocks)


def test_with_the_timeline_off_nothing_is_left():
    """Neither in the IR nor in the assembly, which is that of a source without a stamp."""
    assert "s.memrealtime" in Toy("stamping", timeline=True).module.text
    silent, plain = Toy("stamping").module, Toy("unstamped").module
    assert "s.memrealtime" not in silent.text and "memtime" not in silent.text
    texts = [[at.text for at in functions(compile_isa(m).text)[0].instructions] for m in (silent, plain)]
    assert texts[0] == texts[1]
    assert not re.findall(r"s_memr?e?a?l?time", compile_isa(silent).text)


def test_dumped_locals_come_back_as_they_were():
    """bf16 and fp32, by bits, NaN payloads among them; the making build and the taking build are two modules."""
    toy = Toy("locals_made", dumps=True, stages=frozenset({"make"}))
    values = np.random.default_rng(1).standard_normal(64).astype(np.float32)
    values = bf16_values(bf16_bits(values))
    values[:6] = [0.0, -0.0, np.inf, -np.inf, 2.0**-130, -1.0]
    values.view(np.uint32)[6:8] = [0x7F810000, 0xFFA50000]
    toy["src"][:64] = values.view(np.int32)
    toy.run(**CHECKS)
    assert (toy.local("half", np.uint16) == values.view(np.uint32) >> 16).all()
    assert (toy.local("full", np.uint32) == values.view(np.uint32)).all()
    assert not toy["out"].any()

    taking = Toy("locals_made", stages=frozenset({"take"}))
    taking["locals"][:] = toy["locals"]
    taking.run(**CHECKS)
    assert (taking["out"][:128].reshape(2, 64) == values.view(np.int32)).all()


def test_fp32_locals_keep_what_bf16_has_no_room_for():
    toy = Toy("locals_made", dumps=True, stages=frozenset({"make"}))
    toy.run(**CHECKS)
    assert (toy.local("full", np.int32) == toy["src"][:64]).all()


def test_without_dumps_nothing_is_written():
    toy = Toy("locals_made", stages=frozenset({"make"}))
    toy.run(**CHECKS)
    assert not toy["locals"].any()
    assert GEOMETRY.blocks == len(toy["tl"])
