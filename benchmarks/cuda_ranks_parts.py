"""The parts of `cuda_ranks`: what each does on the GPUs, and what it finds."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import torch

import k3lab
from benchmarks import cuda_ranks_results as results
from benchmarks import cuda_ranks_tasks as tasks
from benchmarks.cuda_items import Item, load
from benchmarks.cuda_kinds import differences
from benchmarks.cuda_ranks_items import EQUAL, KILLED, STAMPED, STEPS, TIMED, is_fast, plan_of
from k3lab.analysis.timeline.store import to_json
from k3lab.backends.cuda import compiler
from k3lab.backends.cuda.ranks import launch as teams
from k3lab.backends.cuda.ranks.clocks import Clocks
from k3lab.backends.cuda.ranks.plan import Plan
from k3lab.backends.cuda.ranks.team import Team
from k3lab.backends.cuda.ranks.worker import Worker, offsets
from k3lab.backends.run import versions
from k3lab.bench import tune
from k3lab.bench.clock import driver
from k3lab.bench.ranks import COPY_BYTES, Crew, Ground, Work, by_torch
from k3lab.bench.ranks import timed as launches_timed
from k3lab.bench.ranks_tasks import copies
from k3lab.errors import InternalFault
from k3lab.files import write_text
from k3lab.kernels import peers
from k3lab.kernels.host import stored

TURNS = 3
"""Inputs that take turns there: a word of an earlier use of the same half, two epochs ago, is then another one."""
WAIT = {"gpu": 500_000_000, "host": 3_000_000}
"""How long a bounded wait takes in the part `killed`: nanoseconds, or on the host microseconds."""
LAUNCHES, ITERATIONS = 270, 180
"""Counted in the part `timed`: of ours, and of torch's ways."""
Found = dict[str, Any]


class Bench:
    """What the parts share: the items, where they run, and what they have found so far."""

    def __init__(self, folder: Path, out: Path, part: str, gpus: int, engine: str, count: int, only: str) -> None:
        self.out, self.part, self.gpus, self.engine, self.count = out, part, gpus, engine, count
        self.items = [item for item in load(folder) if any(words in item.name for words in only.split(","))]
        self.found: dict[str, Found] = {}
        self.begun = datetime.now(UTC).date().isoformat()
        self._team: Team | None = None

    def of(self, kind: str) -> list[Item]:
        """The items of a kind."""
        return [item for item in self.items if item.kind == kind]

    def plan(self, item: Item) -> Plan:
        """Who runs an item where."""
        return plan_of(item, self.gpus, is_fast(item))

    def team(self, plan: Plan, fresh: bool = False) -> Team:
        """A team for a plan: the last one, if it still fits."""
        old = self._team
        if fresh or old is None or len(old.processes) != plan.gpus or len(old.alive) != plan.gpus:
            self.end()
            self._team = Team(plan.gpus, self.engine, patience=20.0)
        assert self._team
        return self._team

    def limit(self, seconds: float) -> float:
        """Seconds that a task may take; on the host, which has to compile, more."""
        return seconds if self.engine == "gpu" else 10 * seconds

    def end(self) -> None:
        """No team any more."""
        if self._team:
            self._team.end()
        self._team = None

    def note(self, name: str, check: Callable[[], Found]) -> None:
        """Do a check, and write down what it finds or how it fails."""
        begun = time.perf_counter()
        try:
            found = check()
        except Exception as error:
            found = {"equal": False, "said": f"{type(error).__name__}: {error}"[:1500]}
            self.end()
        found["wall_s"] = round(time.perf_counter() - begun, 2)
        self.found[name] = found
        mark = "ok    " if found["equal"] else "WRONG "
        click.echo(f"{mark}{self.part}: {name}, {found['wall_s']} s {found.get('said') or found.get('differ') or ''}")
        about = {"gpus": self.gpus, "engine": self.engine, "device": _device(self.engine), "driver": driver()}
        about |= {"versions": _versions(self.engine), "date": self.begun}
        write_text(self.out / f"{self.part}.json", json.dumps({**about, "items": self.found}, indent=1, default=str))


