"""What an error report says in sentences: verdicts, largest contributors, differences, uncertainty, the case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from k3lab.analysis.report import Budget, BudgetRow, Difference, Figures, Report, SpreadRow, TensorRow
from k3lab.analysis.words import decibel, listed, number, percent, plural, share_text

NAMED_SHARE = 0.05  # contributors below this share are not named in sentences
NAMED = 3
BOUNDS = {
    "own error at most half an ulp": "each rounding by itself is off by at most half an ulp, as good as can be",
    "kernel equal to twin bit for bit": "the kernel gives the same bits as its twin",
}


@dataclass(frozen=True)
class Answer:
    """One result of a launch: what it is, how wrong it is, and where most of that comes from."""

    tensor: str
    about: str
    error: str
    sources: str
    relative_rms: float


def verdict(report: Report) -> str:
    """`All 8 bounds held.`"""
    count = len(report.verdicts)
    if not count:
        return "No bound was judged."
    failed = sum(not v.passed for v in report.verdicts)
    if failed:
        return f"{failed} of {plural(count, 'bound')} failed."
    return "The one bound held." if count == 1 else f"All {count} bounds held."


def verdict_about(report: Report) -> str:
    """What was judged; where a bound failed, where and by how much."""
    failed = [f"{v.name} ({v.bound}: measured {v.measured})" for v in report.verdicts if not v.passed]
    if failed:
        return f"Failed: {listed(failed)}."
    bounds = list(dict.fromkeys(v.bound for v in report.verdicts))
    return f"Judged: {listed(BOUNDS.get(bound, bound) for bound in bounds)}." if bounds else ""


def answers(report: Report) -> list[Answer]:
    """The end tensors (without a budget, the outputs), each in words."""
    return [_answer(report, row, row.total) for row in end_tensors(report) if row.total]


def _answer(report: Report, row: TensorRow, total: Figures) -> Answer:
    return Answer(row.name, _about(report, row.name), error(total), _sources(report, row), total.relative_rms or 0.0)


def end_tensors(report: Report) -> list[TensorRow]:
    """The tensors whose error is the launch's error."""
    rows = {row.name: row for row in report.tensors}
    if report.budget:
        return [rows[name] for name in report.budget.all_on if name in rows]
    return [row for row in report.tensors if row.kind == "output"]


def error(total: Figures) -> str:
    """`rms error 1.78 × 10⁻³, one part in 278 of its rms value (SNR 48.9 dB)`."""
    if total.rms == 0:
        return "exact"
    parts = f", one part in {number(1 / total.relative_rms)} of its rms value" if total.relative_rms else ""
    return f"rms error {number(total.rms)}{parts} (SNR {decibel(total.snr_db)})"


def _sources(report: Report, tensor: TensorRow) -> str:
    """`43 % of its error energy comes from a, 12 % from b or c (both round the same value)`."""
    if report.budget is None:
        return ""
    named = [group for group in _same_rounding(report.budget, tensor.name) if (group[0].share or 0) >= NAMED_SHARE]
    parts = [f"{share_text(group[0].share or 0)} from {_names(group)}" for group in named[:NAMED]]
    return listed(parts).replace(" from", " of its error energy comes from", 1)


def _same_rounding(budget: Budget, tensor: str) -> Iterator[list[BudgetRow]]:
    """Rows of `tensor`, largest share first; points that repeat one rounding of the same value together."""
    rows = budget.largest(tensor)
    while rows:
        first, *rows = rows
        twins = [row for row in rows if budget.repeated(first) and budget.repeated(row) and _close(row, first)]
        yield [first, *twins]
        rows = [row for row in rows if row not in twins]


def _close(row: BudgetRow, other: BudgetRow) -> bool:
    return abs(row.only - other.only) <= 1e-3 * other.only


def _names(group: list[BudgetRow]) -> str:
    names = listed((row.point for row in group), "or")
    return f"{names} (they round the same value)" if len(group) > 1 else names


def _about(report: Report, tensor: str) -> str:
    from k3lab.launches import LAUNCHES

    launch = LAUNCHES.get(report.launch)
    if launch is None:
        return ""
    abouts = {name.rpartition(".")[2]: point.about for name, point in launch.points.items()}
    abouts |= {declared.name: declared.about for declared in launch.inputs}
    abouts |= {made.name: made.about for made in launch.made}
    return abouts.get(tensor, "")


def ordering_only(report: Report) -> bool:
    """Whether run and reference are twins that differ in the order of their sums alone."""
    run, reference = report.provenance["run"], report.provenance["reference"]
    return run["backend"] == reference["backend"] == "twin" and run["order"] != reference["order"]


def difference_title(report: Report) -> str:
    """What the columns that hold run against reference show."""
    if ordering_only(report):
        return "What ordering alone does (reported, not judged)"
    return f"Difference from {report.labels['reference']}"


