"""Vectors put together element by element: a chain of inserts is run as one, which copies the vector once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from k3lab.lowering.ir import Block, Op

INSERT = "llvm.insertelement"


@dataclass(frozen=True)
class Chain:
    """Inserts into the vector `base`, all by SSA number: what goes where, in order."""

    base: int
    values: tuple[int, ...]
    places: tuple[int, ...]


def chains(
    block: Block, needed: Iterable[int], constants: Mapping[int, Any], apart: Container[int]
) -> dict[int, Chain | None]:
    """The chains of a block by the number of their last operation; None for the operations before it in a chain.

    An insert goes on a chain when nothing but it uses the vector so far. Values never change, so that an insert may
    wait for the last of its chain.

    Args:
        needed: values that the block hands on.
        constants: values that are the same for every wave: a place must be one of them, and in the vector.
        apart: results that stand for themselves, as something looks at them beside the operations.
    """
    uses = Counter(value for op in block.ops for value in op.operands) + Counter(needed)
    found: dict[int, Chain | None] = {}
    ends: dict[int, int] = {}  # the number of the insert that made a vector
    for number, op in enumerate(block.ops):
        place = _place(op, constants)
        if place is None or op.results[0] in apart:
            continue
        vector, value, _ = op.operands
        before = found[ends[vector]] if vector in ends and uses[vector] == 1 else None
        if before is None:
            found[number] = Chain(vector, (value,), (place,))
        else:
            found[ends[vector]] = None
            found[number] = Chain(before.base, (*before.values, value), (*before.places, place))
        ends[op.results[0]] = number
    return {number: chain for number, chain in found.items() if chain is None or len(chain.places) > 1}


def _place(op: Op, constants: Mapping[int, Any]) -> int | None:
    """Where an insert puts its value, if that is known and in the vector."""
    if op.name != INSERT or op.operands[2] not in constants or op.results[0] in constants:
        return None
    place = int(constants[op.operands[2]].item())
    return place if 0 <= place < op.result_types[0].count else None
