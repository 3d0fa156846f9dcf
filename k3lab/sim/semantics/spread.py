"""How poison spreads from an operation's operands to its result.

A *leaf* is a scalar in a value: a vector's elements, a struct's fields however deep. A shadow says of every leaf of a
value in which lanes it is poison; operations that move leaves move their shadows, all others make the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from k3lab.lowering.ir import Op, Type
from k3lab.sim.semantics.context import WAVE, WaveContext
from k3lab.sim.semantics.patterns import dpp_written
from k3lab.sim.semantics.registry import find
from k3lab.sim.semantics.values import BUFFER, Array, align_axes

LeafMap = list[tuple[int, int] | None]


@dataclass(frozen=True)
class Shadow:
    """Where a value is poison: `lanes` [1 or n, 1 or 64, leaves], and why it is there (in one of them)."""

    lanes: Array
    why: str


Shadows = Sequence[Shadow | None]
Spread = Callable[[WaveContext, Sequence[Any], Shadows], Shadow | None]

UNDEFINED = ("llvm.mlir.poison", "llvm.mlir.undef")
STOPS = frozenset({"llvm.freeze"})
"""Operations whose result is defined whatever they are given."""

MOVES = {
    "rocdl.ds_bpermute": (1,),
    "llvm.amdgcn.ds.bpermute": (1,),
    "llvm.amdgcn.ds.permute": (1,),
    "rocdl.ds_swizzle": (0,),
    "llvm.amdgcn.ds.swizzle": (0,),
    "rocdl.update.dpp": (0, 1),
    "rocdl.permlane16.swap": (0, 1),
    "rocdl.permlane32.swap": (0, 1),
    "rocdl.readfirstlane": (0,),
    "llvm.amdgcn.readfirstlane": (0,),
    "rocdl.readlane": (0,),
    "llvm.amdgcn.readlane": (0,),
    "llvm.amdgcn.writelane": (0, 2),
}
"""Operations that move values between lanes, and which of their operands those values are."""


def leaves(kind: Type) -> int:
    """Scalars in a value of that type."""
    match kind.kind:
        case "vector":
            return kind.count
        case "array":
            assert kind.element
            return kind.count * leaves(kind.element)
        case "struct":
            return sum(map(leaves, kind.elements))
    return 1


def leaf_map(op: Op, constants: Mapping[int, Any]) -> LeafMap | None:
    """For an operation that only moves leaves: the (operand, leaf) each of its result's comes from; None is poison."""
    if not op.result_types or (op.operand_types and op.operand_types[0] == Type("ptr", space=BUFFER)):
        return None
    count = leaves(op.result_types[0])
    place = constants[op.operands[-1]].flat[0] if op.operands and op.operands[-1] in constants else None
    match op.name:
        case "llvm.extractelement" if place is not None and 0 <= place < op.operand_types[0].count:
            return [(0, int(place))]
        case "llvm.insertelement" if place is not None and 0 <= place < count:
            return [(1, 0) if leaf == place else (0, leaf) for leaf in range(count)]
        case "llvm.shufflevector":
            width = op.operand_types[0].count
            return [None if source < 0 else divmod(source, width) for source in op.attrs["mask"]]
        case "llvm.intr.vector.extract":
            return [(0, op.attrs["pos"] + leaf) for leaf in range(count)]
        case "llvm.intr.vector.insert":
            return _inserted(count, op.attrs["pos"], op.operand_types[1].count)
        case "llvm.extractvalue":
            first = _first_leaf(op.operand_types[0], op.attrs["position"])
            return [(0, first + leaf) for leaf in range(count)]
        case "llvm.insertvalue":
            first = _first_leaf(op.operand_types[0], op.attrs["position"])
            return _inserted(count, first, leaves(op.operand_types[1]))
        case "llvm.bitcast" if leaves(op.operand_types[0]) == count:
            return [(0, leaf) for leaf in range(count)]
        case "llvm.intr.ssa.copy" | "llvm.intr.arithmetic.fence" | "llvm.intr.expect":
            return [(0, leaf) for leaf in range(count)]
    return None


def _inserted(count: int, first: int, length: int) -> LeafMap:
    return [(1, leaf - first) if 0 <= leaf - first < length else (0, leaf) for leaf in range(count)]


def _first_leaf(kind: Type, path: Sequence[int]) -> int:
    first = 0
    for place in path:
        inside = kind.elements if kind.kind == "struct" else (kind.element,) * kind.count
        first += sum(leaves(element) for element in inside[:place] if element is not None)
        chosen = inside[place]
        assert chosen is not None
        kind = chosen
    return first


def ignored(op: Op) -> frozenset[int]:
    """Operands that do not reach the result: the old value of a DPP that writes every lane."""
    if op.name == "rocdl.update.dpp" and op.attrs["boundCtrl"]:
        return frozenset({0} if dpp_written(op.attrs["rowMask"], op.attrs["bankMask"]).all() else ())
    return frozenset()


