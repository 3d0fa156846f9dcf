"""Half-layers: an attention launch and the K2a after it, in one step, declared once.

The attention launch has slot 0 of the step, K2a slot 1, and both the step's epoch. What one hands the other is memory
that both have, or what torch computes between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from k3lab.errors import BadInput, expect
from k3lab.geometry import Geometry
from k3lab.launches.declaration import Launch
from k3lab.launches.k1 import K1
from k3lab.launches.k2a import K2A
from k3lab.launches.key import LaunchKey
from k3lab.launches.m1a import M1A

FIRST_SLOT, LAST_SLOT = 0, 1
USES, USE = 1, 0
"""A step uses each peer buffer once: K2a's, and M1a's of its own."""


@dataclass(frozen=True)
class Handed:
    """What the first launch hands the last.

    Attributes:
        source: a tensor of the first launch, or the name of what is computed from its outputs `made_of`.
        target: the last launch's input that takes it: the same memory, unless it is computed.
    """

    source: str
    target: str
    made_of: tuple[str, ...] = ()


PREFIX, BLOCKS = Handed("prefix", "prefix"), Handed("blocks", "blocks")


@dataclass(frozen=True)
class HalfLayer:
    """A layer from its AttnRes seam to the MoE's input row.

    Attributes:
        alike: tensors that each rank has its own of in the first launch, but that are the same on all ranks where every
            rank runs that launch by itself.
    """

    kind: str
    about: str
    first: Launch
    last: Launch
    handed: tuple[Handed, ...]
    alike: tuple[str, ...] = ()

    @property
    def launches(self) -> tuple[Launch, Launch]:
        """In the order they run."""
        return self.first, self.last

    @property
    def computed(self) -> Handed | None:
        """What torch computes between the launches, if anything."""
        return next((handed for handed in self.handed if handed.made_of), None)

    @property
    def gathers(self) -> bool:
        """Whether the first launch can run on all ranks together."""
        return any(field.name == "ranks" for field in fields(self.first.key_type))

    def own(self, together: bool) -> set[str]:
        """Inputs of the first launch that every rank has its own of, where the ranks run it `together` or not."""
        alike = () if together else self.alike
        return {decl.name for decl in self.first.inputs if decl.per_rank and decl.name not in alike}

    def keys(self, geometry: Geometry, together: bool, **options: Any) -> tuple[LaunchKey, LaunchKey]:
        """The launches' keys: an option is for every launch that has a field of its name.

        K2a follows the first launch: on a layer that writes a block (`write_idx`) it sees that block too, and restarts
        the prefix. `ranks` is the geometry's tensor parallel size, if it is not given.

        Raises:
            BadInput: for an option of neither launch, or a value out of range.
        """
        known = [{field.name for field in fields(launch.key_type)} - {"geometry"} for launch in self.launches]
        unknown = sorted(set(options) - known[0] - known[1])
        if unknown:
            raise BadInput(f"{self.kind} option: expected one of {sorted(known[0] | known[1])}, got {unknown[0]!r}.")
        options = {"ranks": geometry.tp, **options}
        of_first, of_last = ({name: options[name] for name in names & set(options)} for names in known)
        if self.gathers and not together:
            of_first["ranks"] = 1
        first = self.first.key(geometry, **of_first)
        followed = {"tokens": first.tokens, "nblocks": first.sizes["BLOCKS_USED"]}
        last = self.last.key(geometry, **{"reset": first.write_idx >= 0, **of_last, **followed})
        return first, last


KDA = HalfLayer(
    "kda",
    "a KDA layer's attention: K1, then K2a on the same prefix, blocks and core",
    K1,
    K2A,
    (Handed("core_out", "core"), PREFIX, BLOCKS),
)
MLA = HalfLayer(
    "mla",
    "an MLA layer's attention: M1a, a decode attention in torch, then K2a on the same prefix and blocks",
    M1A,
    K2A,
    (Handed("attention", "core", made_of=("q_out", "kv_cache", "gate_out")), PREFIX, BLOCKS),
    alike=("kv_cache", "slots"),
)

HALF_LAYERS: Mapping[str, HalfLayer] = {each.kind: each for each in (KDA, MLA)}


def half_layer(kind: str) -> HalfLayer:
    """The half-layer called `kind`.

    Raises:
        BadInput: listing them when there is none of that name.
    """
    expect(kind in HALF_LAYERS, "kind", f"one of {', '.join(HALF_LAYERS)}", repr(kind))
    return HALF_LAYERS[kind]
