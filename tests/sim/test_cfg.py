"""Loops, order and live values of random graphs, against their definitions."""

from __future__ import annotations

import random

import pytest

from k3lab.errors import BadInput
from k3lab.lowering.ir import Block, Op, Type
from k3lab.sim.decode.cfg import Graph, analyse

I32 = Type("int", 32, "i32")
Successors = tuple[tuple[int, ...], ...]


def op(name: str, results: tuple[int, ...], operands: tuple[int, ...], ways: list[tuple[str, tuple[int, ...]]]) -> Op:
    return Op(name, results, operands, (), (), {}, tuple(ways))


def random_blocks(rng: random.Random) -> list[Block]:
    """Blocks with arguments, values used anywhere, and jumps that mostly go a short way on, never to the first."""
    count = rng.randint(2, 14)
    arguments = [rng.randint(0, 2) for _ in range(count)]
    blocks, values = [], 0

    def some(number: int) -> tuple[int, ...]:
        return tuple(rng.randint(0, max(0, values - 1)) for _ in range(number))

    def way(source: int) -> tuple[str, tuple[int, ...]]:
        target = rng.randrange(1, count) if rng.random() < 0.4 else min(count - 1, source + rng.randint(1, 3))
        return f"b{target}", some(arguments[target])

    for number in range(count):
        args = tuple((values + i, I32) for i in range(arguments[number]))
        values += len(args)
        ops = [op("use", (values + i,), some(rng.randint(0, 2)), []) for i in range(rng.randint(0, 3))]
        values += len(ops)
        ways = [way(number) for _ in range(rng.choice([0, 1, 1, 2, 2, 2]))]
        blocks.append(Block(f"b{number}", args, (*ops, op("end", (), some(len(ways) // 2), ways))))
    return blocks


def without(block: int, successors: Successors) -> set[int]:
    """Blocks that can be reached from the first without passing `block`."""
    reached, todo = set(), [0] if block else []
    while todo:
        now = todo.pop()
        if now not in reached:
            reached.add(now)
            todo += [way for way in successors[now] if way != block]
    return reached


def check_loops(graph: Graph) -> None:
    """A jump back goes to a block that dominates it; the loop is what leads there without passing the header."""
    everything = range(len(graph.blocks))
    back = {(a, b) for a in everything for b in graph.successors[a] if a not in without(b, graph.successors)}
    assert {(latch, loop.header) for loop in graph.loops.values() for latch in loop.latches} == back
    for header, loop in graph.loops.items():
        body, todo = {header}, list(loop.latches)
        while todo:
            now = todo.pop()
            if now not in body:
                body.add(now)
                todo += [a for a in everything if now in graph.successors[a]]
        assert loop.body == body


def check_order(graph: Graph) -> None:
    """Jumps lead on, but for those back to a header; a loop is one piece that starts with its header."""
    for block, after in enumerate(graph.successors):
        assert all(way > block or block in graph.loops[way].latches for way in after)
    for header, loop in graph.loops.items():
        assert sorted(loop.body) == list(range(header, header + len(loop.body)))


def check_live(graph: Graph, constants: frozenset[int]) -> None:
    """The smallest sets that satisfy the equations: found by adding until nothing is missing."""
    args = [{arg for arg, _ in block.args} for block in graph.blocks]
    made = [args[i] | {v for o in block.ops for v in o.results} for i, block in enumerate(graph.blocks)]
    wanted: list[set[int]] = [set() for _ in graph.blocks]
    for i, block in enumerate(graph.blocks):
        for o in block.ops:
            wanted[i] |= {*o.operands, *(v for _, passed in o.successors for v in passed)}
        for loop in graph.loops.values():
            wanted[i] |= args[loop.header] if i in loop.body - {loop.header} else set()
    live: list[set[int]] = [set() for _ in graph.blocks]
    for _ in range(len(live) + 1):
        live = [
            (wanted[i] | set().union(*(live[s] for s in graph.successors[i]))) - made[i] - constants
            for i in range(len(live))
        ]
    assert [set(block) for block in graph.live_in] == live


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs(seed: int) -> None:
    rng = random.Random(seed)
    analysed = refused = 0
    for _ in range(100):
        constants = frozenset(rng.sample(range(30), 3))
        try:
            graph = analyse(random_blocks(rng), constants)
        except BadInput:
            refused += 1
            continue
        analysed += 1
        check_loops(graph)
        check_order(graph)
        check_live(graph, constants)
    assert analysed > 50 and refused > 0