def spread(op: Op, constants: Mapping[int, Any]) -> Spread:
    """The function that makes the result's shadow of the operands' values and shadows (None: defined throughout)."""
    moved = leaf_map(op, constants)
    if moved is not None:
        return lambda ctx, values, shadows: _by_leaf(shadows, moved)
    count = max(map(leaves, op.result_types), default=1)
    if op.name in MOVES:
        return _across(op)
    if op.name == "llvm.select":
        return _selected
    if op.name == "llvm.insertelement":
        return _dynamically_inserted
    if op.name == "llvm.bitcast":
        sizes = [kind.nbytes // leaves(kind) for kind in (op.operand_types[0], op.result_types[0])]
        if all(sizes):
            return lambda ctx, values, shadows: _regrouped(shadows[0], *sizes)
    semantics = find(op)
    if semantics is not None and semantics.kind == "wave":
        return lambda ctx, values, shadows: _everywhere(ctx, shadows, count)
    if all(leaves(kind) in (1, count) for kind in op.operand_types):
        return lambda ctx, values, shadows: joined(*shadows)
    return lambda ctx, values, shadows: _whole(joined(*map(_any_leaf, shadows)), count)


def joined(*shadows: Shadow | None) -> Shadow | None:
    """Poison where any of them is."""
    some = [shadow for shadow in shadows if shadow is not None]
    if len(some) < 2:
        return some[0] if some else None
    lanes = some[0].lanes
    for shadow in some[1:]:
        lanes = lanes | shadow.lanes
    return Shadow(lanes, some[0].why)


def kept(lanes: Array, *sources: Shadow | None) -> Shadow | None:
    """A shadow with these lanes, for a reason that a source has; None where there are none."""
    why = next(source.why for source in sources if source is not None)
    return Shadow(np.asarray(lanes), why) if lanes.any() else None


def _any_leaf(shadow: Shadow | None) -> Shadow | None:
    return None if shadow is None else Shadow(np.asarray(shadow.lanes.any(axis=2, keepdims=True)), shadow.why)


def _whole(shadow: Shadow | None, count: int) -> Shadow | None:
    if shadow is None:
        return None
    return Shadow(np.broadcast_to(shadow.lanes, (*shadow.lanes.shape[:2], count)), shadow.why)


def _by_leaf(shadows: Shadows, moved: LeafMap) -> Shadow | None:
    some = [shadow for shadow in shadows if shadow is not None]
    shape = np.broadcast_shapes((1, 1), *(shadow.lanes.shape[:2] for shadow in some))
    lanes = np.zeros((*shape, len(moved)), np.bool_)
    for leaf, source in enumerate(moved):
        if source is None:
            lanes[..., leaf] = True
        elif (shadow := shadows[source[0]]) is not None:
            lanes[..., leaf] = shadow.lanes[..., min(source[1], shadow.lanes.shape[2] - 1)]
    why = some[0].why if some else "an element that a shuffle leaves undefined"
    return Shadow(lanes, why) if lanes.any() else None


def _selected(ctx: WaveContext, values: Sequence[Any], shadows: Shadows) -> Shadow | None:
    """Poison where the condition is, and where the value chosen is."""
    condition, yes, no = shadows
    nothing = np.zeros((1, 1, 1), np.bool_)
    yes_lanes, no_lanes = (nothing if shadow is None else shadow.lanes for shadow in (yes, no))
    lanes = np.where(align_axes(values[0], 3), yes_lanes, no_lanes)
    if condition is not None:
        lanes = lanes | condition.lanes
    return kept(lanes, *shadows)


def _dynamically_inserted(ctx: WaveContext, values: Sequence[Any], shadows: Shadows) -> Shadow | None:
    vector, value, place = shadows
    nothing = np.zeros((1, 1, 1), np.bool_)
    before, inserted = (nothing if shadow is None else shadow.lanes for shadow in (vector, value))
    here = values[2][..., None] == np.arange(values[0].shape[2])
    lanes = np.where(here, inserted, before)
    if place is not None:
        lanes = lanes | place.lanes
    return kept(lanes, *shadows)


def _regrouped(shadow: Shadow | None, size: int, wanted: int) -> Shadow | None:
    """Leaves of `size` bytes seen as leaves of `wanted` bytes: poison where any byte is."""
    if shadow is None:
        return None
    octets = np.repeat(shadow.lanes, size, axis=2)
    return Shadow(np.asarray(octets.reshape(*octets.shape[:2], -1, wanted).any(axis=3)), shadow.why)


def _across(op: Op) -> Spread:
    """The shadows moved as the values are; poison in what says from where makes all lanes poison."""
    semantics = find(op)
    assert semantics is not None
    run, data = semantics.make(op), MOVES[op.name]

    def move(ctx: WaveContext, values: Sequence[Any], shadows: Shadows) -> Shadow | None:
        steering = [shadow for i, shadow in enumerate(shadows) if i not in data]
        if any(shadow is not None for shadow in steering):
            return _everywhere(ctx, shadows, 1)
        given = [_as_words(shadow) if i in data else values[i] for i, shadow in enumerate(shadows)]
        moved = run(_Quiet(ctx.n, ctx.mask), *given)
        parts = moved if isinstance(moved, tuple) else (moved,)
        return kept(np.stack(np.broadcast_arrays(*parts), axis=-1) != 0, *shadows)

    return move


@dataclass(frozen=True)
class _Quiet:
    """What moving between lanes needs of the wave context; reports were made when the values moved."""

    n: int
    mask: Array | None
    strict = False

    def report(self, kind: str, message: str, lanes: Array | None) -> None: ...


def _as_words(shadow: Shadow | None) -> Array:
    if shadow is None:
        return np.zeros((1, 1), np.int32)
    return np.asarray(shadow.lanes.any(axis=2), np.int32)


def _everywhere(ctx: WaveContext, shadows: Shadows, count: int) -> Shadow | None:
    """Poison in all lanes of a wave that has it in an active one: operations that make one of many lanes."""
    shadow = joined(*map(_any_leaf, shadows))
    if shadow is None:
        return None
    lanes = shadow.lanes if ctx.mask is None else shadow.lanes & ctx.mask[..., None]
    return kept(np.broadcast_to(lanes.any(axis=1, keepdims=True), (lanes.shape[0], WAVE, count)), shadow)
