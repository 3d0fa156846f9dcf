"""Where the lanes of a wave hand values to each other through LDS, and must meet first.

On AMD a wave's lanes are in step: what all lanes stored, each may load right after, and what all have loaded, each may
overwrite. Here a wave is two warps that are not in step, so its lanes meet between a store to LDS and a load after it,
and between a load and a store after it, unless they have met anyway, at a barrier or in an operation across the wave.
Where not all lanes of a wave are, they cannot meet; they do so at the first access after that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from k3lab.backends.cuda.types import LDS
from k3lab.backends.cuda.uniform import Uniformity
from k3lab.lowering.ir import Op
from k3lab.sim.decode.cfg import Graph

Places = frozenset[tuple[int, int]]
"""(block, operation) by number."""


@dataclass
class _Since:
    """What a wave has done to LDS since its lanes last met."""

    loaded: bool = False
    stored: bool = False

    def joined(self, other: _Since) -> _Since:
        return _Since(self.loaded or other.loaded, self.stored or other.stored)


def meetings(graph: Graph, uniform: Uniformity, meets: Callable[[Op], bool]) -> Places:
    """The operations before which all lanes of a wave meet.

    Args:
        meets: whether lanes meet in an operation itself.
    """
    after = [_Since() for _ in graph.blocks]
    before: dict[int, list[int]] = {number: [] for number in range(len(graph.blocks))}
    for number, ways in enumerate(graph.successors):
        for way in ways:
            before[way].append(number)
    found: set[tuple[int, int]] = set()
    changed = True
    while changed:
        changed = False
        for number in range(len(graph.blocks)):
            since = _Since()
            for other in before[number]:
                since = since.joined(after[other])
            new = after[number].joined(_through(graph, number, since, number in uniform.split, meets, found))
            if new != after[number]:
                after[number], changed = new, True
    return frozenset(found)


def _through(
    graph: Graph, number: int, since: _Since, split: bool, meets: Callable[[Op], bool], found: set[tuple[int, int]]
) -> _Since:
    """What has been done after a block, given what was before it; notes where lanes meet."""
    for place, op in enumerate(graph.blocks[number].ops):
        loads, stores = _loads(op), _stores(op)
        if not split and ((loads and since.stored) or (stores and since.loaded)):
            found.add((number, place))
            since = _Since()
        if not split and meets(op):
            since = _Since()
        since = since.joined(_Since(loads, stores))
    return since


def _loads(op: Op) -> bool:
    return (op.name == "llvm.load" and op.operand_types[0].space == LDS) or _is_atomic(op)


def _stores(op: Op) -> bool:
    return (op.name == "llvm.store" and op.operand_types[1].space == LDS) or _is_atomic(op)


def _is_atomic(op: Op) -> bool:
    return op.name == "llvm.atomicrmw" and op.operand_types[0].space == LDS