def _device(engine: str) -> str:
    return torch.cuda.get_device_name(0) if engine == "gpu" else "this machine's processor"


def _versions(engine: str) -> dict[str, str]:
    return {**versions(), **({"nvrtc": compiler.version()} if engine == "gpu" else {})}


def work_of(bench: Bench, item: Item) -> Work:
    """An item's case, for the key that its kernel was lowered for, and who runs where."""
    return Work(replace(item.case(), key=item.key()), bench.plan(item))


def equal(bench: Bench) -> None:
    """Every rank's tensors against its twin's, and the ranks' among each other."""
    for item in bench.of(EQUAL):
        bench.note(item.name, lambda item=item: _equal(bench, item))  # type: ignore[misc]
    bench.end()
    if bench.engine == "gpu":
        for item in [item for item in bench.of(EQUAL) if "mini" in item.name and bench.plan(item).whole][:1]:
            bench.note(f"{item.name}, by k3lab.run", lambda item=item: _by_run(bench, item))  # type: ignore[misc]


def _by_run(bench: Bench, item: Item) -> Found:
    """The same through `k3lab.run`, as the command line has it."""
    work = work_of(bench, item)
    case, plan = work.case, work.spread
    run, twin = k3lab.run(item.launch, case, backend="cuda", gpus=plan.gpus), k3lab.run(item.launch, case)
    lines = [f"rank {r}: {line}" for r, values in enumerate(run.ranks) for line in differences(values, twin.ranks[r])]
    return {"equal": not lines, "differ": lines[:5], "said": str(run.provenance.get("ranks"))}


def _equal(bench: Bench, item: Item) -> Found:
    work = work_of(bench, item)
    case, plan = work.case, work.spread
    twin = k3lab.run(item.launch, case)
    team, ranks = bench.team(plan), work.buffers(twin.ranks)
    teams.load(team, ranks, plan)
    team.ask(Worker.step, limit=bench.limit(30))
    exposed = peers.exposed(teams.fetched(team, ranks, plan), plan.live)
    lines = [f"rank {r}: {line}" for r, values in enumerate(exposed) for line in differences(values, twin.ranks[r])]
    alike = case.launch != "k2a" or all(
        torch.equal(exposed[plan.live[0]][name].view(torch.int32), exposed[rank][name].view(torch.int32))
        for rank in plan.live
        for name in ("delta", "x_out")
        if name in exposed[rank]
    )
    count = sum(value.numel() for values in exposed for value in values.values())
    return {
        "equal": not lines and alike,
        "values": count,
        "ranks_alike": alike,
        "differ": lines[:5],
        **plan.described(),
    }


def turns_of(case: k3lab.Case) -> list[k3lab.Case]:
    """The case with its activations turned by some columns, so that every turn gives other results."""
    name = "core" if case.launch == "k2a" else "prefix"
    found = []
    for turn in range(TURNS):
        per_rank = [{**own, **_rolled(own, name, turn)} for own in case.per_rank]
        found.append(replace(case, tensors={**case.tensors, **_rolled(case.tensors, name, turn)}, per_rank=per_rank))
    return found


def _rolled(tensors: Mapping[str, torch.Tensor], name: str, turn: int) -> dict[str, torch.Tensor]:
    return {name: torch.roll(tensors[name], turn, -1)} if name in tensors else {}


def steps(bench: Bench) -> None:
    """Many steps in a row, each process at its own pace."""
    for item in bench.of(STEPS):
        bench.note(item.name, lambda item=item: _steps(bench, item))  # type: ignore[misc]
    bench.end()


