"""One launch of all ranks on several GPUs of this host, as a backend needs it: buffers in, buffers out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from k3lab.backends.cuda.ranks.clocks import Clocks
from k3lab.backends.cuda.ranks.parcels import Job, Parcel, read_parcels
from k3lab.backends.cuda.ranks.plan import Plan
from k3lab.backends.cuda.ranks.team import Team
from k3lab.backends.cuda.ranks.worker import Worker, offsets
from k3lab.kernels.host import Buffers
from k3lab.kernels.peers import Sent

ENGINE = "gpu"
"""What teams run on; tests take `host`."""
IDLE = ("peer_buffer", "epoch")
"""What is needed of a rank that does not run."""


def launched(ranks: Sequence[Buffers], plan: Plan) -> tuple[list[Buffers], dict[str, Any]]:
    """One launch on copies of the buffers; returns what came back, on the CPU, and what provenance says of it.

    A timeline build's stamps come back on GPU 0's clock.

    Raises:
        BadInput, BackendUnavailable: as `device.load`.
        InternalFault: when a process fails, or a wait of a bounded build is given up.
    """
    timed = ranks[0].key.timeline
    with Team(plan.gpus, ENGINE) as team:
        load(team, ranks, plan)
        before = team.ask(offsets)[0] if timed else []
        team.ask(Worker.step)
        clocks = Clocks(before, team.ask(offsets)[0]) if timed else None
        back = fetched(team, ranks, plan)
    if clocks is None:
        return back, {}
    for rank, buffers in enumerate(back):
        buffers.tensors["tl"] = clocks.on_one_clock(rank % plan.gpus, buffers.tensors["tl"])
    return back, {"clocks": clocks.described()}


def load(team: Team, ranks: Sequence[Buffers], plan: Plan, sent: Mapping[int, list[Sent]] | None = None) -> None:
    """Hand every process the buffers of its ranks, all of which keep their tensors here.

    Args:
        sent: by rank, what ranks that do not run send it in each launch after the first.
    """
    paths = [str(team.folder / f"job-{gpu}") for gpu in range(plan.gpus)]
    for gpu in range(plan.gpus):
        mine = {rank: Parcel.of(ranks[rank], None if rank in plan.live else IDLE) for rank in plan.on(gpu)}
        Job(plan, mine, {rank: list((sent or {}).get(rank, ())) for rank in mine}).save(paths[gpu])
    team.ask(Worker.load, *paths, each=True)


def fetched(team: Team, ranks: Sequence[Buffers], plan: Plan) -> list[Buffers]:
    """Every rank's buffers as they are now; weights, which no launch changes, stay those that were handed out."""
    weights = {decl.name for decl in ranks[0].launch.inputs_for(ranks[0].key) if decl.fill in ("weight", "norm_weight")}
    names = [name for name in ranks[0].tensors if name not in weights]
    paths = [str(team.folder / f"back-{gpu}") for gpu in range(plan.gpus)]
    team.ask(_fetch, *((path, names) for path in paths), each=True)
    found: dict[int, Parcel] = {}
    for path in paths:
        found |= read_parcels(path)[0]
    back = []
    for rank, given in enumerate(ranks):
        parcel = found[rank]
        back.append(Buffers(given.launch, given.key, given.stages, {**given.tensors, **parcel.tensors}, parcel.numbers))
    return back


def _fetch(worker: Worker, what: tuple[str, list[str]]) -> None:
    worker.fetch(*what)
