"""Tables and sentences the commands print on stdout."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from k3lab.analysis import sentences
from k3lab.analysis.report import Budget, Report
from k3lab.analysis.words import decibel, number, plural, shape, share_text

if TYPE_CHECKING:
    from k3lab.analysis.orders import OrderProbe
    from k3lab.analysis.selftest import SelfTest
    from k3lab.analysis.timeline import Timeline
    from k3lab.backends import Run
    from k3lab.cases import Case

PLAIN_WIDTH = 160


def console() -> Console:
    """A console on stdout; piped output gets a width that tables fit in."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)


def table(*columns: str, title: str | None = None, left: int = 1) -> Table:
    """A table whose first `left` columns hold text and whose others hold figures."""
    made = Table(title=title, title_justify="left")
    for place, name in enumerate(columns):
        made.add_column(name, justify="left" if place < left else "right", overflow="fold")
    return made


def run_table(run: Run) -> Table:
    """The exposed tensors of rank 0."""
    made = table("tensor", "kind", "shape", "format", "rms", "max", "not finite", left=3)
    for name, value in run.values.items():
        finite = value[value.isfinite()].double()
        rms = float(finite.square().mean().sqrt()) if finite.numel() else None
        largest = float(finite.abs().max()) if finite.numel() else None
        made.add_row(
            name,
            run.launch.kind_of(name),
            shape(value.shape),
            run.launch.format_of(name, run.key),
            number(rms),
            number(largest),
            str(value.numel() - finite.numel()),
        )
    return made


def run_heading(run: Run) -> str:
    """What ran, in a line."""
    from k3lab.analysis.compare import label

    first = run.live[0] if run.live else 0
    ranks = f", rank {first} of {len(run.ranks)}" if len(run.ranks) > 1 else ""
    return f"{run.launch.name} ({run.launch.published}): {label(run)}{ranks}; {run.case!r}"


def measured(run: Run) -> str:
    """How long it took, and where that was measured; what of the ranks did not run, and why."""
    if because := run.provenance.get("ranks", {}).get("because"):
        return f"{_seconds(run)}\nnot all ranks run: {because}"
    return _seconds(run)


def _seconds(run: Run) -> str:
    if run.backend == "sim":
        return f"{run.seconds:.2f} s of wall time to simulate, measured on {run.provenance['device']}: not a GPU's time"
    return f"{run.seconds:.2f} s, measured on {run.provenance['device']}: the time of this backend, not of a GPU kernel"


def case_table(case: Case) -> Table:
    """The input tensors of a case."""
    made = table("tensor", "shape", "dtype", "each rank its own", "what it is", left=5)
    for declared in case.declaration.inputs_for(case.key):
        own = any(declared.name in tensors for tensors in case.per_rank)
        value = case.ranks[0].get(declared.name)
        if value is not None:
            made.add_row(declared.name, shape(value.shape), declared.dtype, "yes" if own else "no", declared.about)
    return made


