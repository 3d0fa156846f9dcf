"""The order probe: how far the order in which an all-reduce sums the ranks moves K2a's results, all else equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from k3lab.analysis.compare import run_difference
from k3lab.analysis.ends import run_error
from k3lab.analysis.report import Difference
from k3lab.analysis.words import listed, number, plural
from k3lab.backends import Run, run
from k3lab.cases.case import Case
from k3lab.errors import expect
from k3lab.rounding import Probe, active_changes
from k3lab.stats import Figures

LAUNCH = "k2a"
POINT = "k2a.reduce.sum"
TENSORS = ("delta", "prefix", "x_out")
RANK_ORDER = "rank order"
ORDERS = {
    RANK_ORDER: "from rank 0's value on, as the kernel does it",
    "rotated": "each owner's columns from its own rank on, then round, as some two-shot all-reduces do",
    "pairwise": "a balanced tree over the ranks",
    "float64": "summed in float64, rounded to bf16 once",
}
"""Orders by name; all but the first are alternatives of the option point `k2a.reduce.sum`."""


@dataclass(frozen=True)
class OrderRow:
    """A tensor under one order: how it differs from rank order's, and its error against the float64 oracle."""

    order: str
    tensor: str
    difference: Difference
    error: Figures


@dataclass(frozen=True)
class OrderProbe:
    """What the order alone does on one case; rows go by tensor, then by order, rank order first."""

    case: Case
    rows: Sequence[OrderRow]

    @property
    def sentence(self) -> str:
        """The answer: how far the order moves the launch's result."""
        rows = [row for row in self.rows if row.tensor == TENSORS[-1]]
        moved = [row for row in rows if row.difference.differ]
        ranks, tensor = plural(self.case.key.rank_count, "rank"), TENSORS[-1]
        if not moved:
            return f"{ranks}: in whichever order they are summed, {tensor} is the same in every bit."
        most = max(moved, key=lambda row: row.difference.differ)
        ulp = max((row.difference.max_ulp or 0.0 for row in moved), default=0.0)
        errors = [row.error.rms for row in rows]
        return (
            f"{ranks}: the order alone moves {tensor} under {listed(row.order for row in moved)}, in at most "
            f"{most.difference.differ} of {plural(most.difference.count, 'element')} ({most.order}) and by at most "
            f"{number(ulp)} bf16 ulp; rms error against float64 lies between {number(min(errors))} and "
            f"{number(max(errors))}."
        )


def order_probe(
    case: Case, mfma: str = "fused", device: str | None = None, progress: Callable[[str], None] = lambda what: None
) -> OrderProbe:
    """Run K2a's twin on `case` once for every order of `ORDERS`, and the oracle.

    Args:
        mfma: MFMA model of o_proj, the same for all.
        device: torch device, `cpu` by default.
        progress: called with what is about to be computed.

    Raises:
        BadInput: for a case of another launch, a probe that changes values around it, and as `run` does.
    """
    expect(case.launch == LAUNCH, "order probe", f"inputs of {LAUNCH}, the launch that all-reduces", case.launch)
    expect(not active_changes(), "order probe", "no probe that changes values around it", active_changes())
    progress("oracle")
    oracle = run(LAUNCH, case, backend="oracle", device=device)
    runs = {}
    for order in ORDERS:
        progress(order)
        with Probe(swap={} if order == RANK_ORDER else {POINT: order}):
            runs[order] = run(LAUNCH, case, mfma=mfma, device=device)
    return OrderProbe(case, [_row(runs, order, name, oracle) for name in TENSORS for order in ORDERS])


def order_steps() -> int:
    """How often `order_probe` calls `progress`."""
    return 1 + len(ORDERS)


def _row(runs: dict[str, Run], order: str, name: str, oracle: Run) -> OrderRow:
    made = runs[order]
    return OrderRow(order, name, run_difference(made, runs[RANK_ORDER], name), run_error(made, oracle, name).figures())
