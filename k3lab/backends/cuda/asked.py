"""Ballots of which a kernel asks only whether any lane voted: the wave's barrier says so itself, without exchanges."""

from __future__ import annotations

from collections.abc import Iterator

from k3lab.lowering.ir import Op
from k3lab.sim.decode.cfg import Graph

BALLOT = "rocdl.ballot"
LANES = 64


def handed_on(graph: Graph, values: set[int]) -> set[int]:
    """`values`, and the blocks' arguments that they are passed as."""
    found = set(values)
    while True:
        before = len(found)
        for block in graph.blocks:
            for label, passed in block.ops[-1].successors:
                args = graph.blocks[graph.places[label]].args
                found |= {arg for (arg, _), source in zip(args, passed, strict=True) if source in found}
        if len(found) == before:
            return found


def asked(graph: Graph) -> frozenset[int]:
    """The ballots of a whole wave, by value, that are only told from 0, wherever they are passed on to."""
    ops = [op for block in graph.blocks for op in block.ops]
    zeros = {op.results[0] for op in ops if op.name == "llvm.mlir.constant" and op.attrs["value"] == 0}
    ballots = (op.results[0] for op in ops if op.name == BALLOT and op.result_types[0].bits == LANES)
    return frozenset(value for value in ballots if _told_from_zero(ops, handed_on(graph, {value}), zeros))


def _told_from_zero(ops: list[Op], held: set[int], zeros: set[int]) -> bool:
    return all(_compares(op, held, zeros) for op in _users(ops, held))


def _users(ops: list[Op], held: set[int]) -> Iterator[Op]:
    return (op for op in ops if held & set(op.operands))


def _compares(op: Op, held: set[int], zeros: set[int]) -> bool:
    """Whether an operation says that a value is 0, or that it is not."""
    if op.name != "llvm.icmp" or op.attrs["predicate"] > 1:
        return False
    one, other = op.operands
    return (one in held and other in zeros) or (other in held and one in zeros)
