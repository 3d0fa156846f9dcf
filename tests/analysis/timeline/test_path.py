"""The wait matrix and the critical path, on hand-offs that are known."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from k3lab.analysis.timeline import critical_path, wait_matrix
from k3lab.analysis.timeline.sentences import summary
from k3lab.analysis.timeline.waits import Producer
from k3lab.errors import BadInput
from tests.analysis.timeline.made import chain


def steps(path):
    return [(part.kind, part.cta, part.point, part.region, part.start, part.end) for part in path]


def test_the_path_goes_from_start_to_end_through_the_hand_offs():
    assert steps(critical_path(chain())) == [
        ("work", 1, "slice", "", 1000, 1300),
        ("work", 1, "gate", "", 1300, 1310),
        ("work", 1, "mix", "", 1310, 1400),
        ("hand-off", 3, "x_in_lds", "XRDY", 1400, 1500),
        ("work", 3, "x_in_lds", "", 1500, 1520),
        ("work", 3, "first_task", "", 1520, 1700),
        ("hand-off", 0, "conv_inputs", "PROJ", 1700, 1800),
        ("work", 0, "conv_inputs", "", 1800, 1850),
        ("work", 0, "conv", "", 1850, 1860),
    ]


@pytest.mark.parametrize("slow", (0, 37, 5000))
def test_its_segments_add_up_to_the_whole(slow):
    made = chain(slow)
    path = critical_path(made)
    assert path[0].start == made.begin and path[-1].end == made.end
    assert all(a.end == b.start for a, b in pairwise(path))
    assert sum(part.length for part in path) == made.end - made.begin


def test_a_slow_producer_is_the_cause_in_the_matrix_and_on_the_path():
    """What CTA 1 is slow by is on the path as its own work, and the waiting for its flags grows by as much."""
    before, after = chain(), chain(slow=5000)
    for made, name in ((before, "before"), (after, "after")):
        gemv = next(row for row in wait_matrix(made) if row.stage == "gemv")
        assert (gemv.region, gemv.producer, gemv.share) == ("XRDY", Producer(0, 1), 1.0), name
    slowest = max(critical_path(after), key=lambda part: part.length)
    assert (slowest.kind, slowest.cta, slowest.stage, slowest.length) == ("work", 1, "slice", 5300)
    rows = [next(r for r in wait_matrix(made) if r.stage == "gemv") for made in (before, after)]
    assert rows[1].longest - rows[0].longest == pytest.approx(5000e-6)
    assert rows[1].total - rows[0].total == pytest.approx(2 * 5000e-6)  # on two CTAs


def test_the_matrix_counts_what_a_late_producer_cost_and_no_latency():
    rows = {(row.stage, row.region): row for row in wait_matrix(chain())}
    assert list(rows) == [("gate", "XRDY"), ("gemv", "XRDY"), ("conv", "PROJ")]
    flags = rows["gemv", "XRDY"]
    assert (flags.ctas, flags.waiting) == (2, 2)
    assert flags.longest == pytest.approx(390e-6) and flags.total == pytest.approx(780e-6)
    early = rows["gate", "XRDY"]
    assert (early.ctas, early.waiting, early.total, early.producer) == (1, 0, 0.0, None)


def test_a_barrier_leads_to_the_wave_that_came_last():
    """With CTA 2 last, its first wave explains nothing; wave 1, which came last to the barrier, waited for CTA 1."""
    made = chain()
    stamps = made.stamps.copy()
    stamps[0, 2, 5] = 2500  # first_task
    late = replace(made, stamps=stamps)
    path = critical_path(late)
    assert steps(path)[3:5] == [
        ("hand-off", 2, "x_in_lds", "XRDY", 1400, 1500),
        ("work", 2, "x_in_lds", "", 1500, 1510),
    ]
    alone = critical_path(replace(late, barriers=None))
    assert {part.cta for part in alone} == {2}  # as far as it is known, nobody held it up
    assert steps(alone)[0] == ("not started", 2, "start", "", 1000, 1005)
    assert sum(part.length for part in alone) == late.end - late.begin


def test_stamps_alone_know_no_waits():
    bare = replace(chain(), waits=None, barriers=None)
    for ask in (wait_matrix, critical_path):
        with pytest.raises(BadInput, match="waits: expected a timeline that records hand-offs"):
            ask(bare)
    assert "do not say who waited for whom" in summary(bare)[-1]


def test_a_launch_in_which_nobody_waits_is_one_ctas_work():
    made = chain()
    calm = replace(made, waits=made.waits[:0])
    assert wait_matrix(calm) == []
    assert {part.kind for part in critical_path(calm)} == {"work"}


def test_sentences_say_the_length_and_name_the_cause():
    text = " ".join(summary(chain(slow=5_000_000)))
    assert "5.00 µs on the simulator's modelled clock" in text
    assert "slice at work (5.00 µs, 100 %)" in text
    assert "Most waiting: stage gemv for XRDY" in text and "for CTA 1" in text


def test_a_wait_that_ends_before_its_store_is_refused():
    made = chain()
    waits = made.waits.copy()
    waits["put"] = waits["end"] + 1
    with pytest.raises(BadInput, match="waits: expected every store before"):
        critical_path(replace(made, waits=waits))
    assert np.all(made.waits["put"] < made.waits["end"])
