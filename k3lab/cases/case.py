"""A case: all inputs of one launch and its key, checked, hashed and never changed by a run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import torch

from k3lab import launches
from k3lab.cases.validate import validate
from k3lab.errors import BadInput, expect
from k3lab.launches import Launch, LaunchKey


@dataclass(frozen=True, eq=False)
class Case:
    """Inputs of `launch` for a build with `key`; two cases are the same when their `hash` is.

    Attributes:
        tensors: by declared name, in storage dtype; those every rank shares, if there are several.
        per_rank: by rank, the tensors each rank has its own of; empty for a launch of one rank.
        values: name of the distribution the tensors were drawn from, or where they came from.
        allow_nonfinite: whether infinities and NaN are meant.
        notes: what else is known, as JSON can hold it (`ties`: elements by point that tell reduction orders apart).
    """

    launch: str
    key: LaunchKey
    tensors: Mapping[str, torch.Tensor]
    values: str = "given"
    seed: int = 0
    allow_nonfinite: bool = False
    notes: Mapping[str, Any] = field(default_factory=dict)
    per_rank: Sequence[Mapping[str, torch.Tensor]] = ()
    _kept: dict[str, tuple[object, object]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        for name, kind in (("key", LaunchKey), ("tensors", Mapping), ("per_rank", Sequence), ("seed", int)):
            value = getattr(self, name)
            expect(isinstance(value, kind), f"case {name}", f"a {kind.__name__}", type(value).__name__)

    @property
    def ranks(self) -> list[dict[str, torch.Tensor]]:
        """Every rank's tensors by name; shared tensors are the same objects on all ranks."""
        return [{**self.tensors, **own} for own in self.per_rank] or [dict(self.tensors)]

    @property
    def declaration(self) -> Launch:
        return launches.get(self.launch)

    @property
    def checked(self) -> bool:
        """True, once `check` has found nothing wrong.

        Raises:
            BadInput: naming the tensor, what was expected and what came.
        """
        self.check()
        return True

    def check(self) -> None:
        """Check every tensor against the declaration; again only after torch has changed one in place.

        Raises:
            BadInput: naming the tensor, what was expected and what came.
        """
        self._once("check", self._check)

    @property
    def hash(self) -> str:
        """SHA-256 over the key and every tensor's name, shape, dtype and bits (strides do not count)."""
        return str(self._once("hash", self._hash))

    def _once(self, what: str, compute: Callable[[], object]) -> object:
        """What `compute` gives, kept for as long as the tensors stay as they are (as torch counts their changes)."""
        stamp = [(name, id(tensor), getattr(tensor, "_version", 0)) for name, tensor in self.stored.items()]
        kept = self._kept.get(what)
        if kept is None or kept[0] != stamp:
            kept = self._kept[what] = (stamp, compute())
        return kept[1]

    def _check(self) -> None:
        declared = self.declaration
        self._check_ranks(declared)
        for rank, tensors in enumerate(self.ranks):
            try:
                validate(declared, self.key, tensors, self.allow_nonfinite)
            except BadInput as error:
                raise BadInput(f"rank {rank}: {error}" if self.per_rank else str(error)) from None

    def _check_ranks(self, declared: Launch) -> None:
        """Refuse a case whose ranks are not the key's, or a tensor on the wrong side of shared and per rank."""
        wanted = self.key.rank_count if self.key.rank_count > 1 else 0
        expect(len(self.per_rank) == wanted, "ranks", f"{wanted} sets of per-rank tensors", len(self.per_rank))
        own = {decl.name for decl in declared.inputs if decl.per_rank} if wanted else set()
        for rank, tensors in enumerate(self.per_rank):
            shared = sorted(set(tensors) - own)
            expect(not shared, f"rank {rank}", f"only tensors {sorted(own)}", shared, "move them to the shared tensors")
        apart = sorted(own & set(self.tensors))
        expect(not apart, "shared tensors", "none that every rank has its own of", apart, "move them to per_rank")

    @property
    def stored(self) -> dict[str, torch.Tensor]:
        """Every tensor once: shared ones by name, those of rank r as `rank.r/name`."""
        own = {f"rank.{r}/{name}": t for r, tensors in enumerate(self.per_rank) for name, t in tensors.items()}
        return {**self.tensors, **own}

    def _hash(self) -> str:
        digest = hashlib.sha256()
        digest.update(json.dumps([self.launch, self.key.to_dict()], sort_keys=True).encode())
        for name, tensor in sorted(self.stored.items()):
            tensor = tensor.detach().cpu().contiguous()
            digest.update(json.dumps([name, list(tensor.shape), str(tensor.dtype)]).encode())
            digest.update(tensor.view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """What provenance records of a case."""
        return {
            "launch": self.launch,
            "values": self.values,
            "seed": self.seed,
            "allow_nonfinite": self.allow_nonfinite,
            "hash": self.hash,
            "key": self.key.to_dict(),
        }

    def __repr__(self) -> str:
        size = sum(t.numel() * t.element_size() for t in self.stored.values())
        return (
            f"Case({self.launch}, S={self.key.tokens}, geometry={self.key.geometry.name}, values={self.values}, "
            f"seed={self.seed}, {len(self.stored)} tensors, {size / 1e6:.1f} MB, {self.hash[:12]})"
        )

    def _repr_html_(self) -> str:
        held = self.ranks[0]
        rows = "".join(
            f"<tr><td>{decl.name}</td><td>{list(held[decl.name].shape)}</td><td>{decl.dtype}</td>"
            f"<td>{escape(decl.about)}</td></tr>"
            for decl in self.declaration.inputs_for(self.key)
            if decl.name in held
        )
        head = "<tr><th>tensor</th><th>shape</th><th>dtype</th><th>what it is</th></tr>"
        return f"<p><b>{escape(repr(self))}</b></p><table>{head}{rows}</table>"
