"""A process of a team: it holds the ranks of one GPU, and does what the team's owner asks for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import Any

import torch

from k3lab.backends.cuda.ranks import probes
from k3lab.backends.cuda.ranks.board import Board
from k3lab.backends.cuda.ranks.clocks import Offset
from k3lab.backends.cuda.ranks.engine import GpuLauncher, HostLauncher, on_gpu
from k3lab.backends.cuda.ranks.mapping import GpuMemory, HostMemory, Memory
from k3lab.backends.cuda.ranks.parcels import Job, Parcel, write_parcels
from k3lab.backends.cuda.ranks.plan import Plan
from k3lab.errors import InternalFault, K3LabError
from k3lab.kernels.health import GaveUp
from k3lab.kernels.host import Buffers

ORPHAN = 5
"""A process's exit code when its owner has ended."""
NOTICED = 1.0
"""Seconds in which the owner sees that a process has ended."""
MAILBOX = 64
"""Bytes of a process's words for round trips."""


@dataclass(frozen=True)
class Setup:
    """What a process is told when it starts.

    Attributes:
        me: its number, which is its GPU's, of `count`.
        engine: `gpu`, or `host` for tests.
        folder: of the team's files.
        patience: seconds that a fence waits.
    """

    me: int
    count: int
    engine: str
    folder: str
    patience: float


