"""Control flow of a kernel: an order of blocks in which running the smallest first reconverges, loops, live values.

FlyDSL prints blocks in an order that does not guarantee reconvergence (a `while` that ends an `else` branch exits to a
block printed earlier), so they are sorted topologically, every loop in one piece: what follows a loop comes after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

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

    @cached_property
    def places(self) -> dict[str, int]:
        """Index of every block by its label."""
        return {block.label: i for i, block in enumerate(self.blocks)}


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
    loops = [loop for loop in _natural_loops(inside).values() if loop.header != 0]
    return _laid_out(0, reached, loops, inside)


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
    """The blocks of a region entered at `entry`: a loop in it counts as one block, and is laid out by itself.

    Args:
        loops: those in the region that do not start at `entry`. Natural loops with different headers are disjoint or
            one is in the other, so a loop lies in the outermost loop that its header lies in.
    """
    unit = {block: loop for loop in sorted(loops, key=lambda loop: len(loop.body)) for block in loop.body}
    inner: dict[int, list[Loop]] = {loop.header: [] for loop in unit.values()}
    for loop in loops:
        if (outermost := unit[loop.header].header) != loop.header:
            inner[outermost].append(loop)

    def ways_out(block: int) -> list[int]:
        body = unit[block].body if block in unit else frozenset({block})
        after = dict.fromkeys(way for member in sorted(body) for way in successors[member])
        ways = (way for way in after if way in region and way not in body and way != entry)
        return list(dict.fromkeys(unit[way].header if way in unit else way for way in ways))

    order: list[int] = []
    for block in _topological(entry, ways_out):
        order += _laid_out(block, unit[block].body, inner[block], successors) if block in unit else [block]
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


def _dominators(number: dict[int, int], predecessors: Sequence[list[int]]) -> dict[int, int]:
    """The immediate dominator of every block with a `number`, its place in reverse post-order; the first's is itself.

    Cooper, Harvey and Kennedy, "A simple, fast dominance algorithm" (2001): numbers fall on the way up the tree. One
    round settles it, and another sees that it has, unless there are irreducible loops.
    """
    order = sorted(number, key=number.__getitem__)
    parent = {order[0]: order[0]}

    def common(one: int, other: int) -> int:
        while one != other:
            if number[one] > number[other]:
                one = parent[one]
            else:
                other = parent[other]
        return one

    changed = True
    while changed:
        changed = False
        for block in order[1:]:
            new = reduce(common, (p for p in predecessors[block] if p in parent))
            if parent.get(block) != new:
                parent[block], changed = new, True
    return parent


def _reverse_post_order(successors: Sequence[tuple[int, ...]]) -> list[int]:
    done: list[int] = []
    seen, path = {0}, [(0, iter(successors[0]))]
    while path:
        block, rest = path[-1]
        way = next((way for way in rest if way not in seen), None)
        if way is None:
            done.append(block)
            path.pop()
        else:
            seen.add(way)
            path.append((way, iter(successors[way])))
    return done[::-1]


def _predecessors(successors: Sequence[tuple[int, ...]]) -> list[list[int]]:
    predecessors: list[list[int]] = [[] for _ in successors]
    for block, after in enumerate(successors):
        for successor in after:
            predecessors[successor].append(block)
    return predecessors


def _natural_loops(successors: Sequence[tuple[int, ...]]) -> dict[int, Loop]:
    predecessors = _predecessors(successors)
    number = {block: i for i, block in enumerate(_reverse_post_order(successors))}
    parent = _dominators(number, predecessors)
    loops: dict[int, Loop] = {}
    for latch in sorted(number):
        for header in successors[latch]:
            above = latch
            while number[above] > number[header]:
                above = parent[above]
            if above == header:  # the header dominates the latch
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
    own = [(uses[i] | carried[i]) - defs[i] - args[i] - constants for i in range(len(blocks))]
    hidden = [defs[i] | args[i] for i in range(len(blocks))]
    live = list(own)
    predecessors = _predecessors(successors)
    todo = dict.fromkeys(range(len(blocks)))  # the last first: what a block needs is known before its predecessors'
    while todo:
        i, _ = todo.popitem()
        new = own[i].union(*(live[s] - hidden[i] for s in successors[i]))
        if new != live[i]:
            live[i] = new
            todo |= dict.fromkeys(predecessors[i])
    return tuple(live)


def _uses_and_defs(block: Block) -> tuple[frozenset[int], frozenset[int]]:
    used: set[int] = set()
    defined: set[int] = set()
    for op in block.ops:
        used |= set(op.operands) | {value for _, passed in op.successors for value in passed}
        defined |= set(op.results)
    return frozenset(used), frozenset(defined)
