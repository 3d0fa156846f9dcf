"""Which of a kernel's barriers publish, and which of its polls guard other memory: only there stands a fence.

The exact build puts a device-wide fence before and after every barrier. Here: one after a barrier that follows a
drain (`s_waitcnt vmcnt(0)`), before the flag is put; and one after a loop that polls a flag: a word without a value
beside it, or a pair whose value nothing takes. A pair that carries its value needs none: both are one access.
"""

from __future__ import annotations

from k3lab.backends.cuda.asked import handed_on
from k3lab.backends.cuda.uniform import SCOPED
from k3lab.lowering.ir import Op
from k3lab.sim.checks.touch import drains
from k3lab.sim.decode.cfg import Graph
from k3lab.sim.decode.program import BARRIERS

Place = tuple[int, int]
"""Numbers of a block and of an operation in it."""
LOAD = "rocdl.raw.ptr.buffer.load"


def publishing(graph: Graph) -> tuple[frozenset[Place], frozenset[Place]]:
    """The barriers that follow a drain in their block, and these drains."""
    barriers, drained = set(), set()
    for number, block in enumerate(graph.blocks):
        waiting: set[Place] = set()
        for place, op in enumerate(block.ops):
            if op.name == "rocdl.s.waitcnt" and drains(int(op.attrs["bitfield"])):
                waiting.add((number, place))
            if op.name in BARRIERS and waiting:
                barriers.add((number, place))
                drained |= waiting
                waiting = set()
    return frozenset(barriers), frozenset(drained)


def guarding(graph: Graph) -> frozenset[int]:
    """The blocks that come after a loop which polls for flags."""
    found = set()
    for loop in graph.loops.values():
        ops = [op for block in loop.body for op in graph.blocks[block].ops]
        reads = [op for op in ops if _scoped(op)]
        if reads and not (all(map(_pairs, reads)) and _taken(graph, {op.results[0] for op in reads})):
            found |= {way for block in loop.body for way in graph.successors[block] if way not in loop.body}
    return frozenset(found)


def _scoped(op: Op) -> bool:
    return op.name == LOAD and op.attrs["aux"] in SCOPED


def _pairs(op: Op) -> bool:
    return op.result_types[0].lanes > 1


def _taken(graph: Graph, read: set[int]) -> bool:
    """Whether anything takes more of the pairs that were read than their tags, the odd words."""
    ops = [op for block in graph.blocks for op in block.ops]
    known = {op.results[0]: op.attrs["value"] for op in ops if op.name == "llvm.mlir.constant"}
    read = handed_on(graph, read)
    for op in ops:
        of_tag = op.name == "llvm.extractelement" and known.get(op.operands[1], 0) % 2 == 1
        if not of_tag and read & set(op.operands):
            return True
    return False
