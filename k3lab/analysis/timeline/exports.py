"""A timeline for other tools: Chrome trace JSON (Perfetto opens it), CSV and NPZ."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from k3lab.analysis.timeline.handoffs import last_waits
from k3lab.analysis.timeline.intervals import Timeline

Event = dict[str, Any]
TIMES, WHOM = ("begin", "ready", "end", "put"), ("from_rank", "from_cta", "from_wave")
EXACT = 1 << 40
"""Microseconds up to which a double tells tenths of a nanosecond apart: 12 days."""


def chrome_trace(timeline: Timeline) -> str:
    """Trace Event Format, JSON object form: a process a rank, a thread a CTA, flows from a store to who waited for it.

    `ts` is the clock's own time in microseconds; where that would lose digits, the time since `otherData.base`.
    Waits for a producer that was late are slices inside their interval: of a CTA's waves and a region, one in each.
    """
    base = _base(timeline)
    clock = timeline.clock
    events = [*_names(timeline), *_slices(timeline, base), *_flows(timeline, base)]
    about = {
        "launch": timeline.title,
        "clock": clock.label,
        "unit": f"{clock.unit}, {clock.rate:.0f} a second",
        "base": base,
        "base_is": f"ts 0, in the clock's units ({clock.unit}); the same for all CTAs and ranks",
        "notes": timeline.notes,
    }
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}, allow_nan=False)


def _base(timeline: Timeline) -> int:
    return 0 if timeline.clock.us(timeline.end) < EXACT else timeline.begin


def _names(timeline: Timeline) -> Iterator[Event]:
    label = timeline.clock.label
    for rank in range(timeline.ranks):
        yield _meta(rank, 0, "process_name", name=f"{timeline.title}, rank {rank} ({label})")
        yield _meta(rank, 0, "process_sort_index", sort_index=rank)
        for cta in range(timeline.blocks):
            yield _meta(rank, cta, "thread_name", name=f"CTA {cta} ({timeline.role(cta)})")
            yield _meta(rank, cta, "thread_sort_index", sort_index=cta)


def _meta(rank: int, cta: int, what: str, **args: Any) -> Event:
    return {"ph": "M", "pid": rank, "tid": cta, "name": what, "args": args}


def _slices(timeline: Timeline, base: int) -> Iterator[Event]:
    """Begin and end of every interval, and inside it of its waits; times of a thread never go back."""
    inside: dict[tuple[int, int, int], list[np.void]] = {}
    for wait in last_waits(timeline):
        inside.setdefault((int(wait["rank"]), int(wait["cta"]), int(wait["point"])), []).append(wait)
    for row in timeline.intervals:
        rank, cta, point = int(row["rank"]), int(row["cta"]), int(row["point"])
        declared = timeline.points[point]
        start, end = int(row["start"]), int(row["end"])
        args = {"stage": declared.stage, "start": start, "end": end, "about": declared.about}
        here: Event = {"pid": rank, "tid": cta, "cat": "stage", "name": f"{declared.stage}: {declared.name}"}
        yield {**here, "ph": "B", "ts": _ts(timeline, start, base), "args": args}
        done: float = start
        for wait in inside.get((rank, cta, point), ()):
            begin, stop = max(float(wait["ready"]), done), min(float(wait["end"]), end)
            if begin < stop:
                name = f"waits for {timeline.regions[wait['region']]}"
                part: Event = {"pid": rank, "tid": cta, "cat": "wait", "name": name}
                yield {**part, "ph": "B", "ts": _ts(timeline, begin, base), "args": _for_whom(wait)}
                yield {**part, "ph": "E", "ts": _ts(timeline, stop, base)}
                done = stop
        yield {**here, "ph": "E", "ts": _ts(timeline, end, base)}


def _for_whom(wait: np.void) -> dict[str, Any]:
    return {"rank": int(wait["from_rank"]), "cta": int(wait["from_cta"]), "stored": float(wait["put"])}


def _flows(timeline: Timeline, base: int) -> Iterator[Event]:
    """A pair of flow events for each of these waits."""
    for number, wait in enumerate(last_waits(timeline), 1):
        flow: Event = {"cat": "hand-off", "name": timeline.regions[wait["region"]], "id": number}
        store = {"pid": int(wait["from_rank"]), "tid": int(wait["from_cta"]), "ts": _ts(timeline, wait["put"], base)}
        read = {"pid": int(wait["rank"]), "tid": int(wait["cta"]), "ts": _ts(timeline, wait["end"], base)}
        yield {**flow, **store, "ph": "s"}
        yield {**flow, **read, "ph": "f", "bp": "e"}


def _ts(timeline: Timeline, time: Any, base: int) -> float:
    return round(float(timeline.clock.us(time - base)), 6)


def intervals_csv(timeline: Timeline) -> str:
    """A line an interval, absolute times in the clock's unit; a point that a CTA did not pass has none."""
    unit = timeline.clock.unit
    head = ["rank", "cta", "role", "stage", "point", f"start_{unit}", f"end_{unit}", "us"]
    rows: list[list[Any]] = []
    for row in timeline.intervals:
        point = timeline.points[row["point"]]
        start, end = int(row["start"]), int(row["end"])
        role = point.role or timeline.role(int(row["cta"]))
        length = f"{timeline.clock.us(end - start):.4f}"
        rows.append([int(row["rank"]), int(row["cta"]), role, point.stage, point.name, start, end, length])
    for rank, cta, number in np.argwhere(~timeline.passed).tolist():
        point = timeline.points[number]
        rows.append([rank, cta, point.role or timeline.role(cta), point.stage, point.name, "", "", ""])
    return _csv(head, sorted(rows, key=lambda row: (row[0], row[1], row[5] == "", row[5] or 0)))


def waits_csv(timeline: Timeline) -> str:
    """A line a hand-off to a wave, absolute times in the clock's unit; nothing but the head where none are known."""
    unit = timeline.clock.unit
    head = ["rank", "cta", "wave", "stage", "region", *(f"{t}_{unit}" for t in TIMES)]
    rows: list[list[Any]] = []
    if timeline.waits is not None:
        for wait, point in zip(timeline.waits, timeline.wait_points, strict=True):
            who = [int(wait[name]) for name in ("rank", "cta", "wave")]
            times = [f"{float(wait[name]):.3f}" for name in TIMES]
            whom = [int(wait[name]) for name in WHOM]
            rows.append([*who, timeline.stage_of(int(point)), timeline.regions[wait["region"]], *times, *whom])
    return _csv([*head, *WHOM], rows)


def _csv(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(head)
    out.writerows(rows)
    return text.getvalue()


def npz(timeline: Timeline) -> bytes:
    """Arrays for NumPy: stamps, intervals, waits, names, and the clock as JSON text in `about`."""
    clock = timeline.clock
    about = {"launch": timeline.launch, "unit": clock.unit, "rate": clock.rate, "kind": clock.kind}
    arrays: dict[str, Any] = {
        "stamps": timeline.stamps,
        "intervals": timeline.intervals,
        "points": np.array([point.name for point in timeline.points]),
        "stages": np.array([point.stage for point in timeline.points]),
        "regions": np.array(timeline.regions, dtype=str),
        "about": np.array(json.dumps({**about, "device": clock.device})),
    }
    for name, table in (("waits", timeline.waits), ("barriers", timeline.barriers)):
        if table is not None:
            arrays[name] = table
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)
    return data.getvalue()
