"""What changed since an older report, in sentences: verdicts, points and results that moved, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from k3lab.analysis import sentences
from k3lab.analysis.report import Change, PointRow, Report, TensorRow
from k3lab.analysis.words import listed, number, plural
from k3lab.errors import BadInput
from k3lab.stats import Figures

NAMED = 3
PASSING = ("case.hash",)  # follows from the rest


@dataclass(frozen=True)
class Changes:
    """A report beside an older one.

    Attributes:
        since: which older report, in words.
        made_otherwise: differences of inputs and versions, a sentence; empty where there are none.
        lines: what changed, a sentence each; one that says so where nothing did.
        figures: every figure that changed.
    """

    since: str
    made_otherwise: str
    lines: list[str]
    figures: list[Change]

    @property
    def sentences(self) -> list[str]:
        """All of it, for a reader."""
        return [*([self.made_otherwise] if self.made_otherwise else []), *self.lines]


def changes(new: Report, old: Report) -> Changes:
    """What `new` says otherwise than `old`."""
    figures = new.diff(old)
    since = f"the report made {when(old)}"
    if not figures:
        count = plural(len(new.verdicts), "verdict")
        lines = [f"Nothing changed since {since}: {count} and every figure are the same."]
    else:
        many = "One figure" if len(figures) == 1 else f"{len(figures)} figures"
        rows = list(dict.fromkeys(change.row for change in figures))
        lines = [*_verdicts(new, old), *_points(new, old), *_results(new, old)]
        lines.append(f"{many} changed in all since {since}: of {_some(rows)}.")
    return Changes(since, _made_otherwise(new, old), lines, figures)


def previous(folder: str | Path, launch: str) -> Report | None:
    """The report of `launch` that lies in `folder`; None where there is none, or none that can be read."""
    path = Path(folder) / "report.json"
    if not path.is_file():
        return None
    try:
        old = Report.load(path)
    except BadInput:  # of another version, or no report: nothing to compare with
        return None
    return old if old.launch == launch else None


def when(report: Report) -> str:
    """`2026-01-31 12:00:00 UTC`."""
    return report.created.replace("T", " ").replace("+00:00", " UTC")


def _verdicts(new: Report, old: Report) -> Iterator[str]:
    before, after = ({(v.name, v.bound): v for v in report.verdicts} for report in (old, new))
    turned = [key for key in after if key in before and after[key].passed != before[key].passed]
    failed, held = ([key for key in turned if after[key].passed is passed] for passed in (False, True))
    for keys, word in ((failed, "Now missed"), (held, "Now held")):
        if keys:
            named = [
                f"{after[key].name} ({key[1]}; {before[key].measured} before, {after[key].measured} now)"
                for key in keys
            ]
            yield f"{word}: {_some(named)}."
    came, went = len(after.keys() - before.keys()), len(before.keys() - after.keys())
    if came or went:
        yield f"Verdicts judged anew: {came}; no longer judged: {went}."
    elif not turned:
        yield f"No verdict changed ({plural(len(after), 'bound')})."


def _points(new: Report, old: Report) -> Iterator[str]:
    before = {row.name: row for row in old.points}
    pairs = [(row, before[row.name]) for row in new.points if row.name in before]
    moved = [pair for pair in pairs if _figures(pair[0]) != _figures(pair[1])]
    if moved:
        moved.sort(key=lambda pair: -_ratio(_total(pair[0]), _total(pair[1])))
        named = [f"{row.name} {_step(_total(was), _total(row))}" for row, was in moved[:NAMED]]
        most = "" if len(moved) <= NAMED else ", most of all"
        rms = "by built-up relative rms error" if moved[0][0].total else "by own relative rms error"
        yield f"{len(moved)} of {plural(len(pairs), 'rounding point')} changed{most}, {rms}: {listed(named)}."
    elif pairs:
        yield "No rounding point changed."
    names = {row.name for row in new.points}
    for gone, word in ((sorted(names - before.keys()), "New"), (sorted(before.keys() - names), "Gone")):
        if gone:
            yield f"{word}: {_some(gone)}."


def _results(new: Report, old: Report) -> Iterator[str]:
    before = {row.name: row for row in old.tensors}
    pairs = [(row, before[row.name]) for row in sentences.end_tensors(new) if row.name in before]
    moved = [(row, was) for row, was in pairs if _total(row) != _total(was)]
    same = [row.name for row, was in pairs if _total(row) == _total(was)]
    if moved:
        named = [f"{row.name} {_step(_total(was), _total(row))}" for row, was in moved]
        rest = f"; {listed(same)} unchanged" if same else ""
        yield f"Results, by relative rms error: {listed(named)}{rest}."
    elif same:
        yield f"The results' errors are the same ({listed(same)})."


def _figures(row: PointRow) -> tuple[str, Figures, Figures | None]:
    return row.format, row.own, row.total


def _total(row: PointRow | TensorRow) -> float | None:
    figures = row.total or (row.own if isinstance(row, PointRow) else None)
    return figures.relative_rms if figures else None


def _ratio(new: float | None, old: float | None) -> float:
    """How many times larger or smaller, as a logarithm; from or to 0 counts as most."""
    if new == old:
        return 0.0
    return abs(math.log(new / old)) if new and old else math.inf


def _step(old: float | None, new: float | None) -> str:
    """`0.00223 → 0.00446 (+100 %)`."""
    if old == new:
        return f"{number(new)} as before"
    step = f"{number(old)} → {number(new)}"
    return f"{step} ({_percent(new / old - 1)})" if new and old else step


def _percent(change: float) -> str:
    if abs(change) < 5e-4:
        return "by less than 0.1 %"
    if change >= 4:
        return f"× {change + 1:.3g}"
    return f"{100 * change:+.{0 if abs(change) >= 0.1 else 1}f} %".replace("-", "−")


def _made_otherwise(new: Report, old: Report) -> str:
    """`Not made alike: case.seed 0 → 1 and versions.torch 2.12.0 → 2.13.0.`"""
    parts = []
    for role in new.provenance.keys() & old.provenance.keys():
        before, after = (dict(flat(report.provenance[role])) for report in (old, new))
        for name in [*after, *(name for name in before if name not in after)]:
            if before.get(name) != after.get(name) and name not in PASSING:
                parts.append(f"{name} {before.get(name, 'none')} → {after.get(name, 'none')}")
    parts = sorted(set(parts))
    return f"Not made alike: {_some(parts, 6)}." if parts else ""


def flat(facts: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Nested facts as (dotted name, value) pairs."""
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from flat(value, (*path, name))
        else:
            yield ".".join((*path, name)), "none" if value == [] else value


def _some(names: list[str], most: int = NAMED) -> str:
    """The first few, and how many more."""
    more = len(names) - most
    return f"{', '.join(names[:most])} and {more} more" if more > 0 else listed(names)
