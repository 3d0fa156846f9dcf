"""The memory of a half-layer's launches on every rank, and what simulating them on it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from k3lab.backends import sim as simulator
from k3lab.backends.chain import simulated_chain
from k3lab.cases.case import Case
from k3lab.cases.chain import ChainCase
from k3lab.kernels import peers
from k3lab.kernels.host import Buffers, stored
from k3lab.kernels.lowered import lowered
from k3lab.launches.chain import FIRST_SLOT, LAST_SLOT, USE, USES
from k3lab.sim.engine import Engine
from k3lab.sim.options import Options

Values = Mapping[str, torch.Tensor]


class HalfLayerMemory:
    """Every rank's buffers for both launches: each has scratch and peer buffers of its own, kept from step to step.

    Attributes:
        first, last: by rank. K2a's prefix, blocks and core *are* the first launch's tensors, but for a core that torch
            computes; the step's epoch is one word.
    """

    def __init__(self, case: ChainCase, dumps: bool | None = None) -> None:
        """`dumps`: whether the launches write their locals out; as their keys say, if None."""
        self.layer = case.declaration
        together = (tensors for each in case.first for tensors in each.ranks)
        self.first = [_buffers(case.first[0], tensors, dumps) for tensors in together]
        self.last = [_buffers(case.last, tensors, dumps) for tensors in case.last.ranks]
        for first, last in zip(self.first, self.last, strict=True):
            for hand in self.layer.handed:
                if not hand.made_of:
                    last.tensors[hand.target] = first.tensors[hand.source]
            last.tensors["epoch"] = first.tensors["epoch"]
        for ranks in (self.first, self.last):
            if ranks[0].launch.peers(ranks[0].key):
                peers.join(ranks, None, USES, USE)
        self.epoch = 0

    def begin(self, case: ChainCase, epoch: int | None = None) -> None:
        """Put a step's inputs in place; `epoch` is the one after the last, if None.

        Raises:
            BadInput: for an epoch out of range.
        """
        self.epoch = self.epoch + 1 if epoch is None else epoch
        inputs = [tensors for each in case.first for tensors in each.ranks]
        for ranks, slot, given in ((self.first, FIRST_SLOT, inputs), (self.last, LAST_SLOT, case.last.ranks)):
            for buffers, tensors in zip(ranks, given, strict=True):
                buffers.next_step(tensors, epoch=self.epoch, slot=slot)

    def both(self, options: Options) -> tuple[simulator.Simulated, list[Values], list[Values]]:
        """Both launches of all ranks in one simulation; by rank, what each launch left when it ended.

        Raises:
            SimFault: when a check stops the simulation.
        """
        left: list[Values] = [{} for _ in self.first]

        def keep(rank: int, launch: int) -> None:
            if not launch:  # K2a changes the prefix in place, so the first launch's has to be read now
                self.first[rank].check_health()
                left[rank] = self.first[rank].exposed()

        done = _timed([self.first, self.last], partial(simulated_chain, [self.first, self.last], options, keep))
        return done, left, self._left(self.last)

    def alone(self, ranks: Sequence[Buffers], options: Options) -> tuple[simulator.Simulated, list[Values]]:
        """One of the launches, `first` or `last`, on all ranks; by rank, what it left.

        Raises:
            SimFault: when a check stops the simulation.
        """
        done = _timed([ranks], partial(simulated_chain, [ranks], options))
        return done, self._left(ranks)

    def put(self, cores: Sequence[Values]) -> None:
        """What torch has computed, by rank and K2a's name for it, in K2a's memory."""
        for buffers, values in zip(self.last, cores, strict=True):
            for name, value in values.items():
                buffers.tensors[name].copy_(stored(value, buffers.launch.input(name).dtype))

    def _left(self, ranks: Sequence[Buffers]) -> list[Values]:
        for buffers in ranks:
            buffers.check_health()
        return list(peers.exposed(ranks))


def _buffers(case: Case, tensors: Values, dumps: bool | None) -> Buffers:
    key = case.key if dumps is None else replace(case.key, dumps=dumps)
    made = Buffers.of(case.declaration, key, tensors)
    made.numbers["wait_ticks"] = simulator.WAIT_TICKS
    return made


def _timed(launches: Sequence[Sequence[Buffers]], simulate: Callable[[], Engine]) -> simulator.Simulated:
    """How the simulation goes; what it needs is lowered first, so that the seconds are the simulation's."""
    for ranks in launches:
        lowered(ranks[0].launch, ranks[0].key, ranks[0].stages)
    return simulator.timed(simulate)
