"""Buffers on their way between the processes of a team: files of tensors whose header says in JSON what they are.

A tensor goes as the memory that it lies in, and comes back in its own strides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open

from k3lab import launches
from k3lab.backends.cuda.ranks.engine import bytes_of
from k3lab.backends.cuda.ranks.plan import Plan
from k3lab.kernels.host import Buffers
from k3lab.kernels.peers import Sent
from k3lab.layout import Placed

HEADER = "k3lab_parcel"
Tensors = dict[str, torch.Tensor]


def write(path: str | Path, tensors: Mapping[str, torch.Tensor], about: Any) -> None:
    """Put tensors of any strides into a file, with `about`, which JSON can hold."""
    layout = {name: [str(t.dtype).removeprefix("torch."), t.shape, t.stride()] for name, t in tensors.items()}
    flat = {name: bytes_of(tensor).clone() for name, tensor in tensors.items()}
    safetensors.torch.save_file(flat, path, {HEADER: json.dumps([layout, about])})


def read(path: str | Path) -> tuple[Tensors, Any]:
    """What `write` put there; every tensor in memory of its own, aligned as torch aligns it."""
    found: Tensors = {}
    with safe_open(path, "pt") as file:
        layout, about = json.loads(file.metadata()[HEADER])
        for name, (dtype, shape, stride) in layout.items():
            flat = file.get_tensor(name).clone().view(getattr(torch, dtype))
            found[name] = flat.as_strided(shape, stride)
    return found, about


@dataclass(frozen=True)
class Parcel:
    """A rank's buffers: what `Buffers` has, the launch by its name."""

    launch: str
    key: Any
    stages: frozenset[str]
    tensors: Tensors
    numbers: dict[str, int]

    @classmethod
    def of(cls, buffers: Buffers, names: Sequence[str] | None = None) -> Parcel:
        """All of the buffers' tensors, or those of some names."""
        held = {name: tensor for name, tensor in buffers.tensors.items() if names is None or name in names}
        return cls(buffers.launch.name, buffers.key, buffers.stages, held, dict(buffers.numbers))

    def buffers(self) -> Buffers:
        """The buffers again."""
        return Buffers(launches.get(self.launch), self.key, self.stages, self.tensors, self.numbers)

    @property
    def about(self) -> dict[str, Any]:
        """All but the tensors."""
        stages = sorted(self.stages)
        return {"launch": self.launch, "key": self.key.to_dict(), "stages": stages, "numbers": self.numbers}

    @classmethod
    def from_about(cls, about: Mapping[str, Any], tensors: Tensors) -> Parcel:
        """The parcel that `about` is of."""
        key = launches.get(about["launch"]).key_type.from_dict(about["key"])
        return cls(about["launch"], key, frozenset(about["stages"]), tensors, dict(about["numbers"]))


def write_parcels(
    path: str | Path, ranks: Mapping[int, Parcel], about: Any = None, more: Tensors | None = None
) -> None:
    """Put parcels by rank into a file, and `more` tensors under names of their own."""
    tensors = {f"{rank}/{name}": tensor for rank, parcel in ranks.items() for name, tensor in parcel.tensors.items()}
    said = {"ranks": {rank: parcel.about for rank, parcel in ranks.items()}, "about": about}
    write(path, {**tensors, **(more or {})}, said)


def read_parcels(path: str | Path) -> tuple[dict[int, Parcel], Any, Tensors]:
    """What `write_parcels` put there: the parcels, `about`, and every tensor by its name in the file."""
    tensors, said = read(path)
    found = {}
    for rank, about in said["ranks"].items():
        own = {name.removeprefix(f"{rank}/"): t for name, t in tensors.items() if name.startswith(f"{rank}/")}
        found[int(rank)] = Parcel.from_about(about, own)
    return found, said["about"], tensors


@dataclass(frozen=True)
class Job:
    """What a GPU runs: by its ranks, their buffers, and what ranks that do not run send them."""

    plan: Plan
    ranks: dict[int, Parcel]
    sent: dict[int, list[Sent]] = field(default_factory=dict)

    def save(self, path: str | Path) -> None:
        """Write it into a file."""
        given = [(rank, each) for rank, some in self.sent.items() for each in some]
        words = {f"sent/{number}": each.words for number, (_, each) in enumerate(given)}
        sent = [[rank, asdict(e.place), e.source, e.part.start, e.part.stop] for rank, e in given]
        write_parcels(path, self.ranks, {"plan": asdict(self.plan), "sent": sent}, words)

    @classmethod
    def load(cls, path: str | Path) -> Job:
        """The job that `save` wrote."""
        ranks, about, tensors = read_parcels(path)
        plan = Plan(**{**about["plan"], "live": tuple(about["plan"]["live"])})
        sent: dict[int, list[Sent]] = {rank: [] for rank in ranks}
        for number, (rank, place, source, first, end) in enumerate(about["sent"]):
            placed = Placed(**{**place, "shape": tuple(place["shape"])})
            sent[rank].append(Sent(placed, source, slice(first, end), tensors[f"sent/{number}"]))
        return cls(plan, ranks, sent)