class Worker:
    """The state of a process; functions that the owner calls get it as their first argument."""

    def __init__(self, setup: Setup) -> None:
        from torch.distributed import FileStore

        self.setup, self.folder = setup, Path(setup.folder)
        ranks_on = [(gpu,) for gpu in range(setup.count)]
        self.board = Board(self.folder / "board", ranks_on, setup.me)
        self.board.say("process", os.getpid())
        self.store = FileStore(str(self.folder / "store"), setup.count)
        self.memory: Memory = self._memory()
        self.launcher: GpuLauncher | None = None
        self.plan = Plan(setup.count, tuple(range(setup.count)), setup.count)
        self.number = 0

    @property
    def gpu(self) -> int | None:
        """This process's GPU; None on the host."""
        return self.setup.me if self.setup.engine == "gpu" else None

    def _memory(self) -> Memory:
        if self.gpu is None:
            return HostMemory(self.folder, self.store)
        return GpuMemory(self.gpu, self.setup.count, self.store)

    def fence(self) -> None:
        """Wait for every process.

        Raises:
            MissingRanks: when one does not come.
        """
        self.board.fence(self.setup.patience)

    def addresses(self, what: str, nbytes: int) -> tuple[torch.Tensor, list[int]]:
        """New memory of every process's: this one's, uint8 [nbytes], and where all processes' is mapped here."""
        self.number += 1
        name, me = f"{what}-{self.number}", self.setup.me
        mine = self.memory.make(f"{name}-{me}", nbytes)
        others = {who: self.memory.open(f"{name}-{who}", nbytes) for who in range(self.setup.count) if who != me}
        return mine, [others.get(who, mine.data_ptr()) for who in range(self.setup.count)]

    def load(self, path: str) -> None:
        """Get ready for a job: its ranks' memory here, everyone's peer buffers mapped, the kernel loaded."""
        job = Job.load(path)
        self.plan, me = job.plan, self.setup.me
        self.board.ranks_on = [job.plan.on(gpu) for gpu in range(self.setup.count)]
        mine = {rank: parcel.buffers() for rank, parcel in job.ranks.items()}
        first = next(iter(mine.values()))
        held, table = self._peers(mine, first.tensors["peer_buffer"])
        for rank, buffers in mine.items():
            buffers.tensors["peer_buffer"] = held[rank]
        ranks, live = list(mine), job.plan.live_on(me)
        places, sent = [ranks.index(rank) for rank in live], [job.sent.get(rank, []) for rank in ranks]
        if self.gpu is None:
            self.launcher = HostLauncher(list(mine.values()), places, sent=sent, table=table)
        else:
            self.launcher = on_gpu(list(mine.values()), places, self.gpu, job.plan.fast, sent, table)
        self.board.say("epoch", self.launcher.epoch)
        self.launcher.finish()
        self.fence()

    def _peers(self, mine: dict[int, Buffers], like: torch.Tensor) -> tuple[dict[int, torch.Tensor], list[int]]:
        """This GPU's ranks' peer buffers where others reach them, and where every rank's is mapped here."""
        ranks = self.plan.on(self.setup.me)
        most = max(len(self.plan.on(gpu)) for gpu in range(self.setup.count))
        piece, starts = self.addresses("peers", most * like.nbytes)
        held = {}
        for place, rank in enumerate(ranks):
            part = piece[place * like.nbytes : (place + 1) * like.nbytes].view(like.shape)
            held[rank] = part.copy_(mine[rank].tensors["peer_buffer"])
        count = self.setup.count
        return held, [starts[rank % count] + rank // count * like.nbytes for rank in range(self.plan.ranks)]

    @property
    def running(self) -> GpuLauncher:
        """What was loaded last.

        Raises:
            InternalFault: when nothing was.
        """
        if self.launcher is None:
            raise InternalFault("team: expected a job to be loaded before it is run, got none.")
        return self.launcher

    def step(self) -> None:
        """One launch, to its end on every GPU.

        Raises:
            InternalFault: when a wait was given up, with the ranks that are missing, if any are.
        """
        self.running.launch()
        self.settle()
        self.fence()

    def advance(self) -> None:
        """Count the epoch on."""
        self.running.advance()
        self.board.say("epoch", self.running.epoch)

    def settle(self) -> None:
        """Wait for this GPU's launches, and look whether their waits ended in time.

        Raises:
            InternalFault: when one was given up, with the ranks that are missing, if any are.
        """
        self.running.finish()
        for buffers in self.running.live:
            if not buffers.key.bounded:
                continue
            try:
                buffers.check_health()
            except GaveUp as gave_up:
                raise InternalFault(f"{gave_up} {self._missing()}".strip()) from None

    def _missing(self) -> str:
        """Which processes have ended, once the owner has had time to see it."""
        time.sleep(NOTICED)
        gone = [who for who, ended in enumerate(self.board.read("gone")) if ended]
        return f"Missing: {'; '.join(map(self.board.who, gone))}." if gone else ""

    def fetch(self, path: str, names: Sequence[str] | None = None) -> None:
        """Write this GPU's ranks' buffers into a file, all tensors or those of some names."""
        ranks = zip(self.plan.on(self.setup.me), self.running.fetch(), strict=True)
        write_parcels(path, {rank: Parcel.of(buffers, names) for rank, buffers in ranks})

    def offset(self, other: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Round trips between GPU 0 and another one; on GPU 0, both sides' logs."""
        words, (zero, *others) = self.pings()
        self.fence()
        if self.setup.me not in (0, other):
            self.fence()
            return None
        there = others[other - 1]
        theirs, asks = (there, True) if self.setup.me == 0 else (zero, False)
        log = probes.ping(self.gpu, words.data_ptr(), theirs, asks)
        if not asks:
            self.store.set(f"log-{self.number}", log.numpy().tobytes().hex())
        self.fence()
        if not asks:
            return None
        answered = torch.frombuffer(bytearray.fromhex(self.store.get(f"log-{self.number}").decode()), dtype=torch.int64)
        return log, answered.view(-1, 2)

    def pings(self) -> tuple[torch.Tensor, list[int]]:
        """Words for round trips."""
        return self.addresses("ping", MAILBOX)


def offsets(worker: Worker) -> list[Offset]:
    """How far every GPU's clock is ahead of GPU 0's; empty on the other GPUs."""
    found = [Offset(0.0, 0.0, 0.0, 0)]
    for other in range(1, worker.setup.count):
        logs = worker.offset(other)
        if logs is not None:
            found.append(Offset.of(*logs))
    return found if worker.setup.me == 0 else []


Task = Callable[..., Any]
"""A function of a module, which takes the worker first."""


def main(setup: Setup, wire: connection.Connection) -> None:
    """What a process does: one task after the other, until the owner closes the wire."""
    threading.Thread(target=_watch_owner, daemon=True).start()
    torch.set_num_threads(1)
    worker: Worker | None = None
    while True:
        try:
            task, args = wire.recv()
        except EOFError:
            return
        try:
            worker = worker or Worker(setup)
            wire.send(("done", task(worker, *args)))
        except K3LabError as error:
            wire.send((type(error).__name__, str(error)))
        except Exception as error:
            wire.send(("InternalFault", f"{type(error).__name__}: {error}"))


def _watch_owner() -> None:
    """End this process when its owner ends, whatever it waits for."""
    owner = parent_process()
    if owner is not None:
        connection.wait([owner.sentinel])
        os._exit(ORPHAN)
