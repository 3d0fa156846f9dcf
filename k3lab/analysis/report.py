"""The error report as data: what `report.json` holds, its round trip, and the difference of two reports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema

from k3lab.analysis.words import plural
from k3lab.errors import expect
from k3lab.files import parse_document, read_text, write_together
from k3lab.stats import Figures

if TYPE_CHECKING:
    from k3lab.analysis.timeline import Timeline

VERSION = 1
CORRECTLY_ROUNDED = "own error at most half an ulp"
BIT_EQUAL = "kernel equal to twin bit for bit"
AS_RECORDED = "equal to what was recorded, bit for bit"
LEAST_SHARE = 1e-6  # of the error energy: less is what fp32 sums leave, not a rounding


@dataclass(frozen=True)
class Difference:
    """How a tensor differs from its reference, bit for bit; `first` is the first differing index with both values.

    `max_ulp` and `relative_rms` (rms difference over the rms of the reference) are those of the worst rank.
    """

    differ: int
    count: int
    max_ulp: float | None
    relative_rms: float | None
    first: dict[str, Any] | None


@dataclass(frozen=True)
class PointRow:
    """A rounding point: its own error (after against before) and the error built up to it (against the oracle).

    `heat` is the built-up rms error over the rms ulp, one row a token, one column a channel block: the ulp of a single
    value near 0 does not drown the rest. `codes` counts how often each code of a 4- or 8-bit format was used, by code.
    `shape` is that of one rank's values, `ranks` how many ranks have their own; figures and codes are over all of them,
    `heat` is of the first.
    """

    name: str
    stage: str
    about: str
    format: str
    shape: list[int]
    ranks: int
    own: Figures
    total: Figures | None
    heat: list[list[float]] | None
    codes: list[int] | None


@dataclass(frozen=True)
class TensorRow:
    """An exposed tensor: its difference from the reference run and its error against the oracle.

    `shape` is one rank's, `ranks` how many have their own; the figures are over all of them. The difference is of every
    element; of states and caches, the error is of the slots that the launch wrote.
    """

    name: str
    kind: str
    about: str
    format: str
    shape: list[int]
    ranks: int
    difference: Difference
    total: Figures | None

    @property
    def partly_written(self) -> bool:
        """Whether the error is of fewer elements than the difference."""
        return self.total is not None and self.total.count < self.difference.count


@dataclass(frozen=True)
class Verdict:
    """A bound that is judged: what, the bound (one of the two above), what was measured, whether it held."""

    name: str
    bound: str
    measured: str
    passed: bool


@dataclass(frozen=True)
class BudgetRow:
    """One point's part in one end tensor's error, against the oracle.

    `only` is the rms error with this point alone on, `without` with all but this on; `share` is (only / all on)^2.
    """

    point: str
    tensor: str
    only: float
    without: float | None
    share: float | None


@dataclass(frozen=True)
class Budget:
    """Error budget of a launch: rms errors against the oracle, computed in torch order.

    `all_on` is by end tensor with every point on, `none_on` with every point ablated (fp32 sums, approximations).
    """

    order: str
    rows: list[BudgetRow]
    all_on: dict[str, float]
    none_on: dict[str, float]

    def largest(self, tensor: str) -> list[BudgetRow]:
        """The rounding points' rows of `tensor`, the largest share first."""
        points = (row for row in self.rows if not row.point.startswith("hw."))
        mine = [row for row in points if row.tensor == tensor and row.share is not None]
        return sorted(mine, key=lambda row: -(row.share or 0.0))

    def rest(self, tensor: str) -> float | None:
        """Share of the error that is there with nothing rounded; None where there is no error at all."""
        everything = self.all_on[tensor]
        return (self.none_on[tensor] / everything) ** 2 if everything else None

    def reaches(self, row: BudgetRow) -> bool:
        """Whether the row's point changes the tensor, by a share of its error that is worth naming."""
        return row.only != self.none_on[row.tensor] and (row.share or 0.0) >= LEAST_SHARE

    def repeated(self, row: BudgetRow) -> bool:
        """Whether taking the point away leaves the error (within 1 in 1000): another point narrows the same value."""
        everything = self.all_on[row.tensor]
        return bool(row.share and row.share > 0.01 and row.without and abs(row.without / everything - 1) < 1e-3)


