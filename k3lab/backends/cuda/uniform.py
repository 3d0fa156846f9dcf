"""What all lanes of a wave agree on: values that are the same in every lane, and blocks that all lanes pass together.

A wave is two warps here, which do not run in lockstep. An operation across its lanes needs them all, so it may stand
only in a block that no lane passes without the others; and a value that steers such a block must be the same in both
warps, so what is read from memory that others write (by a scoped load, an atomic or the clock) does not count as the
same in every lane until a wave operation has made it so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from k3lab.lowering.ir import Op
from k3lab.sim.decode.cfg import Graph

LANES_LOG2 = 6
SHARED_RESULT = frozenset({"rocdl.readfirstlane", "rocdl.readlane", "rocdl.ballot"})
"""Wave operations whose result all lanes share."""
CLOCK = "llvm.call_intrinsic"
OWN_RESULT = frozenset({"rocdl.workitem.id.x", "llvm.atomicrmw", "llvm.cmpxchg"})
"""Operations whose result is each lane's own whatever their operands."""
ACROSS = frozenset(
    {
        *SHARED_RESULT,
        "rocdl.permlane16.swap",
        "rocdl.permlane32.swap",
        "rocdl.update.dpp",
        "rocdl.ds_bpermute",
        "rocdl.ds_swizzle",
        "rocdl.mfma.f32.16x16x32.bf16",
        "rocdl.mfma.scale.f32.16x16x128.f8f6f4",
    }
)
"""Operations that move values between the lanes of a wave."""
SCOPED = frozenset({16, 17})
"""Cache policies of what other workgroups, or other GPUs, store and load too."""


@dataclass
class Uniformity:
    """What is known of a kernel whose blocks are one-dimensional.

    Attributes:
        divergent: values that may differ between lanes of a wave.
        split: blocks, by index, that some lanes of a wave may pass without the others.
        mixed: blocks that lanes of a wave may come to by different ways.
    """

    graph: Graph
    divergent: set[int] = field(default_factory=set)
    split: set[int] = field(default_factory=set)
    mixed: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, graph: Graph) -> Uniformity:
        """Start with all alike, and follow what differs until nothing new does."""
        found = cls(graph)
        shifts = dict(_wave_numbers(graph))
        after = post_dominators(graph)
        while True:
            before = len(found.divergent), len(found.split)
            found._follow_values(shifts)
            found._follow_branches(after)
            if (len(found.divergent), len(found.split)) == before:
                return found

    def shared(self, value: int) -> bool:
        """Whether all lanes of a wave have the same there."""
        return value not in self.divergent

    def _follow_values(self, wave_numbers: dict[int, int]) -> None:
        for number, block in enumerate(self.graph.blocks):
            for op in block.ops:
                if op.results and not wave_numbers.keys() & set(op.results) and self._differs(op, number in self.split):
                    self.divergent |= set(op.results)
                for label, passed in op.successors:
                    target = self.graph.blocks[self.graph.places[label]]
                    pairs = zip(target.args, passed, strict=True)
                    self.divergent |= {arg for (arg, _), source in pairs if source in self.divergent}

    def _differs(self, op: Op, split: bool) -> bool:
        if op.name in SHARED_RESULT:
            return split
        if op.name in OWN_RESULT or (op.name == CLOCK and split):
            return True
        if op.name == "rocdl.raw.ptr.buffer.load" and op.attrs["aux"] in SCOPED:
            return True
        if op.name == "llvm.load" and op.attrs.get("ordering", 0):
            return True
        return op.name in ACROSS or any(value in self.divergent for value in op.operands)

    def _follow_branches(self, after: list[int | None]) -> None:
        for number, block in enumerate(self.graph.blocks):
            end = block.ops[-1]
            if len(end.successors) < 2 or not self.divergent & set(end.operands):
                continue
            region = self._between(number, after[number])
            self.split |= region
            joined = region if after[number] is None else region | {after[number]}
            for place in joined:
                assert place is not None
                self.mixed.add(place)
                self.divergent |= {arg for arg, _ in self.graph.blocks[place].args}
            if number in region:  # lanes leave a loop after different numbers of rounds
                ops = (op for place in region for op in self.graph.blocks[place].ops)
                self.divergent |= {value for op in ops for value in op.results}

    def _between(self, branch: int, join: int | None) -> set[int]:
        """The blocks that can be reached from a branch before the block where all its ways have met again."""
        found: set[int] = set()
        todo = list(self.graph.successors[branch])
        while todo:
            block = todo.pop()
            if block != join and block not in found:
                found.add(block)
                todo += self.graph.successors[block]
        return found


def _wave_numbers(graph: Graph) -> Iterable[tuple[int, int]]:
    """Values that are the thread's number shifted right by a wave's width or more."""
    ops = [op for block in graph.blocks for op in block.ops]
    threads = {op.results[0] for op in ops if op.name == "rocdl.workitem.id.x"}
    constants = {op.results[0]: op.attrs["value"] for op in ops if op.name == "llvm.mlir.constant"}
    for op in ops:
        if op.name in ("llvm.ashr", "llvm.lshr") and op.operands[0] in threads:
            shift = constants.get(op.operands[1])
            if isinstance(shift, int) and LANES_LOG2 <= shift < 32:
                yield op.results[0], shift


def post_dominators(graph: Graph) -> list[int | None]:
    """Of every block the next one that all ways from it to the end pass; None where that is the end itself."""
    count = len(graph.blocks)
    everything = set(range(count))
    after = [everything if ways else {number} for number, ways in enumerate(graph.successors)]
    changed = True
    while changed:
        changed = False
        for number in reversed(range(count)):
            if ways := graph.successors[number]:
                new = {number} | set.intersection(*(after[way] for way in ways))
                if new != after[number]:
                    after[number], changed = new, True
    return [_nearest(number, after) for number in range(count)]


def _nearest(number: int, after: list[set[int]]) -> int | None:
    others = after[number] - {number}
    return max(others, key=lambda other: len(after[other]), default=None)