def _steps(bench: Bench, item: Item) -> Found:
    work = work_of(bench, item)
    case, plan = work.case, work.spread
    turns = turns_of(case)
    name = "core" if case.launch == "k2a" else "prefix"
    judged = not plan.fast
    twins = [k3lab.run(item.launch, turn) for turn in turns] if judged or not plan.whole else []
    team, ranks = bench.team(plan), work.buffers()
    inputs = [{rank: {name: turn.ranks[rank][name]} for rank in plan.live} for turn in turns]
    sent: dict[int, Any] = {}
    if not plan.whole:  # what others send is the same in every turn: their part of one twin
        turns, inputs = turns[:1], inputs[:1]
        sent = dict(enumerate(peers.sent_by_others(case.declaration, case.key, plan.live, twins[0].ranks)))
        peers.fill_others(ranks, plan.live, twins[0].ranks)
    teams.load(team, ranks, plan, sent)
    path = str(team.folder / "turns")
    tasks.keep_turns(path, inputs)
    done = team.ask(tasks.steps, path, bench.count, 5, limit=bench.limit(60))
    lines = list(_first(case, plan, done, twins)) if judged else []
    alike = case.launch != "k2a" or _alike(done)
    wrong = sum(each["wrong_bytes"] for each in done)
    seconds = max(each["seconds"] for each in done)
    fine = not wrong and not lines and alike
    about = {"steps": bench.count, "turns": len(turns), "us_a_step": 1e6 * seconds / bench.count, "ranks_alike": alike}
    return {
        "equal": fine,
        "wrong_bytes": wrong,
        "against_twin": judged,
        "differ": lines[:5],
        **about,
        **plan.described(),
    }


def _first(case: k3lab.Case, plan: Plan, done: Sequence[Found], twins: Sequence[k3lab.Run]) -> Iterator[str]:
    """Where the first outputs of a turn are not the twin's, in bytes."""
    formats = {output.name: output.dtype for output in case.declaration.made_for(case.key)}
    formats |= {decl.name: decl.dtype for decl in case.declaration.inputs}
    for gpu, each in enumerate(done):
        for first in each["first"]:
            for rank, outputs in zip(plan.live_on(gpu), first["outputs"], strict=True):
                for name, got in outputs.items():
                    twin = twins[first["turn"]].ranks[rank][name]
                    want = tasks.bytes_of(stored(twin, formats[name]).contiguous()).numpy()
                    if not np.array_equal(got, want):
                        yield f"turn {first['turn']}, rank {rank}: {name} differs in {int((got != want).sum())} bytes"


def _alike(done: Sequence[Found]) -> bool:
    """Whether all ranks have made the same x_out in each turn."""
    by_turn: dict[int, list[np.ndarray]] = {}
    for each in done:
        for first in each["first"]:
            by_turn.setdefault(first["turn"], []).extend(outputs["x_out"] for outputs in first["outputs"])
    return all(np.array_equal(made[0], other) for made in by_turn.values() for other in made)


def killed(bench: Bench) -> None:
    """A process is killed in a step: the others must end by themselves, saying what they miss, or be ended."""
    for item in bench.of(KILLED):
        bench.note(item.name, lambda item=item: _killed(bench, item))  # type: ignore[misc]
    bench.end()


def _killed(bench: Bench, item: Item) -> Found:
    work = work_of(bench, item)
    case, plan = work.case, work.spread
    team = bench.team(plan, fresh=True)
    teams.load(team, work.buffers(wait=WAIT[bench.engine]), plan)
    pids, team.grace = team.alive, 8.0
    team.begin(tasks.endless, 3)
    time.sleep(1.2)
    team.kill(plan.gpus - 1)
    begun, said = time.perf_counter(), "nothing was missed"
    try:
        team.wait(bench.limit(60))
    except InternalFault as fault:
        said = str(fault)
    seconds = time.perf_counter() - begun
    left = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    region = "AR" if item.launch == "k2a" else "QG"
    named = f"of region {region}" in said and "Missing: rank" in said if case.key.bounded else "was ended" in said
    return {"equal": named and not left and seconds < 20, "said": said, "ended_after_s": seconds, "left": left}