@dataclass(frozen=True)
class SpreadRow:
    """How an exposed tensor moves when the MFMA model is `model` and not `base`."""

    model: str
    base: str
    tensor: str
    difference: Difference


@dataclass(frozen=True)
class Report:
    """An error report of one launch on one case.

    Attributes:
        labels, provenance: by role (`run`, `reference`, `oracle`): in a few words, and in full.
        verdicts: the judged bounds; end-to-end error is reported, not judged.
    """

    launch: str
    published: str
    about: str
    created: str
    labels: dict[str, str]
    provenance: dict[str, dict[str, Any]]
    points: list[PointRow]
    tensors: list[TensorRow]
    verdicts: list[Verdict]
    budget: Budget | None = None
    spread: list[SpreadRow] = field(default_factory=list)
    version: int = VERSION

    @property
    def passed(self) -> bool:
        """Whether every judged bound held."""
        return all(verdict.passed for verdict in self.verdicts)

    @property
    def ranks(self) -> int | None:
        """Ranks of the run; None where the launch knows none."""
        ranks: int | None = self.provenance["run"]["case"]["key"].get("ranks")
        return ranks

    def with_budget(self, budget: Budget | None) -> Report:
        """This report with another error budget."""
        return replace(self, budget=budget)

    def __repr__(self) -> str:
        ranks = f", {plural(self.ranks, 'rank')}" if self.ranks else ""
        run, reference = (_ran(self.provenance[role]) for role in ("run", "reference"))
        held = f"{sum(v.passed for v in self.verdicts)} of {plural(len(self.verdicts), 'bound')} held"
        return f"Report({self.launch}{ranks}, {run} against {reference}, {held})"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        """The JSON text, checked against the schema in the package."""
        data = self.to_dict()
        jsonschema.validate(data, schema())
        return json.dumps(data, indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str, where: str = "report") -> Report:
        """The report `to_json` wrote.

        Raises:
            BadInput: when the text is no JSON, of another version, or not what the schema asks for.
        """
        return _report(parse_document(text, schema(), "report", VERSION, where))

    @classmethod
    def load(cls, path: str | Path) -> Report:
        """Read `report.json`.

        Raises:
            BadInput: when the file cannot be read or is no report.
        """
        return cls.from_json(*read_text(path, "report"))

    def save(self, folder: str | Path, against: Report | None = None, timeline: Timeline | None = None) -> Path:
        """Write report.html, report.json and points.csv into `folder`; returns the HTML's path.

        Args:
            against: an older report, to say what changed since; when not given, the one of the same launch that lies in
                `folder`, if there is one.
            timeline: of the same launch: the page gets a section of it, and its own page and exports lie beside.

        Raises:
            BadInput: when the folder cannot be written; no file is left half-written.
        """
        from k3lab.analysis.changes import previous
        from k3lab.analysis.html import render
        from k3lab.analysis.timeline.page import contents

        folder = Path(folder)
        page = render(self, against or previous(folder, self.launch), timeline)
        files: dict[str, str | bytes] = {
            "report.json": self.to_json(),
            "points.csv": points_csv(self),
            "report.html": page,
        }
        if timeline is not None:
            files |= contents(timeline)
        write_together(folder, files)
        return folder / "report.html"

    def diff(self, old: Report) -> list[Change]:
        """What changed since `old`: every figure of points, tensors and budget that is not the same."""
        return list(_changes(old, self))

    def _repr_html_(self) -> str:
        from k3lab.analysis.html import summary

        return summary(self)


