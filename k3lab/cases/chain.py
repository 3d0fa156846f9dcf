"""A case of a half-layer: the attention launch's inputs on every rank, and K2a's own."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from k3lab.cases.case import Case
from k3lab.cases.fill_m1a import CONTEXT
from k3lab.cases.make import FILLS, distribution, drawn, geometry_of, make_case
from k3lab.cases.shapes import DTYPES, least_shape
from k3lab.errors import expect
from k3lab.geometry import Geometry
from k3lab.launches import K2aKey, LaunchKey
from k3lab.launches.chain import HalfLayer, half_layer
from k3lab.stages.kda.rows import split_proj

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class ChainCase:
    """Inputs of a half-layer; a run never changes them.

    Attributes:
        first: the attention launch's case: one of all ranks together, or one a rank.
        last: K2a's case, where what it is handed holds what its memory holds before the step: the first launch's prefix
            and blocks, and a core of zeros.
        qlen: tokens of each request.
        seed: what they were drawn under (`make_chain`).
    """

    kind: str
    first: tuple[Case, ...]
    last: Case
    qlen: int
    seed: int = 0

    @property
    def declaration(self) -> HalfLayer:
        return half_layer(self.kind)

    @property
    def key(self) -> K2aKey:
        """K2a's, which knows the ranks."""
        assert isinstance(self.last.key, K2aKey)
        return self.last.key

    @property
    def together(self) -> bool:
        """Whether the ranks run the first launch together (one of them alone does, too)."""
        return len(self.first) == 1

    @property
    def hash(self) -> str:
        """SHA-256 over the launches' cases."""
        parts = [self.kind, str(self.qlen), *(case.hash for case in (*self.first, self.last))]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def check(self) -> None:
        """Check every launch's tensors, and that all belong to one half-layer.

        Raises:
            BadInput: naming the launch or tensor, what was expected and what came.
        """
        for case in (*self.first, self.last):
            case.check()
        names = [case.launch for case in (*self.first, self.last)]
        wanted = [launch.name for launch in self.declaration.launches]
        expect([*dict.fromkeys(names)] == wanted, f"{self.kind} case", f"inputs of {wanted}", names)
        first = self.first[0].key
        expect(all(case.key == first for case in self.first), "ranks", "one key on all of them", "several")
        ranks = sum(case.key.rank_count for case in self.first)
        expect(ranks == self.key.ranks, f"ranks of {wanted[0]}", f"K2a's {self.key.ranks}", ranks)
        for name in ("geometry", "tokens"):
            own, theirs = getattr(self.key, name), getattr(first, name)
            expect(own == theirs, f"{name} of k2a", f"{theirs}, as {wanted[0]} has", own)
        seen = first.sizes["BLOCKS_USED"]
        expect(self.key.nblocks == seen, "nblocks of k2a", f"{seen}, what {wanted[0]} leaves", self.key.nblocks)
        expect(first.tokens % self.qlen == 0, "qlen", f"a divisor of the {first.tokens} tokens", self.qlen)
        self._check_alike()
        if self.declaration.computed:
            self._check_room(first.tokens)

    def _check_alike(self) -> None:
        """What all ranks share must be the same on all of them."""
        own = self.declaration.own(self.together)
        one = self.first[0].ranks[0]
        for rank, case in enumerate(self.first[1:], 1):
            for name in one.keys() - own:
                mine = case.tensors[name]
                same = mine is one[name] or torch.equal(_bits(mine), _bits(one[name]))
                expect(same, f"{name} of rank {rank}", "rank 0's, as all ranks share it", "another")

    def _check_room(self, tokens: int) -> None:
        """A decode attention reads a context of every request from the cache."""
        least = tokens + tokens // self.qlen * CONTEXT
        for rank, tensors in enumerate(tensors for case in self.first for tensors in case.ranks):
            expect("w_kv_b" in tensors, f"rank {rank}", "kv_b_proj (w_kv_b), which the attention needs", "none")
            room = tensors["kv_cache"].shape[0] * tensors["kv_cache"].shape[1]
            expect(room >= least, "slots", f"at least {least} (tokens, and {CONTEXT} of context a request)", room)

    def after(self, handed: Sequence[Tensors]) -> Case:
        """K2a's case once it has been handed its inputs.

        Args:
            handed: by rank, K2a's inputs by name in their storage dtype; what all ranks share is rank 0's.
        """
        own = {decl.name for decl in self.last.declaration.inputs if decl.per_rank and self.key.ranks > 1}
        shared = {name: value for name, value in handed[0].items() if name not in own}
        per_rank = [
            {**tensors, **{name: value for name, value in mine.items() if name in own}}
            for tensors, mine in zip(self.last.per_rank, handed, strict=False)
        ]
        # What a launch makes of finite inputs may be infinite: then K2a has to take it.
        tensors = {**self.last.tensors, **shared}
        return replace(self.last, tensors=tensors, per_rank=per_rank, allow_nonfinite=True)

    def describe(self) -> dict[str, Any]:
        """What provenance records of a case."""
        return {
            "kind": self.kind,
            "hash": self.hash,
            "qlen": self.qlen,
            "seed": self.seed,
            "launches": [case.describe() for case in (*self.first, self.last)],
        }

    def __repr__(self) -> str:
        first, size = self.first[0], sum(_bytes(case) for case in (*self.first, self.last))
        return (
            f"ChainCase({self.kind}, S={first.key.tokens}, ranks={self.key.ranks}, "
            f"geometry={first.key.geometry.name}, values={first.values}, seed={self.seed}, {size / 1e6:.1f} MB, "
            f"{self.hash[:12]})"
        )


