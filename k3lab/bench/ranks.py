"""A benchmark over several GPUs of this host: a process each, a launch's ranks spread over them.

A launch ends on a GPU when all words of the other GPUs have come: its time is that of the GPU where it takes longest.
The floor is what a GPU must move: in its own memory at the bandwidth of a copy, or over the link at that of a copy from
another GPU, whichever takes longer, and one way over the link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from k3lab.backends import run
from k3lab.backends.cuda import device
from k3lab.backends.cuda.ranks import launch as teams
from k3lab.backends.cuda.ranks.plan import Plan as Spread
from k3lab.backends.cuda.ranks.plan import check_gpus
from k3lab.backends.cuda.ranks.team import Team
from k3lab.backends.cuda.ranks.worker import Worker, offsets
from k3lab.bench import floor, make, ranks_tasks, ranks_torch, tune
from k3lab.bench.check import checked, reference, values_of
from k3lab.bench.clock import Clock
from k3lab.bench.result import OURS, Link, Result, Row, Table, decibels
from k3lab.bench.samples import quantile
from k3lab.bench.sets import weight_bytes
from k3lab.cases.case import Case
from k3lab.cases.make import make_case
from k3lab.errors import BackendUnavailable, BadInput, InternalFault, K3LabError, expect
from k3lab.geometry import Geometry
from k3lab.kernels import peers
from k3lab.kernels.abi import stage_names
from k3lab.kernels.host import Buffers
from k3lab.launches import LaunchKey, get

LAUNCHES = ("k2a", "m1a")
"""Those whose ranks hand each other words."""
COPY_BYTES, COPIES = 256 << 20, 10
PATIENCE = 20.0
"""Seconds that a process waits for the others."""
LIMIT = 60.0
"""Seconds that what is timed may take."""
ENDLESS = 1 << 30
"""Ticks of a wait that shall not be given up."""
ABOUT_GRAPH = f"{ranks_torch.UNROLLED} iterations captured"
ABOUT_EAGER = "calls from Python as they come"
ABOUT_QUEUE = "calls in a queue that was full before the first ran"


@dataclass
class Crew:
    """A team of as many processes as GPUs, a new one whenever the last has ended.

    Attributes:
        engine: `gpu`, or for tests `host`.
        hung: why torch's ways are not asked for any more, if they did not come back.
    """

    gpus: int
    engine: str = "gpu"
    hung: str = ""
    _team: Team | None = field(default=None, repr=False)

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def team(self) -> Team:
        """The team that runs."""
        if self._team is None or len(self._team.alive) < self.gpus:
            self.end()
            self._team = Team(self.gpus, self.engine, PATIENCE)
        return self._team

    def end(self) -> None:
        """No team any more."""
        if self._team:
            self._team.end()
        self._team = None


@dataclass(frozen=True)
class Ground:
    """What the GPUs and the link between them do without any kernel: of several GPUs, the slowest.

    Attributes:
        memory: bytes a second of a copy within a GPU's memory, those read and those written.
        link: bytes a second of a copy from another GPU's.
        one_way: seconds of a store, the link, and the poll that sees it; the quickest GPU's.
    """

    memory: float
    link: float
    one_way: float

    @classmethod
    def of(cls, team: Team, nbytes: int = COPY_BYTES) -> Ground:
        """Measured now."""
        moved = team.ask(ranks_tasks.copies, nbytes, COPIES, limit=LIMIT)
        ways = [gpu.one_way for gpu in team.ask(offsets, limit=LIMIT)[0][1:]]
        return cls(2 * min(gpu["own"] for gpu in moved), min(gpu["peer"] for gpu in moved), min(ways) / 1e9)

    def floor(self, local: int, remote: int) -> float:
        """Seconds that a launch takes at least, of so many bytes in a GPU's memory and over the link."""
        return max(local / self.memory, remote / self.link) + self.one_way


