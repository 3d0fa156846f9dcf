"""What an error report says in sentences: verdicts, largest contributors, differences, uncertainty, the case."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from k3lab.analysis.report import (
    AS_RECORDED,
    BIT_EQUAL,
    CORRECTLY_ROUNDED,
    Budget,
    BudgetRow,
    Difference,
    Figures,
    PointRow,
    Report,
    SpreadRow,
    TensorRow,
    Verdict,
)
from k3lab.analysis.words import decibel, listed, number, percent, plural, shape, share_text

NAMED_SHARE = 0.05  # contributors below this share are not named in sentences
NAMED = 3
BOUNDS = {
    BIT_EQUAL: ("tensor", "equal to the twin's, bit for bit"),
    CORRECTLY_ROUNDED: ("rounding", "correctly rounded"),
    AS_RECORDED: ("output", "equal to what was recorded, bit for bit"),
}
"""By bound: what is judged, and what it is where the bound holds."""


@dataclass(frozen=True)
class Answer:
    """One result of a launch: what it is, how wrong it is, and where most of that comes from."""

    tensor: str
    about: str
    error: str
    sources: str
    relative_rms: float


def title(report: Report) -> str:
    """`m1a, 8 ranks`; the launch alone where it knows no ranks."""
    return f"{report.launch}, {plural(report.ranks, 'rank')}" if report.ranks else report.launch


def verdict(report: Report) -> str:
    """`All 8 roundings are correctly rounded.`; of a kernel's run first whether its bits are the twin's."""
    bounds = sorted(dict.fromkeys(v.bound for v in report.verdicts), key=lambda bound: bound != BIT_EQUAL)
    outcomes = (_outcome(bound, [v for v in report.verdicts if v.bound == bound]) for bound in bounds)
    return " ".join(outcomes) or "No bound was judged."


def _outcome(bound: str, verdicts: list[Verdict]) -> str:
    noun, good = BOUNDS.get(bound, ("value", f"within the bound ({bound})"))
    failed = sum(not v.passed for v in verdicts)
    if failed:
        return f"{failed} of {plural(len(verdicts), noun)} {'is' if failed == 1 else 'are'} not {good}."
    return f"The one {noun} is {good}." if len(verdicts) == 1 else f"All {len(verdicts)} {noun}s are {good}."


def verdict_about(report: Report) -> str:
    """Where a bound failed, where and by how much; else what a check of the roundings is worth."""
    failed = [f"{v.name} ({v.bound}: measured {v.measured})" for v in report.verdicts if not v.passed]
    if failed:
        return f"Failed: {listed(failed)}."
    sane = any(v.bound == CORRECTLY_ROUNDED for v in report.verdicts)
    return "Sanity check: each rounding to the nearest value is off by at most half an ulp." if sane else ""


def decisive(report: Report) -> bool:
    """Whether the verdict is news: it is about a kernel, or something failed; a twin's roundings ought to hold."""
    return not report.passed or any(v.bound != CORRECTLY_ROUNDED for v in report.verdicts)


def answers(report: Report) -> list[Answer]:
    """The end tensors (without a budget, the outputs), each in words."""
    return [_answer(report, row, row.total) for row in end_tensors(report) if row.total]


def _answer(report: Report, row: TensorRow, total: Figures) -> Answer:
    return Answer(row.name, row.about, error(total), _sources(report, row), total.relative_rms or 0.0)


def end_tensors(report: Report) -> list[TensorRow]:
    """The tensors whose error is the launch's error."""
    rows = {row.name: row for row in report.tensors}
    if report.budget:
        return [rows[name] for name in report.budget.all_on if name in rows]
    return [row for row in report.tensors if row.kind == "output"]


def error(total: Figures) -> str:
    """`rms error against the oracle 1.78 × 10⁻³, one part in 278 of its rms value (SNR 48.9 dB)`."""
    return ", ".join(part for part in (_finite_error(total), unlike(total)) if part)


def unlike(figures: Figures) -> str:
    """What the figures leave out: values that are not finite, here or in the reference."""
    if figures.mismatched:
        gone = f"{figures.mismatched} of {figures.count} values"
        return f"but {gone} are NaN or infinite on one side only, and left out of these figures"
    left = figures.count - figures.finite
    return f"{left} of {figures.count} values are NaN or infinite, and left out of these figures" if left else ""


def _finite_error(total: Figures) -> str:
    if not total.finite:
        return "no finite value to hold against the oracle"
    if total.rms == 0:
        return "exact"
    parts = f", one part in {number(1 / total.relative_rms)} of its rms value" if total.relative_rms else ""
    return f"rms error against the oracle {number(total.rms)}{parts} (SNR {decibel(total.snr_db)})"


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


def slots_about(report: Report) -> str:
    """Which tensors' two kinds of columns count different elements."""
    parts = [_slots(row, row.total) for row in report.tensors if row.total and row.partly_written]
    if not parts:
        return ""
    return (
        "Of states and caches the launch writes some slots and leaves the others: values that differ are counted over "
        f"every slot, the error against the oracle over those it wrote ({listed(parts)})."
    )


def _slots(row: TensorRow, total: Figures) -> str:
    return f"{row.name}: {total.count} of {row.difference.count} values"


def ranks_about(report: Report) -> str:
    """What shapes with ranks in them mean, where there are any."""
    rows: list[PointRow | TensorRow] = [*report.points, *report.tensors]
    several = next((shape(row.shape, row.ranks) for row in rows if row.ranks > 1), "")
    return several and f'"{several}": each of the ranks has its own, and figures are over all of them.'


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