def tensors_about(report: Report) -> str:
    """What the table of tensors compares."""
    run, reference = report.labels["run"], report.labels["reference"]
    if ordering_only(report):
        return (
            f"The middle columns hold {run} against {reference}: the same roundings, the same inputs, only fp32 sums "
            "taken in another order. It is what ordering alone does, reported and not judged; it is no fault of either."
        )
    return f"The middle columns hold {run} against {reference}, bit for bit."


def difference(report: Report) -> str:
    """How the run differs from its reference, in the results."""
    rows = end_tensors(report)
    moved = [f"{row.name} in {differing(row.difference)}" for row in rows if row.difference.differ]
    equal = [row.name for row in rows if not row.difference.differ]
    if ordering_only(report):
        start = f"What ordering alone does ({report.provenance['run']['order']} order against "
        start += f"{report.provenance['reference']['order']} order; reported, not judged): "
    else:
        start = f"Against {report.labels['reference']}: "
    parts = [f"{listed(moved)} differ" if moved else "", f"{listed(equal)} equal bit for bit" if equal else ""]
    return start + "; ".join(part for part in parts if part) + "." if rows else ""


def differing(difference: Difference) -> str:
    """`24 of 1024 values (2.34 %)`."""
    return f"{difference.differ} of {difference.count} values ({percent(difference.differ / difference.count)})"


def differing_short(difference: Difference) -> str:
    """`24 (2.34 %)`, for tables."""
    return f"{difference.differ} ({percent(difference.differ / difference.count)})" if difference.differ else "none"


def uncertainty(report: Report) -> str:
    """How far another MFMA model would move the results."""
    ends = {row.name for row in end_tensors(report)}
    moved = [row for row in report.spread if row.tensor in ends and row.difference.differ]
    if not report.spread:
        return ""
    start = "How the GPU's matrix instruction adds inside is not documented, so it is modelled: "
    if not moved:
        return f"{start}the other models give the same results, bit for bit. Nobody has run these on the hardware yet."
    worst = max(moved, key=_movement)
    relative = f", by {number(worst.difference.relative_rms)} of its rms value" if worst.difference.relative_rms else ""
    return (
        f"{start}the result that moves most, {worst.tensor}, changes in {differing(worst.difference)}{relative}, "
        f"under model {worst.model} instead of {worst.base}. "
        "Nobody has run these on the hardware yet; until a gfx950 has, this is the uncertainty."
    )


def _movement(row: SpreadRow) -> float:
    return row.difference.relative_rms or 0.0


def remains(report: Report) -> str:
    """What is left with no rounding at all."""
    budget = report.budget
    rests = [rest for name in budget.all_on if (rest := budget.rest(name)) is not None] if budget else []
    if not rests:
        return ""
    return f"With no rounding on at all, fp32 arithmetic leaves {_at_most(max(rests))} of any result's error energy."


def _at_most(share: float) -> str:
    text = share_text(share)
    return text.replace("< ", "less than ") if text.startswith("<") else f"at most {text}"


def budget_notes(report: Report) -> str:
    """Why shares need not add to 100 %, with what they add to here."""
    budget = report.budget
    if budget is None:
        return ""
    sums = {name: sum(row.share or 0.0 for row in budget.largest(name)) for name in budget.all_on}
    return (
        "Shares need not add to 100 %: errors of different points meet and cancel or add, and two points can round the "
        f"same value. Here they add to {listed(f'{share_text(total)} for {name}' for name, total in sums.items())}."
    )


def unmoved(report: Report) -> str:
    """Which tensors no other MFMA model moves."""
    moved = {row.tensor for row in report.spread if row.difference.differ}
    same = [name for name in dict.fromkeys(row.tensor for row in report.spread) if name not in moved]
    return f"No model moves {listed(same, 'or')}." if same else "Every tensor moves."


def case(report: Report) -> str:
    """`geometry k3 (hidden 7168, 12 heads, TP 8), 4 tokens, ..., values 'outliers', seed 0`."""
    facts = report.provenance["run"]["case"]
    key = facts["key"]
    geometry = key["geometry"]
    sizes = f"hidden {geometry['hidden']}, {plural(geometry['heads'], 'head')} a rank, TP {geometry['tp']}"
    parts = [f"geometry {geometry['name']} ({sizes})"]
    if "ranks" in key:
        parts.append(plural(key["ranks"], "rank"))
    parts.append(plural(key["tokens"], "token"))
    if "qlen" in key:
        parts.append(f"{key['qlen']} a request")
    parts += [plural(key["nblocks"], "earlier block"), f"values '{facts['values']}'", f"seed {facts['seed']}"]
    return ", ".join(parts)
