"""Control flow of a kernel: an order of blocks in which running the smallest first reconverges, loops, live values.

FlyDSL prints blocks in an order that does not guarantee reconvergence (a `while` that ends an `else` branch exits to a
block printed earlier), so they are sorted topologically, every loop in one piece: what follows a loop comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from k3lab.errors import BadInput
from k3lab.lowering.ir import Block


@dataclass(frozen=True)
class Loop:
    """A natural loop: its header, the blocks in it, and the blocks that jump back; all by index."""

    header: int
    body: frozenset[int]
    latches: frozenset[int]


@dataclass(frozen=True)
class Graph:
    """Blocks in running order with successors by index, loops by header, and live-in values by block."""

    blocks: tuple[Block, ...]
    successors: tuple[tuple[int, ...], ...]
    loops: dict[int, Loop]
    live_in: tuple[frozenset[int], ...]


def analyse(blocks: Sequence[Block], constants: frozenset[int], kept: frozenset[int] = frozenset()) -> Graph:
    """Order `blocks`, find their loops and what is live where.

    Args:
        constants: values that need no carrying, as they are the same everywhere.
        kept: values to treat as used in every block they reach (none by default).

    Raises:
        BadInput: for a loop that is entered at several blocks.
    """
    order = _running_order(_edges(blocks))
    placed = tuple(blocks[i] for i in order)
    successors = _edges(placed)
    loops = _natural_loops(successors)
    return Graph(placed, successors, loops, _liveness(placed, successors, loops, constants | kept))


def _edges(blocks: Sequence[Block]) -> tuple[tuple[int, ...], ...]:
    index = {block.label: i for i, block in enumerate(blocks)}
    return tuple(tuple(dict.fromkeys(index[label] for label, _ in block.ops[-1].successors)) for block in blocks)


def _running_order(successors: Sequence[tuple[int, ...]]) -> list[int]:
    """The blocks that can be reached: each before those it leads to but for jumps back, every loop in one piece."""
    reached = _reachable(successors)
    inside = [after if block in reached else () for block, after in enumerate(successors)]
    return _laid_out(0, reached, list(_natural_loops(inside).values()), inside)


def _reachable(successors: Sequence[tuple[int, ...]]) -> frozenset[int]:
    reached, todo = {0}, [0]
    while todo:
        new = set(successors[todo.pop()]) - reached
        reached |= new
        todo += new
    return frozenset(reached)


def _laid_out(
    entry: int, region: frozenset[int], loops: list[Loop], successors: Sequence[tuple[int, ...]]
) -> list[int]:
    """The blocks of a region entered at `entry`: a loop in it counts as one block, and is laid out by itself."""
    inner = [loop for loop in loops if loop.body <= region and loop.header != entry]
    unit = {block: loop for loop in sorted(inner, key=lambda loop: len(loop.body)) for block in loop.body}

    def ways_out(block: int) -> list[int]:
        body = unit[block].body if block in unit else frozenset({block})
        after = dict.fromkeys(way for member in sorted(body) for way in successors[member])
        ways = (way for way in after if way in region - body - {entry})
        return list(dict.fromkeys(unit[way].header if way in unit else way for way in ways))

    order: list[int] = []
    for block in _topological(entry, ways_out):
        order += _laid_out(block, unit[block].body, inner, successors) if block in unit else [block]
    return order


def _topological(entry: int, ways_out: Callable[[int], list[int]]) -> list[int]:
    """What can be reached from `entry`, each before those it leads to, the first way out next where that can be."""
    done: list[int] = []
    seen, begun, path = {entry}, {entry}, [(entry, reversed(ways_out(entry)))]
    while path:
        block, rest = path[-1]
        way = next(rest, None)
        if way is None:
            done.append(block)
            begun.remove(block)
            path.pop()
        elif way in begun:
            raise BadInput("kernel: expected loops that are entered at one block only, got an irreducible one.")
        elif way not in seen:
            seen.add(way)
            begun.add(way)
            path.append((way, reversed(ways_out(way))))
    return done[::-1]


def _dominators(successors: Sequence[tuple[int, ...]]) -> list[set[int]]:
    n = len(successors)
    predecessors = _predecessors(successors)
    dominators = [{0}] + [set(range(n)) for _ in range(n - 1)]
    changed = True
    while changed:
        changed = False
        for block in range(1, n):
            into = [dominators[p] for p in predecessors[block]]
            new = ({block} | set.intersection(*into)) if into else {block}
            if new != dominators[block]:
                dominators[block], changed = new, True
    return dominators


def _predecessors(successors: Sequence[tuple[int, ...]]) -> list[list[int]]:
    predecessors: list[list[int]] = [[] for _ in successors]
    for block, after in enumerate(successors):
        for successor in after:
            predecessors[successor].append(block)
    return predecessors


def _natural_loops(successors: Sequence[tuple[int, ...]]) -> dict[int, Loop]:
    dominators, predecessors = _dominators(successors), _predecessors(successors)
    loops: dict[int, Loop] = {}
    for latch, after in enumerate(successors):
        for header in after:
            if header in dominators[latch]:
                body = _body(header, latch, predecessors)
                old = loops.get(header, Loop(header, frozenset(), frozenset()))
                loops[header] = Loop(header, old.body | body, old.latches | {latch})
    return loops


def _body(header: int, latch: int, predecessors: Sequence[list[int]]) -> frozenset[int]:
    body, todo = {header}, [latch]
    while todo:
        block = todo.pop()
        if block not in body:
            body.add(block)
            todo += predecessors[block]
    return frozenset(body)


def _liveness(
    blocks: Sequence[Block], successors: Sequence[tuple[int, ...]], loops: dict[int, Loop], constants: frozenset[int]
) -> tuple[frozenset[int], ...]:
    """Values each block needs from before; a loop's header arguments stay live in the loop, for polls to compare."""
    args = [frozenset(value for value, _ in block.args) for block in blocks]
    uses, defs = zip(*(_uses_and_defs(block) for block in blocks), strict=True)
    carried: list[frozenset[int]] = [frozenset()] * len(blocks)
    for loop in loops.values():
        for block in loop.body - {loop.header}:
            carried[block] |= args[loop.header]
    live: list[frozenset[int]] = [frozenset()] * len(blocks)
    changed = True
    while changed:
        changed = False
        for i in reversed(range(len(blocks))):
            out = frozenset().union(*(live[s] for s in successors[i])) if successors[i] else frozenset()
            new = ((uses[i] | carried[i] | out) - defs[i] - args[i]) - constants
            if new != live[i]:
                live[i], changed = new, True
    return tuple(live)


def _uses_and_defs(block: Block) -> tuple[frozenset[int], frozenset[int]]:
    used: set[int] = set()
    defined: set[int] = set()
    for op in block.ops:
        used |= set(op.operands) | {value for _, passed in op.successors for value in passed}
        defined |= set(op.results)
    return frozenset(used), frozenset(defined)