def make_chain(
    kind: str,
    *,
    values: str = "outliers",
    seed: int = 0,
    geometry: str | Geometry | None = None,
    slots: int | None = None,
    null: str = "mixed",
    scale_rule: str = "even",
    gather: bool | None = None,
    qlen: int | None = None,
    **options: Any,
) -> ChainCase:
    """Inputs of a half-layer, the same bits on every machine.

    Launch i of the two draws as `make_case` does under seed 2 seed + i, rank after rank; the ranks share what a model's
    tensor-parallel ranks share. `values="ties"` hunts ties for the first launch's norm weights only.

    Args:
        kind: `kda` or `mla`.
        gather: of an MLA layer: whether M1a gathers the ranks' query heads, each rank holding a part of the cache (the
            default), or every rank attends with its own heads over the whole cache.
        qlen: tokens of each request, all of them by default in an MLA layer.
        options: fields of the launches' keys (`HalfLayer.keys`); other arguments as `make_case` has them.

    Raises:
        BadInput: for an unknown name or option, or a value out of range.
    """
    layer = half_layer(kind)
    expect(gather is None or layer.gathers, "gather", f"none in a {kind} layer, whose heads stay apart", gather)
    sizes = geometry_of(geometry)
    if qlen is not None and not layer.computed:
        options["qlen"] = qlen
    defaults = FILLS[layer.first.name].defaults
    key, last_key = layer.keys(sizes, gather is not False, **{**defaults, **options})
    qlen = getattr(key, "qlen", qlen or key.tokens)
    slots = _least_slots(layer, key, qlen) + 1 if slots is None else slots
    how: dict[str, Any] = {"slots": slots, "null": null, "scale_rule": scale_rule}
    one = make_case(layer.first.name, values=values, seed=2 * seed, geometry=sizes, **how, **_fields(key))
    others = range(1, last_key.rank_count if key.rank_count == 1 else 1)
    first = (one, *(_of_rank(layer, one, rank, how) for rank in others))
    made = ChainCase(kind, first, _last(layer, one, last_key, values, 2 * seed + 1), qlen, seed)
    made.check()
    return made


def _least_slots(layer: HalfLayer, key: LaunchKey, qlen: int) -> int:
    """What the first launch needs, and a context for every request where an attention reads one."""
    expect(1 <= qlen <= key.tokens, "qlen", f"1 .. {key.tokens} (the tokens)", qlen)
    room = key.tokens + key.tokens // qlen * CONTEXT if layer.computed else 0
    return max(FILLS[layer.first.name].least_slots(key), room)


def _of_rank(layer: HalfLayer, one: Case, rank: int, how: Mapping[str, Any]) -> Case:
    """The first launch's case of another rank, where each runs it by itself; `one` is rank 0's."""
    launch, own = one.declaration, layer.own(together=False)
    drawing, fill = distribution(one.values, launch), FILLS[launch.name]
    tensors = {
        name: drawn(launch.input(name), one.key, fill, drawing, one.seed, rank, **how) if name in own else tensor
        for name, tensor in one.tensors.items()
    }
    if "w_in" in own:  # f_a is the model's, whichever heads a rank has
        mine, shared = (split_proj(each["w_in"].T, one.key.geometry) for each in (tensors, one.tensors))
        mine.f_a.copy_(shared.f_a)
    return replace(one, tensors=tensors)


def _last(layer: HalfLayer, one: Case, key: LaunchKey, values: str, seed: int) -> Case:
    """K2a's case before it is handed anything."""
    launch, drawing = layer.last, distribution(values, layer.last)
    before = {hand.target: one.tensors[hand.source] for hand in layer.handed if hand.source in one.tensors}
    ranks: list[dict[str, torch.Tensor]] = [{} for _ in range(key.rank_count)]
    for decl in launch.inputs_for(key):
        for rank, tensors in enumerate(ranks[: None if decl.per_rank else 1]):
            if decl.name in before:
                tensors[decl.name] = before[decl.name]
            elif decl.name in {hand.target for hand in layer.handed}:
                tensors[decl.name] = torch.zeros(least_shape(decl, key.sizes, {}), dtype=DTYPES[decl.dtype])
            else:
                tensors[decl.name] = drawn(decl, key, FILLS[launch.name], drawing, seed, rank)
    shared, several = ranks[0], key.rank_count > 1
    own = [{name: t for name, t in tensors.items() if launch.input(name).per_rank} for tensors in ranks if several]
    rest = {name: tensor for name, tensor in shared.items() if not (several and launch.input(name).per_rank)}
    return Case(launch.name, key, rest, values, seed, drawing.allow_nonfinite, per_rank=own)


def _fields(key: LaunchKey) -> dict[str, Any]:
    return {field.name: getattr(key, field.name) for field in fields(key) if field.name != "geometry"}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def _bytes(case: Case) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in case.stored.values())
