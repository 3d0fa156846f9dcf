"""The error report as pages a stranger can read: one self-contained HTML file each, charts and style inside it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from k3lab.analysis import sentences
from k3lab.analysis.changes import changes, flat, when
from k3lab.analysis.glossary import glossary
from k3lab.analysis.report import Budget, BudgetRow, Difference, Figures, PointRow, Report, TensorRow
from k3lab.analysis.words import decibel, number, percent, shape, share_text
from k3lab.analysis.worst import worst_points
from k3lab.backends.twin import TWINS

if TYPE_CHECKING:
    from k3lab.analysis.timeline import Timeline

ALTERNATIVES = {
    "error_by_stage": "Own and built-up relative rms error of every rounding point, in order, on a log axis",
    "ulp_histograms": "Histograms of own and built-up errors in ulps, one a rounding point",
    "heat_maps": "Built-up error by token and channel block, one strip a rounding point",
    "code_occupancy": "How often each code of the 4- and 8-bit formats was used, one panel a rounding point",
    "budget_map": "Share of each rounding point in each result's error",
}


def render(report: Report, against: Report | None = None, timeline: Timeline | None = None) -> str:
    """The whole page; with an older report, it says what changed since; with a timeline, it has its section."""
    case = sentences.case(report)
    drawn = _charts(report)
    return _page(
        "report.html.j2",
        report=report,
        title=sentences.title(report),
        charts=drawn,
        heat=_heat(report, drawn),
        worst=worst_points(report),
        glossary=glossary(report, case),
        case=case,
        created=when(report),
        decisive=sentences.decisive(report),
        verdict=sentences.verdict(report),
        verdict_about=sentences.verdict_about(report),
        answers=sentences.answers(report),
        difference=sentences.difference(report),
        difference_title=sentences.difference_title(report),
        tensors_about=sentences.tensors_about(report),
        slots_about=sentences.slots_about(report),
        ranks_about=sentences.ranks_about(report),
        uncertainty=sentences.uncertainty(report),
        remains=sentences.remains(report),
        budget=list(_budget(report.budget)),
        budget_notes=sentences.budget_notes(report),
        spread=_spread(report),
        firsts=[row for row in report.tensors if row.difference.first],
        provenance=[(role, list(flat(facts))) for role, facts in report.provenance.items()],
        changes=None if against is None else changes(report, against),
        timeline=None if timeline is None else _timeline(timeline),
        old_case=sentences.case(against) if against else "",
    )


def summary(report: Report) -> str:
    """The answer in a few lines of HTML, for notebooks."""
    return _page(
        "summary.html.j2",
        report=report,
        title=sentences.title(report),
        verdict=sentences.verdict(report),
        verdict_about=sentences.verdict_about(report),
        answers=sentences.answers(report),
    )


def index(reports: Mapping[str, Report]) -> str:
    """A page of links to `<folder>/report.html`, with each report's headline figures; `reports` is by folder."""
    rows = [{"folder": name, **_headline(report)} for name, report in reports.items()]
    kernels = any(report.provenance["run"]["backend"] not in TWINS for report in reports.values())
    return _page("index.html.j2", rows=rows, kernels=kernels)


def selftest(view: Mapping[str, Any]) -> str:
    """The page of a self-test: `view` is what `k3lab.analysis.selftest` writes as JSON."""
    return _page("selftest.html.j2", test=view)


def _headline(report: Report) -> dict[str, Any]:
    return {
        "title": sentences.title(report),
        "published": report.published,
        "about": report.about,
        "passed": report.passed,
        "decisive": sentences.decisive(report),
        "verdict": sentences.verdict(report),
        "worst": max(sentences.answers(report), key=lambda answer: answer.relative_rms, default=None),
        "points": worst_points(report),
        "case": sentences.case(report),
    }


def template(name: str, **view: Any) -> str:
    """A template of this package, filled in."""
    return _page(name, **view)


def in_script(value: dict[str, Any]) -> str:
    """JSON text that cannot end the script element it stands in."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def _page(template: str, **view: Any) -> str:
    return _environment().get_template(template).render(**view)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("k3lab.analysis", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        number=number,
        percent=percent,
        share=share_text,
        decibel=decibel,
        held=_held,
        bias=_bias,
        differing=sentences.differing_short,
        anything=_anything,
    )
    return environment


def _charts(report: Report) -> dict[str, dict[str, str]]:
    from k3lab.analysis import charts

    pngs = {name: charts.png(getattr(charts, name)(report)) for name in ALTERNATIVES}
    return {
        name: {"alt": ALTERNATIVES[name], "data": base64.b64encode(data).decode("ascii")} for name, data in pngs.items()
    }


def _heat(report: Report, drawn: Mapping[str, Mapping[str, str]]) -> str:
    from k3lab.analysis import heat

    return heat.fragment(report, drawn["heat_maps"]["data"])


def _timeline(timeline: Timeline) -> dict[str, Any]:
    from k3lab.analysis.timeline.page import section

    return section(timeline)


def _held(row: PointRow | TensorRow) -> str:
    return shape(row.shape, row.ranks)


def _bias(figures: Figures) -> str:
    """The signed mean error over the rms error, in whole percent."""
    if not figures.rms:
        return "–"
    whole = round(100 * figures.mean / figures.rms)
    return f"{whole:+d} %".replace("-", "−") if whole else "0 %"


def _anything(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "–" if value is None else str(value)
    return str(value) if isinstance(value, int) else number(value)


def _budget(budget: Budget | None) -> Iterator[dict[str, Any]]:
    """By end tensor, its budget rows with a remark."""
    for tensor in budget.all_on if budget else ():
        assert budget is not None
        rows = [row for row in budget.rows if row.tensor == tensor]
        yield {
            "tensor": tensor,
            "all_on": budget.all_on[tensor],
            "none_on": budget.none_on[tensor],
            "rows": [{**vars(row), "reached": budget.reaches(row), "note": _note(budget, row)} for row in rows],
        }


def _note(budget: Budget, row: BudgetRow) -> str:
    if not budget.reaches(row):
        return "cannot reach this tensor" if row.only == budget.none_on[row.tensor] else "less than a millionth"
    if budget.repeated(row):
        return "taking it away changes nothing: another point rounds the same value"
    return ""


def _spread(report: Report) -> dict[str, Any] | None:
    """The tensors that some MFMA model moves, a difference a model."""
    if not report.spread:
        return None
    models = list(dict.fromkeys(row.model for row in report.spread))
    by_tensor: dict[str, dict[str, Difference]] = {}
    for row in report.spread:
        by_tensor.setdefault(row.tensor, {})[row.model] = row.difference
    moved = {name: found for name, found in by_tensor.items() if any(part.differ for part in found.values())}
    return {
        "base": report.spread[0].base,
        "models": models,
        "rows": [{"tensor": name, "differences": [found[m] for m in models]} for name, found in moved.items()],
        "unmoved": sentences.unmoved(report),
    }