@dataclass(frozen=True)
class Work:
    """A launch to time: its case, whose key is the build's, and which rank runs where."""

    case: Case
    spread: Spread

    @property
    def key(self) -> Any:
        """Of the build."""
        return self.case.key

    def buffers(self, twin: Sequence[Mapping[str, torch.Tensor]] | None = None, wait: int = ENDLESS) -> list[Buffers]:
        """All ranks' for epoch 1, where a twin is given with what ranks that do not run send.

        Args:
            twin: by rank, what the kernel-order twin exposes.
            wait: ticks after which a bounded build gives a wait up.
        """
        case = self.case
        made = [Buffers.of(case.declaration, self.key, tensors) for tensors in case.ranks]
        peers.join(made)
        for buffers in made:
            buffers.numbers["wait_ticks"] = wait
        if twin is not None and not self.spread.whole:
            peers.fill_others(made, self.spread.live, twin)
        return made

    def load(self, team: Team) -> list[Buffers]:
        """Hand it to a team, whose processes get what ranks that do not run send in every launch."""
        spread, twin, sent = self.spread, None, dict[int, Any]()
        if not spread.whole:
            twin = run(self.case.launch, self.case).ranks
            sent = dict(enumerate(peers.sent_by_others(self.case.declaration, self.key, spread.live, twin)))
        made = self.buffers(twin)
        teams.load(team, made, spread, sent)
        return made

    @property
    def local_bytes(self) -> int:
        """That a GPU's live ranks load and store at least, each once, on the GPU that has most of them."""
        return floor.bytes_to_move(self.case) * self.spread.most_live // self.spread.ranks

    @property
    def remote_bytes(self) -> int:
        """That a GPU's live ranks put into other GPUs' memory, on the GPU that puts most: words with their tags."""
        key, spread = self.key, self.spread
        g = key.geometry
        words = key.tokens * (g.hidden // 2 if self.case.launch == "k2a" else g.heads * g.entry // 4)
        a_word = 4 if getattr(key, "sentinel", False) else 8
        # Two shots: a share to each other rank, and the sums of the own columns to each.
        share = 2 / spread.ranks if getattr(key, "two_shot", False) else 1
        others = [len(spread.live_on(gpu)) * (spread.ranks - len(spread.on(gpu))) for gpu in range(spread.gpus)]
        return round(max(others) * words * a_word * share)


def timed(team: Team, count: int) -> dict[str, Any]:
    """`count` launches of what is loaded: seconds of each on the GPU where it took longest, of a step, by GPU too."""
    found = team.ask(ranks_tasks.launches, count, limit=LIMIT)
    return {
        "seconds": longest([gpu["seconds"] for gpu in found]),
        "step": max(gpu["step"] for gpu in found),
        "kernel": found[0]["kernel"],
        "gpus": found,
    }


def longest(times: Sequence[Sequence[float]]) -> list[float]:
    """Of each launch, the time on the GPU where it took longest."""
    return [max(each) for each in zip(*times, strict=True)]


def by_torch(crew: Crew, count: int, without: Sequence[str] = ()) -> list[Row]:
    """A row for each way torch does what is loaded; one that cannot be timed says why."""
    if crew.hung:
        return [Row("torch and NCCL", ABOUT_EAGER, note=crew.hung)]
    try:
        found = crew.team.ask(ranks_torch.baselines, count, tuple(without), limit=LIMIT)
    except InternalFault as fault:
        crew.hung = f"not measured: {fault}"
        return [Row("torch and NCCL", ABOUT_EAGER, note=crew.hung)]
    return [_row(name, [gpu[name] for gpu in found]) for name in found[0]]


def _row(name: str, found: Sequence[tuple[str, str, ranks_torch.Times]]) -> Row:
    part, mode = found[0][:2]
    about = ABOUT_GRAPH if mode == "graph" else ABOUT_QUEUE if part else ABOUT_EAGER
    said = [times for *_, times in found if isinstance(times, str)]
    if said:
        return Row(name, about, note=said[0], part=part)
    times = longest([times for *_, times in found if not isinstance(times, str)])
    return Row(name, about, mode, times, ranks_torch.UNROLLED if mode == "graph" else 1, part=part)


@dataclass(frozen=True)
class Plan:
    """What to time over several GPUs.

    Attributes:
        asked: launches, tokens and the rest; its `ranks` are the launch's, spread over `gpus`.
        share: whether K2a's sizes are those of a model split over that many ranks.
    """

    asked: make.Plan
    gpus: int
    share: bool = True

    def options(self, launch: str, tokens: int) -> dict[str, Any]:
        """The case's options; GPUs with several ranks share their workgroups out.

        Raises:
            BadInput: for a field that no launch of the plan has, or ranks that make no split.
        """
        ranks = self.asked.ranks
        sizes = self.asked.geometry or Geometry.k3()
        if self.share and launch == "k2a":
            sizes = replace(Geometry.k3(max(ranks, 2)), blocks=sizes.blocks)
        sizes = replace(sizes, blocks=sizes.blocks // -(-ranks // self.gpus))
        given = make.options_of(replace(self.asked, ranks=1, geometry=sizes), launch, tokens)
        return {**given, "ranks": ranks, "geometry": sizes}

    def key(self, launch: str, tokens: int) -> LaunchKey:
        """Of the build that is timed, without making a case."""
        options = self.options(launch, tokens)
        return tune.default_key(get(launch).key(options.pop("geometry"), **options), self.asked.fields)

    def case(self, launch: str, tokens: int) -> Case:
        """A case of live requests, for that key."""
        made = make_case(launch, seed=self.asked.seed, null="none", **self.options(launch, tokens))
        return replace(made, key=self.key(launch, tokens))

    def check(self) -> None:
        """Every key, before anything is measured.

        Raises:
            BadInput: naming what is out of range.
        """
        for launch in self.asked.launches:
            expect(launch in LAUNCHES, "launch over several GPUs", f"one of {', '.join(LAUNCHES)}", repr(launch))
        expect(self.gpus >= 2, "gpus", "at least 2", self.gpus, "leave it out for one")
        expect(not self.asked.tune, "tune", "none over several GPUs", "a search", "tune on one GPU and --set the knobs")
        expect(self.asked.repeats >= 1, "repeats", "at least 1", self.asked.repeats)
        check_gpus(self.gpus, self.asked.ranks)
        for launch, tokens in self.asked.cases():
            self.key(launch, tokens)

    def lower(self, folder: Path) -> int:
        """Write the builds that a GPU machine without FlyDSL needs; returns how many.

        Raises:
            BackendUnavailable, BadInput: as `tune.lower`.
        """
        cases = self.asked.cases()
        return sum(1 for name, s in cases for _ in tune.lower(folder, get(name), self.key(name, s), False))


def check_count(gpus: int) -> None:
    """Whether this host has so many GPUs.

    Raises:
        BackendUnavailable: saying how many there are.
    """
    device.check_torch()
    if (count := torch.cuda.device_count()) < gpus:
        raise BackendUnavailable(f"cuda: expected {gpus} GPUs in this host, got {count}.")


def run_bench(
    plan: Plan,
    clock: Clock,
    say: Callable[[str], object] = print,
    engine: str = "gpu",
    keep: Callable[[Result], object] = lambda result: None,
) -> Result:
    """Every table of the plan, on the first GPUs of this host.

    Args:
        clock: of one of them, which describes it.
        say: told what is measured next.
        keep: given the result so far after every table.

    Raises:
        BadInput: for a plan that `Plan.check` refuses.
        BackendUnavailable: when there are too few GPUs, they do not reach each other, or a build does not fit.
    """
    plan.check()
    with Crew(plan.gpus, engine) as crew:
        say("copies over the link")
        ground = Ground.of(crew.team, COPY_BYTES if engine == "gpu" else clock.l2_bytes())
        created, device, tables = datetime.now(UTC).isoformat(timespec="seconds"), clock.describe(), list[Table]()
        for name, tokens in plan.asked.cases():
            tables.append(_table(plan, name, tokens, crew, ground, clock, say))
            keep(Result(created, device, ground.memory, tuple(tables)))
    return Result(created, device, ground.memory, tuple(tables))


def _table(
    plan: Plan, launch: str, tokens: int, crew: Crew, ground: Ground, clock: Clock, say: Callable[[str], object]
) -> Table:
    what = f"{launch}, S = {tokens}, {plan.gpus} GPUs"
    say(f"{what}: case, oracle and twin")
    case = plan.case(launch, tokens)
    every = Spread(plan.asked.ranks, tuple(range(plan.asked.ranks)), plan.gpus, True)
    spread = every
    if crew.engine == "gpu":
        stages = stage_names(case.declaration)
        spread = device.check(case.declaration, case.key, stages, "cuda", fast=True, gpus=plan.gpus)
    work = Work(case, spread)
    say(f"{what}: {OURS}")
    rows = [_ours(work, crew, plan.asked.repeats)]
    if rows[0].samples:
        say(f"{what}: torch")
        rows += by_torch(crew, plan.asked.repeats, plan.asked.without)
    weights = _weights(work)
    return Table(
        launch,
        case.declaration.published,
        tokens,
        spread.ranks,
        case.key.to_dict(),
        case.hash,
        work.local_bytes,
        ground.floor(work.local_bytes, work.remote_bytes),
        1,
        1,
        weights / clock.l2_bytes(),
        tuple(rows),
        gpus=plan.gpus,
        link=Link(work.remote_bytes, ground.link, ground.one_way),
    )


def _weights(work: Work) -> int:
    """Bytes of the weights that a GPU's live ranks read."""
    return weight_bytes(work.case) * work.spread.most_live // work.spread.ranks


def _ours(work: Work, crew: Crew, repeats: int) -> Row:
    """Our kernel: outputs of one launch held against the oracle, then launches in a row."""
    name, about = f"{OURS}, fast build", "one launch a GPU: tensor cores, approximate exp2, rsq and quotients"
    try:
        team = crew.team
        given = work.load(team)
        team.ask(Worker.step, limit=LIMIT)
        back = teams.fetched(team, given, work.spread)
        outputs = checked(reference(work.case), [values_of(work.case, back[rank].tensors) for rank in work.spread.live])
        found = timed(team, repeats)
    except BadInput:
        raise
    except K3LabError as error:
        return Row(name, about, note=str(error))
    seconds = found["seconds"]
    note = f"shortest {1e6 * quantile(seconds, 0):.1f} us, {1e6 * found['step']:.1f} us from one launch to the next"
    note += f"; {work.spread.text}" if not work.spread.whole else ""
    return Row(
        name,
        about,
        "stream",
        seconds,
        1,
        note,
        knobs=tune.knobs_of(work.key),
        weights=_weights(work),
        snr={name: decibels(snr) for name, snr in outputs.snr.items()},
        fine=outputs.fine,
        kernel=found["kernel"],
    )