def link(bench: Bench) -> None:
    """Copies between the GPUs, and their clocks."""
    bench.note("copies and clocks", lambda: _link(bench))
    bench.end()


def _link(bench: Bench) -> Found:
    plan = Plan(bench.gpus, tuple(range(bench.gpus)), bench.gpus)
    team = bench.team(plan)
    clocks = Clocks(team.ask(offsets, limit=30)[0], team.ask(offsets, limit=30)[0])
    moved = team.ask(copies, COPY_BYTES, 20, limit=30)
    return {"equal": True, "bytes_a_second": moved, "clocks": clocks.described()}


def stamped(bench: Bench) -> None:
    """A timeline whose times are all on GPU 0's clock."""
    for item in bench.of(STAMPED):
        bench.note(item.name, lambda item=item: _stamped(bench, item))  # type: ignore[misc]


def _stamped(bench: Bench, item: Item) -> Found:
    work = work_of(bench, item)
    case, plan = work.case, work.spread
    back, said = teams.launched(work.buffers(), plan)
    device = _device(bench.engine)
    timeline = results.timeline(
        case, [buffers.tensors["tl"] for buffers in back], plan, device, said, _versions(bench.engine)
    )
    write_text(bench.out / f"{item.launch}-timeline.json", to_json(timeline))
    passed = timeline.stamps != 0
    begun = [int(rank[some].min()) - timeline.begin for rank, some in zip(timeline.stamps, passed, strict=True)]
    ended = [int(rank.max()) - timeline.begin for rank in timeline.stamps]
    return {"equal": bool(said), "began_ns": begun, "ended_ns": ended, **said, **plan.described()}


def timed(bench: Bench) -> None:
    """Launches beside NCCL and torch, in the same run, and the least that the bytes and the link take."""
    with Crew(bench.gpus, bench.engine) as crew:
        for item in bench.of(TIMED):
            bench.note(item.name, lambda item=item: _timed(bench, item, crew))  # type: ignore[misc]
            if bench.found[item.name]["equal"]:  # else nothing is loaded that torch could do as well
                bench.note(f"{item.name}: torch", lambda: _by_torch(crew))


def _by_torch(crew: Crew) -> Found:
    """Medians in microseconds of torch's ways with what the crew has loaded, or why there are none."""
    made = by_torch(crew, ITERATIONS)
    found = {row.name.removeprefix("part: "): row.note if row.median is None else 1e6 * row.median for row in made}
    return {"equal": not crew.hung, "medians_us": found}


def _timed(bench: Bench, item: Item, crew: Crew) -> Found:
    work, team = work_of(bench, item), crew.team
    work.load(team)
    found = launches_timed(team, LAUNCHES)
    ground = Ground.of(team)
    local, remote = work.local_bytes, work.remote_bytes
    least = {
        "memory_us": 1e6 * local / ground.memory,
        "link_us": 1e6 * remote / ground.link,
        "one_way_us": 1e6 * ground.one_way,
        "all_us": 1e6 * ground.floor(local, remote),
    }
    ours = [
        {
            "median_us": 1e6 * median(gpu["seconds"]),
            "shortest_us": 1e6 * min(gpu["seconds"]),
            "step_us": 1e6 * gpu["step"],
            "launches": len(gpu["seconds"]),
        }
        for gpu in found["gpus"]
    ]
    slowest = 1e6 * median(found["seconds"])
    about = {"local_bytes": local, "remote_bytes": remote, "floor": least, "knobs": tune.knobs_of(work.key)}
    return {"equal": True, "ours": ours, "median_us": slowest, "over_floor": slowest / least["all_us"], **about}


PARTS: Mapping[str, Callable[[Bench], None]] = {
    "link": link,
    "equal": equal,
    "steps": steps,
    "killed": killed,
    "stamped": stamped,
    "timed": timed,
}
