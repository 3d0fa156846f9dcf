"""Launches in a row on several ranks in the simulator: each rank's one after the other, all ranks at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch

from k3lab.backends.sim import flat
from k3lab.kernels.host import Buffers
from k3lab.kernels.lowered import lowered
from k3lab.layout import PAIR_BYTES
from k3lab.sim.chain import Launch as Call
from k3lab.sim.chain import simulate_chain
from k3lab.sim.engine import Engine
from k3lab.sim.memory.buffers import Memory
from k3lab.sim.memory.regions import SharedRegion
from k3lab.sim.options import Options

Kind = Literal["pairs", "rows", "flags"]


def simulated_chain(
    steps: Sequence[Sequence[Buffers]],
    options: Options | None = None,
    ended: Callable[[int, int], None] | None = None,
) -> Engine:
    """Run launches on every rank's buffers, in place: `steps[i][r]` is rank r's launch number i, joined before.

    Launches may share scratch, peer buffers and what they hand each other with others of their rank.

    Args:
        ended: called with a rank and the number of its launch that has ended, before its next one starts.

    Raises:
        SimFault: when a check stops the simulation.
    """
    memory, names = Memory(), _Names()
    for i, rank, buffers in _each(steps):
        for argument in ("peer_buffer", *(argument.tensor for argument in buffers.arguments)):
            if argument in buffers.tensors:
                tensor = buffers.tensors[argument]
                memory.add(names.of(rank, i, argument, tensor), flat(tensor))
    for step in steps:
        if "peers" in step[0].tensors:
            table = torch.from_numpy(memory.table(flat(buffers.tensors["peer_buffer"]) for buffers in step))
            for buffers in step:
                buffers.tensors["peers"].copy_(table)
    ranks = [[_call(step[rank]) for step in steps] for rank in range(len(steps[0]))]
    regions = [*_scratch_regions(steps, names), *_peer_regions(steps, names)]
    return simulate_chain(ranks, memory=memory, options=options, regions=regions, ended=ended)


class _Names:
    """What reports call each array: by rank, and by the first launch that has it."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int], str] = {}

    def of(self, rank: int, launch: int, argument: str, tensor: torch.Tensor) -> str:
        """The array's name; the one it was first called by, where launches share it."""
        made = f"{argument} of rank {rank}, launch {launch}"
        return self._names.setdefault((tensor.data_ptr(), tensor.numel()), made)


def _each(steps: Sequence[Sequence[Buffers]]) -> Iterator[tuple[int, int, Buffers]]:
    for i, step in enumerate(steps):
        for rank, buffers in enumerate(step):
            yield i, rank, buffers


def _call(buffers: Buffers) -> Call:
    return Call(lowered(buffers.launch, buffers.key, buffers.stages), buffers.bound(flat))


def _scratch_regions(steps: Sequence[Sequence[Buffers]], names: _Names) -> Iterator[SharedRegion]:
    """Regions and rows in every scratch, and rows in the outputs; what launches share is declared once."""
    declared: dict[int, str] = {}
    for i, rank, buffers in _each(steps):
        scratch, launch = buffers.tensors["scratch"], buffers.launch
        flags = {region.name for region in launch.regions if region.word == "flag"}
        guards = {plain.name: plain.guard for plain in launch.rows}
        suffix = declared.get(scratch.data_ptr())
        if suffix is None:
            suffix = declared[scratch.data_ptr()] = f", launch {i}" if i else ""
            where = names.of(rank, i, "scratch", scratch)
            for place in buffers.places:
                kind: Kind = "rows" if place.name in guards else "flags" if place.name in flags else "pairs"
                guard = guards[place.name] + suffix if place.name in guards else None
                empty = place.name in guards and place.name in buffers.written  # until this launch has written it
                yield SharedRegion(
                    place.name + suffix, where, place.offset, place.nbytes, kind, guard, rank=rank, scratch=empty
                )
        for plain in launch.rows:
            if plain.output:
                tensor = buffers.tensors[plain.name]
                name, where = f"{plain.name}, launch {i}", names.of(rank, i, plain.name, tensor)
                yield SharedRegion(name, where, 0, tensor.nbytes, "rows", plain.guard + suffix, rank=rank)


def _peer_regions(steps: Sequence[Sequence[Buffers]], names: _Names) -> Iterator[SharedRegion]:
    """Regions in both halves of every peer buffer, as large as the largest launch has them."""
    largest: dict[tuple[int, str, str], tuple[int, int, int, str]] = {}
    for i, rank, buffers in _each(steps):
        if "peer_buffer" in buffers.tensors:
            where = names.of(rank, i, "peer_buffer", buffers.tensors["peer_buffer"])
            for place in buffers.launch.peers(buffers.key):
                kind = "pairs" if place.itemsize == PAIR_BYTES else "flags"
                key, half = (rank, where, place.name), buffers.numbers["half_bytes"]
                largest[key] = max(largest.get(key, (0, 0, 0, "")), (place.nbytes, place.offset, half, kind))
    for (rank, where, name), (nbytes, offset, half, kind) in largest.items():
        for h in range(2):
            kind_of: Kind = "pairs" if kind == "pairs" else "flags"
            yield SharedRegion(
                f"{name}, half {h}", where, h * half + offset, nbytes, kind_of, scope="system", rank=rank
            )
