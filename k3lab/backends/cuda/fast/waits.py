"""Which of a kernel's barriers publish, and which of its polls guard other memory: only there stands a fence.

The exact build puts a device-wide fence before and after every barrier. Here: one after a barrier that follows a
drain (`s_waitcnt vmcnt(0)`), in the thread that puts the flag, right before it does; and one after a loop that polls a
flag: a word without a value beside it, or a pair whose value nothing takes. A pair that carries its value needs none:
both are one access.
"""

from __future__ import annotations

from dataclasses import dataclass

from k3lab.backends.cuda.asked import handed_on
from k3lab.backends.cuda.uniform import SCOPED, post_dominators
from k3lab.lowering.ir import Op
from k3lab.sim.checks.touch import drains
from k3lab.sim.decode.cfg import Graph
from k3lab.sim.decode.program import BARRIERS

Place = tuple[int, int]
"""Numbers of a block and of an operation in it."""
LOAD, STORE = "rocdl.raw.ptr.buffer.load", "rocdl.raw.ptr.buffer.store"


@dataclass(frozen=True)
class Publishing:
    """The drains that a barrier follows in their block, and where fences stand for them.

    Attributes:
        flags: the first stores for other workgroups after such a barrier, up to where all threads come together again;
            a fence is before them.
        barriers: those that no store follows so: a fence is after them.
    """

    drains: frozenset[Place] = frozenset()
    flags: frozenset[Place] = frozenset()
    barriers: frozenset[Place] = frozenset()


def publishing(graph: Graph) -> Publishing:
    """Where a kernel publishes: the flag is taken to be what is stored first, as `publish_rows` has it."""
    barriers, drained, flags, together = set(), set(), set(), post_dominators(graph)
    for number, block in enumerate(graph.blocks):
        waiting: set[Place] = set()
        for place, op in enumerate(block.ops):
            if op.name == "rocdl.s.waitcnt" and drains(int(op.attrs["bitfield"])):
                waiting.add((number, place))
            if op.name in BARRIERS and waiting:
                drained |= waiting
                waiting = set()
                found = _put_after(graph, (number, place), together[number])
                flags |= found
                barriers |= set() if found else {(number, place)}
    return Publishing(frozenset(drained), frozenset(flags), frozenset(barriers))


def _put_after(graph: Graph, barrier: Place, end: int | None) -> set[Place]:
    """The first stores for other workgroups on every way from a barrier to block `end`, none past the next barrier."""
    found: set[Place] = set()
    ways, seen = [(barrier[0], barrier[1] + 1)], {end}
    while ways:
        number, begin = ways.pop()
        for place, op in enumerate(graph.blocks[number].ops[begin:], begin):
            if op.name == STORE and op.attrs["aux"] in SCOPED:
                found.add((number, place))
            if op.name in BARRIERS or (number, place) in found:
                break
        else:
            ways += [(way, 0) for way in graph.successors[number] if way not in seen]
            seen |= set(graph.successors[number])
    return found


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
