"""Hand-offs: put and poll, stale tags, rows behind a flag, and bounded waits."""

from __future__ import annotations

from zlib import crc32

import numpy as np
import pytest

from k3lab.errors import BadInput
from k3lab.layout import EPOCHS, step_tag
from k3lab.sim.faults import SimFault

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from tests.device.toy import CHECKS, GEOMETRY, SCHEDULES, WAIT_TICKS, Toy
from tests.device.toy_kernels import HANDED, LANES, PRODUCERS, PUT_LANES

PAIRS = LANES * HANDED
THREADS = 512
every_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=("default", "random"))


def run(toy: Toy, schedule: dict, **options: object) -> Toy:
    toy.run(**CHECKS, **schedule, **options)
    return toy


@every_schedule
@pytest.mark.parametrize("memory", ["sequential", "relaxed"])
def test_a_full_batch_of_one_and_two_pairs(schedule, memory):
    """Values by bits, NaN payloads among them; every pair carries the tag."""
    toy = Toy("handing")
    toy["src"][:4] = [0x7F800001, 0x7FA5A5A5, -1, 0]
    run(toy, schedule, memory=memory)
    assert (toy["out"][:PAIRS] == toy["src"][:PAIRS]).all() and not toy["out"][PAIRS:].any()
    assert (toy.pairs("A")[:, 0] == toy["src"][:PAIRS]).all() and (toy.pairs("A")[:, 1] == step_tag(1, 3)).all()


def test_a_batch_has_12_specs_at_most():
    with pytest.raises(BadInput, match="poll: expected at most 12 specs, got 13"):
        _ = Toy("too_many").module


@pytest.mark.parametrize("slot", [0, 255])
@pytest.mark.parametrize("epoch", [0, 1, EPOCHS - 1, EPOCHS, EPOCHS + 1, 2**31 - 1])
def test_tags(epoch, slot):
    toy = Toy("tagging")
    toy["epoch"][0], toy.arrays["slot"] = epoch, slot
    toy.run()
    expected = (epoch % 2**22) * 256 + slot + 1
    assert toy["out"][0] == expected == step_tag(epoch, slot) > 0


STALE = ((EPOCHS, 3, EPOCHS - 1, 3), (EPOCHS, 3, EPOCHS, 2), (EPOCHS - 1, 255, EPOCHS - 2, 255), (0, 0, 0, 255))
"""This launch's epoch and slot, and another launch's: the step before across the wrap, the launch before, ..."""


@every_schedule
@pytest.mark.parametrize("when", STALE, ids=str)
def test_pairs_of_another_launch_are_never_taken(when, schedule):
    """Every pair holds a wrong value under another launch's tag before the run."""
    toy = Toy("handing")
    toy["epoch"][0], toy.arrays["slot"] = when[:2]
    toy.pairs("A")[:] = (-5, step_tag(*when[2:]))
    run(toy, schedule)
    assert (toy["out"][:PAIRS] == toy["src"][:PAIRS]).all()


@pytest.mark.parametrize("left", [0, 7, PAIRS - 1])
def test_one_stale_pair_keeps_the_wave_waiting(left):
    toy = Toy("silent")
    toy.pairs("A")[:] = (9, step_tag(1, 3))
    toy.pairs("A")[left, 1] = step_tag(1, 2)
    with pytest.raises(SimFault, match=rf"deadlock.*toy_kernels\.py.*pair {left} of A \(expected 260, seen 259\)"):
        toy.run()
    toy.pairs("A")[left, 1] = step_tag(1, 3)
    toy.run()


@every_schedule
@pytest.mark.parametrize("count", [1, 63, 64, 511, 512, 513, 516, 7000])
def test_pairs_dealt_to_threads(count, schedule):
    """Above 12 x 512 pairs in more than one batch."""
    toy = run(Toy("dealing", tokens=count), schedule)
    for taker in range(2):
        assert (toy["out"][taker * count : (taker + 1) * count] == toy["src"][:count]).all()
    assert not toy["out"][2 * count :].any()


@pytest.mark.parametrize("left", [0, 511, 512, None])
def test_every_pair_dealt_is_waited_for(left):
    toy = Toy("undealt", tokens=513)
    toy.pairs("DEALT")[:] = np.stack([np.arange(513), np.full(513, step_tag(1, 3))], axis=1)
    if left is None:
        toy.run(**CHECKS)
        assert (toy["out"][:513] == np.arange(513)).all()
        return
    toy.pairs("DEALT")[left, 1] = step_tag(1, 2)
    with pytest.raises(SimFault, match=rf"deadlock.*pairs? (512, )?{left}.* of DEALT \(expected 260, seen 259\)"):
        toy.run()


class TestRowsBehindAFlag:
    @every_schedule
    @pytest.mark.parametrize("memory", ["sequential", "relaxed"])
    def test_published_rows_arrive(self, schedule, memory):
        toy = run(Toy("publishing"), schedule, memory=memory)
        rows = toy["src"][: PRODUCERS * THREADS]
        assert (toy["out"][: 2 * len(rows)].reshape(2, -1) == rows).all()
        assert (toy.pairs("XRDY") == (1, step_tag(1, 3))).all()

    @every_schedule
    @pytest.mark.parametrize(("body", "check"), [("undrained", "guards"), ("unmet", "global_races")])
    def test_a_copy_without_the_drain_or_the_barrier_is_caught(self, body, check, schedule):
        """The missing drain by its own rule, the missing barrier as a race."""
        kind = "undrained" if check == "guards" else "race"
        with pytest.raises(SimFault, match=rf"{kind}.*toy_kernels\.py"):
            Toy(body).run(**{check: True}, **schedule)


class TestBounded:
    @every_schedule
    def test_gives_up_once_a_cta_and_goes_on(self, schedule):
        toy = run(Toy("waiting", bounded=True), schedule)
        records = toy["health"]
        assert (records[:, 0] == np.isin(np.arange(GEOMETRY.blocks), [1, 2, 3])).all()
        assert not records[records[:, 0] == 0].any() and toy["alarm"][0] == 1
        for cta in (1, 2, 3):
            _, region, index, expected, seen, number, when, last = records[cta].tolist()
            assert region == crc32(b"A") & 0x7FFFFFFF and number == cta and last == 0
            assert index == PUT_LANES * HANDED - 1  # the one pair that nobody put: the last of the last spec
            assert expected == step_tag(1, 3) and seen == 0
            assert WAIT_TICKS < when < 2 * WAIT_TICKS
        lanes = np.minimum(np.arange(128) % 64, PUT_LANES - 1)
        assert (toy["out"][: 3 * 128].reshape(3, 128) == lanes).all()

    def test_the_record_shows_the_tag_that_was_seen(self):
        toy = Toy("waiting", bounded=True)
        toy.pairs("A")[:] = (8, step_tag(1, 2))
        toy.run(**CHECKS)
        assert (toy["health"][1:4, 4] == step_tag(1, 2)).all()

    def test_without_an_address_no_alarm_is_raised(self):
        toy = Toy("waiting", bounded=True)
        alarm = toy["alarm"]
        toy.arrays["alarm"] = 0
        toy.run(**CHECKS)
        assert (toy["health"][1:4, 0] == 1).all() and not alarm.any()

    @every_schedule
    def test_a_wait_that_ends_well_leaves_no_record(self, schedule):
        toy = run(Toy("prompt", bounded=True), schedule)
        assert not toy["health"].any() and not toy["alarm"].any()
        assert (toy["out"][:PAIRS] == toy["src"][:PAIRS]).all()
