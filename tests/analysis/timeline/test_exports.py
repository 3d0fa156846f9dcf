"""Exports: the trace against the Trace Event Format's documented fields, CSV and NPZ against the timeline."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict

import numpy as np
import pytest

from k3lab.analysis.timeline import Clock, critical_path, exports, of_stamps, store
from k3lab.errors import BadInput
from k3lab.launches import K1, K2A
from tests.analysis.timeline.made import TICKS, chain, stamps_of

PHASES = {"B", "E", "M", "s", "f"}


def trace_faults(text: str) -> list[str]:
    """What breaks the format: fields, begins without ends, a thread whose time goes back, flows without a partner.

    Fields as in the Trace Event Format document: every event has ph, pid, tid; all but metadata a ts in microseconds;
    B and E nest by thread; a flow is a pair s, f of one cat, name and id, and f binds to its enclosing slice by bp "e".
    """
    found: list[str] = []
    trace = json.loads(text)
    stacks: dict[tuple[int, int], list[str]] = defaultdict(list)
    last: dict[tuple[int, int], float] = {}
    flows: dict[tuple[str, str, int], list[dict]] = defaultdict(list)
    for event in trace["traceEvents"]:
        thread = (event["pid"], event["tid"])
        if event["ph"] not in PHASES:
            found.append(f"phase {event['ph']}")
        if not all(type(number) is int for number in thread):
            found.append(f"thread {thread}")
        if event["ph"] == "M":
            if event["name"] not in ("process_name", "process_sort_index", "thread_name", "thread_sort_index"):
                found.append(f"metadata {event['name']}")
            continue
        if not isinstance(event["ts"], float) or not event["name"]:
            found.append(f"event {event}")
        if event["ph"] in "BE":
            if event["ts"] < last.get(thread, -np.inf):
                found.append(f"{thread} goes back to {event['ts']}")
            last[thread] = event["ts"]
        if event["ph"] == "B":
            stacks[thread].append(event["name"])
        if event["ph"] == "E" and (not stacks[thread] or stacks[thread].pop() != event["name"]):
            found.append(f"{thread} ends {event['name']} that it had not begun last")
        if event["ph"] in "sf":
            flows[event["cat"], event["name"], event["id"]].append(event)
    found += [f"{thread} leaves {stack} open" for thread, stack in stacks.items() if stack]
    for name, pair in flows.items():
        if [event["ph"] for event in pair] != ["s", "f"] or pair[1].get("bp") != "e":
            found.append(f"flow {name} is not a pair")
        elif pair[0]["ts"] > pair[1]["ts"]:
            found.append(f"flow {name} arrives before it leaves")
    return found


def test_the_trace_keeps_to_the_format():
    text = exports.chrome_trace(chain())
    assert trace_faults(text) == []
    trace = json.loads(text)
    assert trace["displayTimeUnit"] == "ns" and "modelled, not measured: a model" in trace["otherData"]["clock"]
    by_phase = defaultdict(list)
    for event in trace["traceEvents"]:
        by_phase[event["ph"]].append(event)
    assert len(by_phase["s"]) == 3  # a late producer for CTAs 2, 3 and 0
    assert {(e["pid"], e["tid"], e["name"]) for e in by_phase["s"]} == {(0, 1, "XRDY"), (0, 3, "PROJ")}
    names = {e["args"]["name"] for e in by_phase["M"] if e["name"] == "thread_name"}
    assert names == {"CTA 0 (attention)", "CTA 1 (attention)", "CTA 2 (gemv)", "CTA 3 (gemv)"}


def test_each_fault_of_a_trace_is_found():
    trace = json.loads(exports.chrome_trace(chain()))
    events = trace["traceEvents"]
    first = next(i for i, event in enumerate(events) if event["ph"] == "B")
    flow = next(i for i, event in enumerate(events) if event["ph"] == "f")

    def broken(change) -> list[str]:
        mine = json.loads(json.dumps(trace))
        change(mine["traceEvents"])
        return trace_faults(json.dumps(mine))

    assert any("had not begun" in fault for fault in broken(lambda e: e.pop(first)))
    assert any("is not a pair" in fault for fault in broken(lambda e: e.pop(flow)))
    assert any("goes back" in fault for fault in broken(lambda e: e[first + 1].update(ts=0.0)))
    assert any("arrives before" in fault for fault in broken(lambda e: e[flow].update(ts=0.0)))
    assert any("phase" in fault for fault in broken(lambda e: e[first].update(ph="Q")))
    assert any("open" in fault for fault in broken(lambda e: e.append({**e[first], "ts": 9e9})))


def test_times_in_the_trace_are_the_clocks_own():
    trace = json.loads(exports.chrome_trace(chain()))
    start = next(e for e in trace["traceEvents"] if e["ph"] == "B" and (e["pid"], e["tid"]) == (0, 2))
    assert (start["ts"], start["args"]["start"], trace["otherData"]["base"]) == (1005e-6, 1005, 0)


def test_where_a_double_would_lose_digits_times_count_from_one_stated_base():
    late = [{"start": 10**18, "slice": 10**18 + 7}, {"start": 10**18 + 3, "x_in_lds": 10**18 + 9}]
    text = exports.chrome_trace(of_stamps(K1, 1, stamps_of(K1, late), Clock("ns", 1e9, "measured", "a GPU")))
    assert trace_faults(text) == []
    trace = json.loads(text)
    assert trace["otherData"]["base"] == 10**18
    assert [e["ts"] for e in trace["traceEvents"] if e["ph"] == "B"] == [0.0, 0.003]


def test_a_process_is_a_rank_and_a_thread_a_cta():
    ranks = [[{"start": 1, "reduced": 5}, {"start": 1, "core_staged": 3}]] * 3
    trace = json.loads(exports.chrome_trace(of_stamps(K2A, 1, stamps_of(K2A, *ranks), TICKS)))
    threads = {(e["pid"], e["tid"]) for e in trace["traceEvents"]}
    assert threads == {(rank, cta) for rank in range(3) for cta in range(2)}
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert names[2] == "K2a (attn_post), 3 ranks, rank 2 (measured on a gfx950)"


def test_csv_has_every_interval_and_what_is_missing():
    made = chain()
    rows = list(csv.DictReader(io.StringIO(exports.intervals_csv(made))))
    assert len(rows) == len(made.intervals) + int((~made.passed).sum())
    there = [row for row in rows if row["start_ps"]]
    assert [(int(r["cta"]), int(r["start_ps"]), int(r["end_ps"])) for r in there] == [
        (int(r["cta"]), int(r["start"]), int(r["end"])) for r in made.intervals
    ]
    missing = {(row["cta"], row["point"]) for row in rows if not row["start_ps"]}
    assert ("2", "gate") in missing and ("0", "gate") not in missing
    waits = list(csv.DictReader(io.StringIO(exports.waits_csv(made))))
    assert len(waits) == len(made.waits) and waits[0]["stage"] == "gemv" and waits[0]["from_cta"] == "1"


def test_npz_holds_the_arrays():
    made = chain()
    with np.load(io.BytesIO(exports.npz(made))) as held:
        assert (held["stamps"] == made.stamps).all() and (held["intervals"] == made.intervals).all()
        assert (held["waits"] == made.waits).all() and held["points"].tolist() == list(K1.stamps)
        assert json.loads(str(held["about"]))["rate"] == 1e12


def test_json_comes_back_as_it_was():
    made = chain()
    back = store.from_json(store.to_json(made))
    for name in ("launch", "clock", "points", "na", "regions", "case"):
        assert getattr(back, name) == getattr(made, name)
    assert (back.stamps == made.stamps).all() and (back.waits == made.waits).all()
    assert (back.barriers == made.barriers).all()
    assert critical_path(back) == critical_path(made) and store.changes(made, back) == []
    assert json.loads(store.to_json(made))["stamps"][0][2][1] is None  # CTA 2 did not pass `slice`


def test_what_changed_since_an_older_one():
    changes = {(c.row, c.figure): (c.old, c.new) for c in store.changes(chain(), chain(slow=1000))}
    assert changes["launch", "end"] == pytest.approx((860e-6, 1860e-6), abs=1e-4)
    assert ("slice: slice", "longest") in changes and ("gemv waits for XRDY", "longest") in changes
    assert ("gemv: first_task", "longest") not in changes


@pytest.mark.parametrize(
    ("text", "why"),
    (
        ("{", "text that is none"),
        ("[]", "a misfit at the top"),
        ('{"version": 2}', "expected a version 1 timeline"),
    ),
)
def test_what_is_no_timeline_is_refused(text, why):
    with pytest.raises(BadInput, match=why):
        store.from_json(text)


def test_timelines_that_do_not_compare_are_refused(tmp_path):
    with pytest.raises(BadInput, match="older timeline: expected one of k2a, got one of k1"):
        store.changes(chain(), of_stamps(K2A, 1, stamps_of(K2A, [{"start": 1, "mix": 2}]), TICKS))
    with pytest.raises(BadInput, match="older timeline: expected a modelled one, got a measured one"):
        store.changes(chain(clock=TICKS), chain())
    with pytest.raises(BadInput, match="none of that name"):
        store.load(tmp_path / "nosuch.json")
