"""Runs a benchmark: for each launch and number of tokens a case, its floor, its knobs, and every subject's times."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from k3lab.bench import floor, tune
from k3lab.bench.check import reference
from k3lab.bench.clock import Clock
from k3lab.bench.result import Result, Table, Tuning
from k3lab.bench.sets import rotation
from k3lab.bench.subjects import COMPILE_MODES, REPEATS, Job, Subject, median_of, subjects, timed
from k3lab.cases.case import Case
from k3lab.cases.make import geometry_of, make_case
from k3lab.errors import BadInput, expect
from k3lab.geometry import Geometry
from k3lab.launches import LaunchKey, get

TOKENS = (1, 4, 8, 16)
QLEN = 4
"""Tokens of a request of K1, or as many as there are."""

Say = Callable[[str], object]


@dataclass(frozen=True)
class Plan:
    """What to time.

    Attributes:
        ranks: of K2a, all on one GPU, in one launch with their share of the workgroups each. M1a is timed alone.
        fields: further fields of the keys, where a launch has them.
        without: kinds of subjects to leave out (`subjects`).
    """

    launches: Sequence[str]
    tokens: Sequence[int] = TOKENS
    geometry: Geometry | None = None
    nblocks: int = 4
    ranks: int = 1
    fields: Mapping[str, Any] = field(default_factory=dict)
    tune: bool = False
    repeats: int = REPEATS
    compile_modes: Sequence[str] = COMPILE_MODES
    without: Sequence[str] = ()
    seed: int = 0

    def cases(self) -> list[tuple[str, int]]:
        """(launch, tokens) of every table."""
        return [(launch, tokens) for launch in self.launches for tokens in self.tokens]


def options_of(plan: Plan, launch: str, tokens: int) -> dict[str, Any]:
    """The case's options; no slot is null, as in steps of live requests.

    Raises:
        BadInput: for a field that no launch of the plan has.
    """
    known = get(launch).key_type.__dataclass_fields__
    everywhere = set().union(*(get(name).key_type.__dataclass_fields__ for name in plan.launches))
    unknown = sorted(set(plan.fields) - everywhere)
    expect(not unknown, "field of a key", f"one of {sorted(everywhere)}", ", ".join(unknown))
    ranks = plan.ranks if launch == "k2a" else 1
    own = {"k1": {"qlen": min(QLEN, tokens)}, "m1a": {"ranks": 1}, "k2a": {"ranks": ranks}}[launch]
    given = {name: value for name, value in plan.fields.items() if name in known}
    sizes = geometry_of(plan.geometry)
    sizes = replace(sizes, blocks=sizes.blocks // ranks)
    return {"tokens": tokens, "nblocks": plan.nblocks, **own, **given, "geometry": sizes}


def key_of(plan: Plan, launch: str, tokens: int) -> LaunchKey:
    """The key of the build that is timed where nothing is tuned, without making a case."""
    options = options_of(plan, launch, tokens)
    return tune.default_key(get(launch).key(options.pop("geometry"), **options), plan.fields)


def case_of(plan: Plan, launch: str, tokens: int) -> Case:
    """A case of live requests."""
    return make_case(launch, seed=plan.seed, null="none", **options_of(plan, launch, tokens))


def check(plan: Plan) -> None:
    """Every key of the plan, before anything is measured.

    Raises:
        BadInput: naming what is out of range.
    """
    expect(len(plan.launches) > 0 and len(plan.tokens) > 0, "bench", "a launch and a number of tokens", "none")
    expect(plan.repeats >= 1, "repeats", "at least 1", plan.repeats)
    for launch, tokens in plan.cases():
        key = key_of(plan, launch, tokens)
        if launch == "m1a" and key.rank_count != 1:
            raise BadInput(f"ranks of m1a: expected 1 on one GPU, got {key.rank_count}.")


def run_bench(
    plan: Plan,
    clock: Clock,
    say: Say = print,
    chosen: Sequence[Subject] | None = None,
    keep: Callable[[Result], object] = lambda result: None,
) -> Result:
    """Every table of the plan, on the clock's device.

    Args:
        say: told what is measured next.
        chosen: subjects to time in place of all that the plan names.
        keep: given the result so far after every table.

    Raises:
        BadInput: for a plan that `check` refuses.
    """
    check(plan)
    say("bandwidth of a copy")
    bandwidth = clock.bandwidth()
    created, device, tables = datetime.now(UTC).isoformat(timespec="seconds"), clock.describe(), list[Table]()
    for launch, tokens in plan.cases():
        tables.append(_table(plan, launch, tokens, clock, bandwidth, say, chosen))
        keep(Result(created, device, bandwidth, tuple(tables)))
    return Result(created, device, bandwidth, tuple(tables))


def _table(
    plan: Plan,
    launch: str,
    tokens: int,
    clock: Clock,
    bandwidth: float,
    say: Say,
    chosen: Sequence[Subject] | None,
) -> Table:
    what = f"{launch}, S = {tokens}"
    say(f"{what}: case, oracle and twin")
    case, key = case_of(plan, launch, tokens), key_of(plan, launch, tokens)
    turn = rotation(case, clock.l2_bytes())
    job = Job(case, key, turn, reference(case), clock, plan.repeats)
    tuning = None
    if plan.tune:
        say(f"{what}: search of knobs")
        tuning = _tuning(job, clock, plan.fields)
        job = replace(job, key=tune.with_knobs(key, tuning.knobs))
    rows = []
    for subject in subjects(launch, plan.without, plan.compile_modes) if chosen is None else chosen:
        say(f"{what}: {subject.name}")
        rows.append(timed(subject, job))
    moved = floor.bytes_to_move(case)
    return Table(
        launch,
        case.declaration.published,
        tokens,
        key.rank_count,
        job.key.to_dict(),
        case.hash,
        moved,
        floor.seconds(moved, bandwidth),
        turn.sets,
        turn.launches,
        turn.covers,
        tuple(rows),
        tuning,
    )


def _tuning(job: Job, clock: Clock, named: Collection[str]) -> Tuning:
    launch = job.case.declaration
    return tune.tuned(launch, job.key, clock.describe(), lambda key: median_of(job, key), named)
