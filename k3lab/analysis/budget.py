"""The error budget: how much of each end tensor's error each rounding point explains."""

from __future__ import annotations

from collections.abc import Callable

from k3lab.analysis.ends import derived, end_names, error_by_rank, every_rank
from k3lab.analysis.report import Budget, BudgetRow
from k3lab.backends import Run, run
from k3lab.cases.case import Case
from k3lab.errors import expect
from k3lab.rounding import Probe, active_changes

ORDER = "torch"
HW_ROWS = ("hw.exp2", "hw.rsq")
HW_SPEC = "ulp:random"  # the modelled instruction is right to about 1 ulp: let each result be off by -1, 0 or +1


def error_budget(
    launch: str,
    case: Case,
    device: str | None = None,
    progress: Callable[[str], None] = lambda what: None,
    oracle: Run | None = None,
) -> Budget:
    """Rms error of each end tensor against the oracle with one point on, and with all but one on.

    share = (only / all on)^2. Shares need not add to 1: errors of different points interact, and fp32 sums and the
    hardware approximations (`none_on`) remain. `hw.*` rows ablate every point and let exp2 or rsq be off by up to
    1 ulp at random. Computed in torch order.

    Args:
        progress: called with what is about to be computed.
        oracle: the oracle's run of this case, if there is one already.

    Raises:
        BadInput: as `run` does.
    """
    expect(not active_changes(), "error budget", "no probe that changes values around it", active_changes())
    if oracle is not None:
        expect(oracle.case.hash == case.hash, "oracle run", "a run of the same case", "another case")
    if oracle is None:
        progress("oracle")
        oracle = run(launch, case, backend="oracle", device=device)
    truth = {name: every_rank(oracle, name) for name in end_names(oracle)}

    def errors(what: str, probe: Probe) -> dict[str, float]:
        progress(what)
        with probe:
            made = run(launch, case, order=ORDER, device=device)
            return {name: error_by_rank(made, exact, name).rms for name, exact in truth.items()}

    points = [*oracle.points, *(each.point for each in derived(case).values())]
    all_on = errors("all points on", Probe())
    none_on = errors("no point on", Probe(ablate=points))
    rows = []
    for point in points:
        others = [other for other in points if other != point]
        only = errors(f"only {point}", Probe(ablate=others))
        without = errors(f"all but {point}", Probe(ablate=point))
        rows += [BudgetRow(point, t, only[t], without[t], _share(only[t], all_on[t])) for t in all_on]
    for point in HW_ROWS:
        only = errors(point, Probe(ablate=points, swap={point: HW_SPEC}))
        rows += [BudgetRow(point, t, only[t], None, _share(only[t], all_on[t])) for t in all_on]
    return Budget(ORDER, rows, all_on, none_on)


def budget_steps(case: Case) -> int:
    """How often `error_budget` calls `progress`: the oracle, all on, none on, two a point, one a hardware row."""
    points = len(case.declaration.points_for(case.key)) + len(derived(case))
    return 3 + 2 * points + len(HW_ROWS)


def _share(only: float, everything: float) -> float | None:
    return (only / everything) ** 2 if everything else None