@dataclass(frozen=True)
class Change:
    """A figure that differs between two reports; None where one has no such row."""

    row: str
    figure: str
    old: Any
    new: Any


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema of report.json."""
    text = resources.files("k3lab.analysis").joinpath("report.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def _ran(facts: Mapping[str, Any]) -> str:
    """`twin kernel order`, `oracle`."""
    backend, order = facts["backend"], facts["order"]
    return f"twin {order} order" if backend == "twin" else str(backend)


def _figures(data: dict[str, Any] | None) -> Figures | None:
    return Figures(**data) if data else None


def _report(data: dict[str, Any]) -> Report:
    budget = data["budget"]
    if budget:
        known = budget["all_on"].keys() & budget["none_on"].keys()
        other = sorted({row["tensor"] for row in budget["rows"]} - known)
        expect(
            not other, "budget", "errors with all and with no rounding for every tensor of its rows", f"none of {other}"
        )
    return Report(
        **{
            **data,
            "points": [
                PointRow(**{**r, "own": Figures(**r["own"]), "total": _figures(r["total"])}) for r in data["points"]
            ],
            "tensors": [
                TensorRow(**{**r, "difference": Difference(**r["difference"]), "total": _figures(r["total"])})
                for r in data["tensors"]
            ],
            "verdicts": [Verdict(**r) for r in data["verdicts"]],
            "budget": Budget(**{**budget, "rows": [BudgetRow(**r) for r in budget["rows"]]}) if budget else None,
            "spread": [SpreadRow(**{**r, "difference": Difference(**r["difference"])}) for r in data["spread"]],
        }
    )


def points_csv(report: Report) -> str:
    """`points.csv`: one line a rounding point, own and built-up figures side by side."""
    import csv
    import io

    names = [f.name for f in fields(Figures) if f.name not in ("format", "ulp_histogram")]
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(["point", "stage", "format", *(f"own_{n}" for n in names), *(f"total_{n}" for n in names)])
    for row in report.points:
        own = [getattr(row.own, name) for name in names]
        total = [getattr(row.total, name) if row.total else None for name in names]
        out.writerow([row.name, row.stage, row.format, *own, *total])
    return text.getvalue()


def _changes(old: Report, new: Report) -> Iterator[Change]:
    before, after = _flat(old), _flat(new)
    for row, figure in sorted(before.keys() | after.keys()):
        a, b = before.get((row, figure)), after.get((row, figure))
        if a != b:
            yield Change(row, figure, a, b)


def _flat(report: Report) -> Mapping[tuple[str, str], Any]:
    """Every comparable figure by (row, figure)."""
    flat: dict[tuple[str, str], Any] = {}
    rows: list[PointRow | TensorRow] = [*report.points, *report.tensors]
    for row in rows:
        for part in ("own", "total", "difference"):
            figures = getattr(row, part, None)
            for name, value in (asdict(figures) if figures else {}).items():
                if name not in ("ulp_histogram", "format"):
                    flat[row.name, f"{part}.{name}"] = value
        flat[row.name, "format"] = row.format
    for budget_row in report.budget.rows if report.budget else ():
        flat[f"{budget_row.point} -> {budget_row.tensor}", "budget.only"] = budget_row.only
        flat[f"{budget_row.point} -> {budget_row.tensor}", "budget.share"] = budget_row.share
        flat[f"{budget_row.point} -> {budget_row.tensor}", "budget.without"] = budget_row.without
    for name in report.budget.all_on if report.budget else ():
        assert report.budget
        flat[name, "budget.all_on"] = report.budget.all_on[name]
        flat[name, "budget.none_on"] = report.budget.none_on[name]
    for verdict in report.verdicts:
        flat[verdict.name, f"verdict: {verdict.bound}"] = verdict.passed
    for spread in report.spread:
        flat[spread.tensor, f"differ under MFMA model {spread.model}"] = spread.difference.differ
    return flat
