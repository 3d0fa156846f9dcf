"""A timeline as JSON: written, read back, and held against an older one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from k3lab.analysis.timeline.intervals import BARRIER, WAIT, Clock, Table, Timeline
from k3lab.analysis.timeline.stages import durations
from k3lab.analysis.timeline.traffic import Traffic
from k3lab.analysis.timeline.waits import wait_matrix
from k3lab.errors import BadInput, expect
from k3lab.files import parse_document, read_text
from k3lab.launches.stamps import StampPoint

VERSION = 1
RATES = (1.0, 1e15)
"""Counts in a second that a device's clock may have."""


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema of timeline.json."""
    text = resources.files("k3lab.analysis.timeline").joinpath("timeline.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def to_json(timeline: Timeline) -> str:
    """The JSON text, checked against the schema in the package; a point that was not passed is null."""
    stamps = [[[int(t) or None for t in row] for row in rank] for rank in timeline.stamps]
    data = {
        "version": VERSION,
        "launch": timeline.launch,
        "published": timeline.published,
        "case": timeline.case,
        "clock": asdict(timeline.clock),
        "points": [asdict(point) for point in timeline.points],
        "na": timeline.na,
        "regions": list(timeline.regions),
        "stamps": stamps,
        "waits": _columns(timeline.waits),
        "barriers": _columns(timeline.barriers),
        "traffic": None if timeline.traffic is None else timeline.traffic.to_dict(),
        "provenance": dict(timeline.provenance),
    }
    jsonschema.validate(data, schema())
    return json.dumps(data, allow_nan=False)


def from_json(text: str, where: str = "timeline") -> Timeline:
    """The timeline `to_json` wrote.

    Raises:
        BadInput: when the text is no JSON, of another version, not what the schema asks for, or at odds with itself.
    """
    data = parse_document(text, schema(), "timeline", VERSION, where)
    try:
        made = _timeline(data)
        _check_points(made)
        _check_clock(made)
        _check_table(made, "waits", made.waits, ("", "from_"))
        _check_table(made, "barriers", made.barriers, ("",))
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    return made


def _timeline(data: Mapping[str, Any]) -> Timeline:
    """What a document that fits the schema says."""
    widths = {len(row) for rank in data["stamps"] for row in rank}
    heights = {len(rank) for rank in data["stamps"]}
    even = heights != {0} and len(heights) == 1 and widths == {len(data["points"])}
    expect(even, "stamps", f"as many CTAs on every rank, each with {len(data['points'])} points", "other rows")
    stamps = np.array([[[int(t or 0) for t in row] for row in rank] for rank in data["stamps"]], np.int64)
    return Timeline(
        launch=data["launch"],
        published=data["published"],
        case=data["case"],
        clock=Clock(**data["clock"]),
        points=tuple(StampPoint(**point) for point in data["points"]),
        stamps=stamps,
        na=int(data["na"]),
        regions=tuple(data["regions"]),
        waits=_table(data["waits"], WAIT, "waits"),
        barriers=_table(data["barriers"], BARRIER, "barriers"),
        traffic=None if data["traffic"] is None else Traffic.from_dict(data["traffic"]),
        provenance=data["provenance"],
    )


def _columns(table: Table | None) -> dict[str, list[Any]] | None:
    return None if table is None else {name: table[name].tolist() for name in table.dtype.names or ()}


def _table(columns: dict[str, list[Any]] | None, kind: np.dtype[Any], what: str) -> Table | None:
    if columns is None:
        return None
    lengths = {len(column) for column in columns.values()}
    expect(len(lengths) == 1, what, "columns of one length", sorted(lengths))
    made = np.empty(lengths.pop(), kind)
    for name in kind.names or ():
        try:
            made[name] = columns[name]
        except OverflowError:
            raise BadInput(f"{what}: {name}: expected numbers that {kind[name]} holds, got larger ones.") from None
    return made


def _check_points(timeline: Timeline) -> None:
    """Refuse points that cannot be told apart, or that come before one there is not."""
    names = [point.name for point in timeline.points]
    expect(len(set(names)) == len(names), "points", "names that differ", names)
    for number, point in enumerate(timeline.points):
        known = not point.before or (point.before in names and point.before != point.name)
        expect(known, f"points: before of {point.name!r}", "another point's name", repr(point.before))
        earlier = not point.before or names.index(point.before) < number
        expect(earlier, f"points: before of {point.name!r}", "a point declared earlier", repr(point.before))


def _check_clock(timeline: Timeline) -> None:
    low, high = RATES
    rate = timeline.clock.rate
    expect(low <= rate <= high, "clock: rate", f"{low:.0f} .. {high:.0e} a second", rate)


def _check_table(timeline: Timeline, what: str, table: Table | None, who: Sequence[str]) -> None:
    """Refuse rows of CTAs or regions that the timeline does not have; nobody is the producer of some waits (-1)."""
    if table is None:
        return
    sizes = {"rank": timeline.ranks, "cta": timeline.blocks}
    bounds = {f"{side}{name}": (-1 if side else 0, size) for side in who for name, size in sizes.items()}
    if "region" in (table.dtype.names or ()):
        bounds["region"] = 0, len(timeline.regions)
    for name, (low, size) in bounds.items():
        bad = table[name][(table[name] < low) | (table[name] >= size)]
        expect(not len(bad), f"{what}: {name}", f"{low} .. {size - 1}", int(bad[0]) if len(bad) else None)


def load(path: str | Path) -> Timeline:
    """Read a timeline.json.

    Raises:
        BadInput: when the file cannot be read or is no timeline.
    """
    return from_json(*read_text(path, "timeline"))


@dataclass(frozen=True)
class Change:
    """A figure of a timeline beside an older one's, in microseconds; None where one has no such row."""

    row: str
    figure: str
    old: float | None
    new: float | None


def changes(old: Timeline, new: Timeline) -> list[Change]:
    """How the whole, each stage's time on a CTA and each wait moved, in the new one's order.

    Raises:
        BadInput: when they are of other launches, or one is measured and the other modelled.
    """
    expect(old.launch == new.launch, "older timeline", f"one of {new.launch}", f"one of {old.launch}")
    kinds = (old.clock.kind, new.clock.kind)
    expect(kinds[0] == kinds[1], "older timeline", f"a {kinds[1]} one", f"a {kinds[0]} one")
    before, after = dict(_figures(old)), dict(_figures(new))
    names = [*after, *(name for name in before if name not in after)]
    return [Change(*name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


def _figures(timeline: Timeline) -> Iterator[tuple[tuple[str, str], float]]:
    yield ("launch", "end"), _tenths(float(timeline.us(timeline.end)))
    for row in durations(timeline):
        yield (f"{row.stage}: {row.point}", "median"), _tenths(row.median)
        yield (f"{row.stage}: {row.point}", "longest"), _tenths(row.longest)
    for wait in wait_matrix(timeline) if timeline.waits is not None else ():
        yield (f"{wait.stage} waits for {wait.region}", "longest"), _tenths(wait.longest)


def _tenths(us: float) -> float:
    """To a tenth of a nanosecond: less is what JSON's rounding leaves."""
    return round(us, 4)
