"""Stamps to intervals: names from the declaration, absolute times, what is missing stays missing."""

from __future__ import annotations

import numpy as np
import pytest

from k3lab.analysis.timeline import Clock, of_stamps
from k3lab.analysis.timeline.make import _times, finer
from k3lab.analysis.timeline.stages import durations
from k3lab.errors import BadInput, InternalFault
from k3lab.launches import K1, K2A, LAUNCHES
from k3lab.launches.stamps import StampPoint, in_passing_order
from k3lab.sim.clock.record import Reads
from tests.analysis.timeline.made import MODEL, TICKS, chain, stamps_of


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
def test_every_point_belongs_to_stages_of_its_launch(launch):
    stages = {stage.name for stage in launch.stages}
    start, *points = launch.stamp_points
    assert start.name == "start" and not start.stage
    for point in points:
        assert set(point.stage.split("+")) <= stages, point.name
        assert point.role in ("", "attention", "gemv", "kda") and point.about
    assert stages == {stage for point in points for stage in point.stage.split("+")}


def test_points_inside_a_stage_are_passed_before_it():
    names = [K1.stamps[number] for number in in_passing_order(K1.stamp_points)]
    assert names[7:12] == ["kda_staged", "conv_entered", "conv_inputs", "conv_stored", "conv"]
    assert sorted(names) == sorted(K1.stamps)
    assert in_passing_order((StampPoint("a"), StampPoint("b"), StampPoint("c", before="b"))) == [0, 2, 1]


def test_an_interval_is_named_by_the_point_that_ends_it():
    made = chain()
    mine = made.intervals[made.intervals["cta"] == 0]
    names = [(made.points[row["point"]].name, int(row["start"]), int(row["end"])) for row in mine]
    assert names == [
        ("slice", 1000, 1100),
        ("gate", 1100, 1150),
        ("mix", 1150, 1250),
        ("kda_staged", 1250, 1260),
        ("conv_entered", 1260, 1262),
        ("conv_inputs", 1262, 1850),
        ("conv", 1850, 1860),  # conv_stored was not passed: its time is in the next point's
    ]
    assert made.begin == 1000 and made.end == 1860
    assert made.stages == ("slice", "gate", "mix", "gemv", "conv", "gates", "recur", "norm")


def test_times_stay_absolute_whatever_the_clock():
    """The same stamps in ticks of 10 ns and in nanoseconds: another length, the same numbers."""
    times = [{"start": 10**18 + 5, "slice": 10**18 + 105}, {"start": 10**18 + 50, "x_in_lds": 10**18 + 80}]
    ticks = of_stamps(K1, 1, stamps_of(K1, times), TICKS)
    nanos = of_stamps(K1, 1, stamps_of(K1, times), Clock("ns", 1e9, "measured", "an H200"))
    for made, length in ((ticks, 1.0), (nanos, 0.1)):
        assert made.intervals["start"].tolist() == [10**18 + 5, 10**18 + 50]  # no CTA is moved to zero
        assert made.us(made.end) == pytest.approx(length)
        assert made.us(made.intervals["start"][1]) == pytest.approx(0.45 * length)


def test_what_a_cta_did_not_pass_is_missing():
    made = chain()
    gate = K1.stamps.index("gate")
    assert made.passed[0, :, gate].tolist() == [True, True, False, False]
    assert not any(made.intervals["point"][made.intervals["cta"] == 2] == gate)
    assert {row.point: row.ctas for row in durations(made)}["gate"] == 2


def test_a_clock_that_starts_at_0_does_not_hide_the_start():
    made = of_stamps(K1, 1, stamps_of(K1, [{"start": 0, "slice": 7}, {}]), MODEL)
    assert made.intervals.tolist() == [(0, 0, K1.stamps.index("slice"), 0, 7)]
    assert not made.passed[0, 1].any()


def test_two_points_at_one_tick_stay_in_passing_order():
    made = of_stamps(K1, 1, stamps_of(K1, [{"start": 4, "conv": 9, "conv_stored": 9, "gates": 9}]), TICKS)
    assert [K1.stamps[row["point"]] for row in made.intervals] == ["conv_stored", "conv", "gates"]


def test_stamps_of_another_shape_or_none_at_all_are_refused():
    with pytest.raises(BadInput, match=r"stamps: expected \[ranks, BLOCKS, 15\], got \[1, 4, 6\]"):
        of_stamps(K1, 1, [np.ones((4, 6), np.int64)], TICKS)
    with pytest.raises(BadInput, match="stamps: expected at least one CTA that passed a point"):
        of_stamps(K2A, 1, [np.zeros((4, 6), np.int64)], TICKS)


def test_durations_name_the_slowest_cta():
    rows = {row.point: row for row in durations(chain(slow=500))}
    assert rows["slice"].slowest == (0, 1) and rows["slice"].longest == pytest.approx(800e-6)
    assert rows["slice"].median == pytest.approx(450e-6) and rows["slice"].shortest == pytest.approx(100e-6)
    assert rows["first_task"].first == pytest.approx(1010e-6) and rows["first_task"].last == pytest.approx(1210e-6)


def test_modelled_stamps_get_the_exact_times_of_their_reads():
    """Wave 0's reads, in order; wave 1's do not count; a point passed twice keeps its last read."""
    ticks = stamps_of(K1, [{"slice": 3, "gate": 3}, {"start": 2, "x_in_lds": 9}])
    reads = Reads(
        **{name: np.zeros(8, np.int32) for name in ("device", "launch", "site")},
        workgroup=np.array([0, 0, 0, 0, 1, 1, 1, 1], np.int32),
        wave=np.array([0, 0, 1, 0, 0, 0, 0, 1], np.int32),
        time_ns=np.array([4.0, 31.5, 35.0, 38.25, 20.0, 55.0, 91.0, 95.0]),
        value=np.array([0, 3, 3, 3, 2, 5, 9, 9], np.int64),
    )
    (made,) = finer(ticks, reads, in_passing_order(K1.stamp_points))
    points = [K1.stamps.index(name) for name in ("start", "slice", "gate", "x_in_lds")]
    assert made[:, points].tolist() == [[4000, 31500, 38250, 0], [20000, 0, 0, 91000]]


def test_a_stamp_that_no_read_explains_is_a_fault():
    with pytest.raises(InternalFault, match="stamp of 7 ticks"):
        _times(np.array([7]), np.array([10.0]), np.array([1]))