def case_facts(case: Case) -> dict[str, Any]:
    """What `case info --json` prints."""
    tensors = {
        name: {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        for name, value in case.ranks[0].items()
    }
    return {**case.describe(), "ranks": len(case.ranks), "tensors": tensors}


def report_lines(folder: str, report: Report) -> list[str]:
    """What was compared, the results, and the verdict (first where it decides something), one line each."""
    ranks = f" ({plural(report.ranks, 'rank')})" if report.ranks else ""
    lines = [f"{folder}{ranks}: {report.labels['run']} against {report.labels['reference']}."]
    for answer in sentences.answers(report):
        parts = [part for part in (answer.error, answer.sources) if part]
        lines.append(f"  {answer.tensor}: {'; '.join(parts)}.")
    verdict = f"  {sentences.verdict(report)} {sentences.verdict_about(report)}".rstrip()
    lines.insert(1 if sentences.decisive(report) else len(lines), verdict)
    return lines


def change_lines(report: Report, old: Report | None) -> list[str]:
    """What changed since an older report, one line each; none without one."""
    from k3lab.analysis.changes import changes

    return [f"  {sentence}" for sentence in changes(report, old).sentences] if old is not None else []


def budget_table(launch: str, budget: Budget) -> Table:
    """Shares by rounding point and end tensor."""
    tensors = list(budget.all_on)
    made = table("the only rounding that is on", *tensors, title=f"{launch}: share of each end tensor's error energy")
    made.caption = "–: cannot reach the tensor, or explains less than a millionth of its error"
    made.caption_justify = "left"
    shares = {(row.point, row.tensor): row for row in budget.rows}
    for point in dict.fromkeys(row.point for row in budget.rows):
        cells = []
        for tensor in tensors:
            row = shares[point, tensor]
            reached = row.share is not None and budget.reaches(row)
            cells.append(share_text(row.share or 0.0) if reached else "–")
        made.add_row(point, *cells)
    made.add_section()
    rests = (budget.rest(tensor) for tensor in tensors)
    made.add_row("nothing rounded", *("" if rest is None else share_text(rest) for rest in rests))
    made.add_row("rms error, all on", *(number(budget.all_on[tensor]) for tensor in tensors))
    return made


def orders_table(made: OrderProbe) -> Table:
    """By tensor, what each order changes against rank order, and its error against float64."""
    from k3lab.analysis.orders import ORDERS

    columns = ("elements that differ", "max ulp", "rms difference / rms", "rms error against float64", "SNR")
    shown = table("tensor", "order of the sum", *columns, title="k2a: the ranks' sum in other orders", left=2)
    for row in made.rows:
        differ = f"{row.difference.differ} of {row.difference.count}"
        moved = (number(row.difference.max_ulp), number(row.difference.relative_rms))
        tensor = row.tensor if row.order == next(iter(ORDERS)) else ""
        shown.add_row(tensor, row.order, differ, *moved, number(row.error.rms), decibel(row.error.snr_db))
        if row.order == list(ORDERS)[-1]:
            shown.add_section()
    shown.caption = "; ".join(f"{order}: {about}" for order, about in ORDERS.items())
    shown.caption_justify = "left"
    return shown


def selftest_table(test: SelfTest) -> Table:
    """One line a comparison; without a kernel is said below."""
    made = table("launch", "case", "what ran", "equal", "what came of it", "seconds", title=test.device, left=5)
    for row in test.rows:
        no = Text("no", style="red") if row.judged else Text("no, not judged", style="dim")
        equal = Text("yes", style="green") if row.equal else no
        made.add_row(row.launch, row.case, row.what, equal, row.outcome, f"{row.seconds:.2f}")
    without = [f"no kernel in this version: {', '.join(test.without)}"] if test.without else []
    made.caption = "\n".join([*without, *test.notes]) or None
    return made


def doctor_tables(facts: dict[str, Any]) -> list[Table]:
    """What `doctor` found, for reading."""
    system = table("what", "found", left=2, title="This machine")
    for name in ("k3lab", "python", "system"):
        system.add_row(name, facts[name])
    for name, version in facts["packages"].items():
        system.add_row(name, version or Text("not installed", style="dim"))
    system.add_row("GPU", facts["gpu"])
    system.add_row("launches", ", ".join(facts["launches"]))
    backends = table("backend", "works here", "", left=3, title="Backends")
    for backend in (*facts["backends"], *facts["lowering"]):
        works = Text("yes", style="green") if backend["works"] else Text("no", style="red")
        backends.add_row(backend["name"], works, backend["why"])
    return [system, backends]


def open_page(path: Path) -> None:
    """Open `path` in a browser where there is a display, else say where it is."""
    address = path.absolute().as_uri()
    display = sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not (display and webbrowser.open(address)):
        console().print(f"open {address} in a browser", soft_wrap=True)


def timeline_lines(timeline: Timeline, old: Timeline | None) -> list[str]:
    """What the timeline says, and how much changed since an older one, one line each."""
    from k3lab.analysis.timeline.sentences import summary
    from k3lab.analysis.timeline.store import changes

    lines = [f"{timeline.title}, {timeline.case}: {timeline.clock.label}."]
    lines += [f"  {sentence}" for sentence in summary(timeline)]
    for change in changes(old, timeline) if old is not None else ():
        before, after = ("none" if us is None else f"{us:.3f} µs" for us in (change.old, change.new))
        lines.append(f"  changed: {change.row}, {change.figure}: {before} -> {after}")
    return lines
