"""What a process of a team does for `cuda_ranks`: tasks, each a function that takes the worker first."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from k3lab.backends.cuda.ranks.engine import bytes_of
from k3lab.backends.cuda.ranks.parcels import read, write
from k3lab.backends.cuda.ranks.worker import Worker

FENCED = 500
"""Steps between two fences."""
SOMETIMES = 0.3
"""Share of the steps that a process is late in, on the host and on its stream."""
LATE_HOST, LATE_STREAM = 200e-6, 50e-6
"""Seconds, at most."""
Given = list[dict[str, torch.Tensor]]
Turns = list[dict[int, dict[str, torch.Tensor]]]


def keep_turns(path: str | Path, turns: Turns) -> None:
    """Put inputs by turn, rank and name into a file."""
    named = [{rank: list(given) for rank, given in turn.items()} for turn in turns]
    held = {
        f"{i}/{rank}/{name}": value
        for i, turn in enumerate(turns)
        for rank, given in turn.items()
        for name, value in given.items()
    }
    write(path, held, named)


def turns_in(path: str | Path) -> Turns:
    """What `keep_turns` put there."""
    tensors, named = read(path)
    return [
        {int(rank): {name: tensors[f"{i}/{rank}/{name}"] for name in names} for rank, names in turn.items()}
        for i, turn in enumerate(named)
    ]


class Steps:
    """Launches in a row whose inputs take turns: by live rank, the inputs of each turn and the outputs it must give."""

    def __init__(self, worker: Worker, path: str) -> None:
        launcher = worker.running
        turns = turns_in(path)
        self.launcher, live = launcher, worker.plan.live_on(worker.setup.me)
        device = launcher.live[0].tensors["epoch"].device
        self.given: list[Given] = [
            [{name: tensor.to(device) for name, tensor in turn[rank].items()} for rank in live] for turn in turns
        ]
        changed = [name for name in ("prefix", "blocks", "kv_cache") if name in launcher.live[0].tensors]
        self.start: Given = [{name: held.tensors[name].clone() for name in changed} for held in launcher.live]
        made = [output.name for output in launcher.live[0].launch.made_for(launcher.live[0].key)]
        self.outputs = [
            name for name in dict.fromkeys((*made, "prefix", "kv_cache")) if name in changed or name in made
        ]
        self.wanted: list[Given] = []

    def put(self) -> int:
        """This epoch's inputs in place; its turn."""
        turn = self.launcher.epoch % len(self.given)
        for held, start, given in zip(self.launcher.live, self.start, self.given[turn], strict=True):
            for name, tensor in {**start, **given}.items():
                held.tensors[name].copy_(tensor)
        return turn

    def found(self) -> Given:
        """Copies of the outputs' bytes."""
        return [{name: bytes_of(held.tensors[name]).clone() for name in self.outputs} for held in self.launcher.live]

    def wrong(self, turn: int) -> torch.Tensor:
        """Bytes of the outputs that are not those this turn must give, on the device."""
        count = torch.zeros((), dtype=torch.int64, device=self.launcher.live[0].tensors["epoch"].device)
        for held, wanted in zip(self.launcher.live, self.wanted[turn], strict=True):
            for name, value in wanted.items():
                count += (bytes_of(held.tensors[name]) != value).sum()
        return count


def steps(worker: Worker, path: str, count: int, seed: int) -> dict[str, Any]:
    """`count` steps at this process's own pace; the first of each turn, between fences, say what all must give."""
    held, launcher = Steps(worker, path), worker.running
    rng, wrong, first = np.random.default_rng([seed, worker.setup.me]), None, []
    held.wanted = [[] for _ in held.given]
    for _ in held.given:
        turn = held.put()
        worker.step()
        held.wanted[turn] = held.found()
        first.append(
            {"turn": turn, "outputs": [{name: v.cpu().numpy() for name, v in out.items()} for out in held.wanted[turn]]}
        )
        worker.advance()
    begun, late = time.perf_counter(), rng.random((count, 4))
    for i in range(count):
        turn = held.put()
        if late[i, 0] < SOMETIMES:
            time.sleep(late[i, 1] * LATE_HOST)
        if late[i, 2] < SOMETIMES:
            launcher.delay(late[i, 3] * LATE_STREAM)
        launcher.launch()
        wrong = held.wrong(turn) if wrong is None else wrong + held.wrong(turn)
        worker.advance()
        if i % FENCED == FENCED - 1:
            worker.settle()
            worker.fence()
    worker.settle()
    worker.fence()
    seconds = time.perf_counter() - begun
    return {"steps": count, "wrong_bytes": int(wrong or 0), "seconds": seconds, "epoch": launcher.epoch, "first": first}


def endless(worker: Worker, seed: int) -> None:
    """Steps until a wait is given up, or this process is killed."""
    rng, until = np.random.default_rng([seed, worker.setup.me]), time.monotonic() + 60
    while time.monotonic() < until:
        time.sleep(rng.random() * LATE_HOST)
        worker.running.launch()
        worker.settle()
        worker.advance()
