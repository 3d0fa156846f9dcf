"""Values as another lane of the wave has them, made again here: what an operand read from LDS needs no exchange for.

A tensor core takes one operand of a product as two lanes of a wave have it, lane xor 8 apart. Where that operand is
made of the thread's number, of what all lanes share and of what LDS holds, this thread makes both itself: the same
operations once more, from the other lane's number.
"""

from __future__ import annotations

from k3lab.backends.cuda.operations import SPELLED
from k3lab.backends.cuda.types import LDS
from k3lab.backends.cuda.uniform import Uniformity
from k3lab.lowering.ir import Op
from k3lab.sim.decode.cfg import Graph

THREAD = "rocdl.workitem.id.x"


class Twice:
    """Which values of a kernel can be made for another lane.

    Attributes:
        wanted: those that are; `spared` are those of them that this lane needs for the others only.
    """

    def __init__(self, graph: Graph, uniform: Uniformity) -> None:
        self.uniform = uniform
        self._made = {value: op for block in graph.blocks for op in block.ops for value in op.results}
        self._passed = sources(graph)
        blocks = (block for number, block in enumerate(graph.blocks) if number not in uniform.mixed)
        self._alike = {arg for block in blocks for arg, _ in block.args}
        self._can: dict[int, bool] = {}
        split = (graph.blocks[number] for number in uniform.split)
        self._apart = {value for block in split for op in block.ops for value in op.results}
        self.wanted: set[int] = set()
        self.spared: frozenset[int] = frozenset()
        self._graph = graph

    def can(self, value: int) -> bool:
        """Whether a value can be made for another lane from what this thread has."""
        if value not in self._can:
            self._can[value] = False  # what a loop hands on from round to round is not followed
            self._can[value] = self._possible(value)
        return self._can[value]

    def _possible(self, value: int) -> bool:
        if self.uniform.shared(value):
            return True
        if value in self._apart:  # the other lane may have made it at another time
            return False
        op = self._made.get(value)
        if op is None:
            ways = self._passed.get(value, [])
            return bool(ways) and value in self._alike and all(self.can(source) for source in ways)
        return op.name == THREAD or (_repeats(op) and all(self.can(operand) for operand in op.operands))

    def want(self, value: int) -> None:
        """Ask for a value, and for all it is made of."""
        todo = [value]
        while todo:
            value = todo.pop()
            if value in self.wanted or self.uniform.shared(value):
                continue
            self.wanted.add(value)
            todo += self._made[value].operands if value in self._made else self._passed[value]

    def spare(self, taken: set[tuple[int, int]]) -> None:
        """Find the values that no one needs as this lane has them.

        Args:
            taken: operands that are made for other lanes: (result of the operation, place of the operand).
        """
        ops = [op for block in self._graph.blocks for op in block.ops]
        spared = {value for value in self.wanted if value in self._made}
        changed = True
        while changed:
            before = len(spared)
            for op in ops:
                result = op.results[0] if op.results else -1
                if result not in spared:
                    own = (value for place, value in enumerate(op.operands) if (result, place) not in taken)
                    spared -= {*own, *(value for _, passed in op.successors for value in passed)}
            changed = len(spared) < before
        self.spared = frozenset(spared)


def _repeats(op: Op) -> bool:
    """Whether an operation gives the same, done again at the same place."""
    if op.name == "llvm.load":
        return op.operand_types[0].space == LDS and not op.attrs.get("ordering", 0)
    return op.name in SPELLED and len(op.results) == 1


def sources(graph: Graph) -> dict[int, list[int]]:
    """Of every argument of a block, the values that branches pass for it."""
    found: dict[int, list[int]] = {}
    for block in graph.blocks:
        for label, passed in block.ops[-1].successors:
            for (arg, _), source in zip(graph.blocks[graph.places[label]].args, passed, strict=True):
                found.setdefault(arg, []).append(source)
    return found
