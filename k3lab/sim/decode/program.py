"""A kernel decoded: blocks in running order, each as one Python function generated once.

A barrier ends a block. In a block's function SSA values are locals; it is given the live values and returns those that
its successors need. Every operation takes one line, so that an exception's line number names the operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from k3lab.errors import BadInput
from k3lab.lowering.ir import Block, Global, Kernel, Module, Op
from k3lab.sim import semantics
from k3lab.sim.checks.shades import Suspects
from k3lab.sim.checks.touch import EVERYWHERE, acquires, drains, reach_of, releases
from k3lab.sim.decode import access
from k3lab.sim.decode.cfg import Graph, analyse
from k3lab.sim.decode.inserts import Chain, chains
from k3lab.sim.decode.intrinsics import canonical
from k3lab.sim.schedule.cohort import each
from k3lab.sim.semantics.vectors import insert_elements

BARRIERS = frozenset({"rocdl.s.barrier", "rocdl.barrier", "gpu.barrier"})
SILENT = semantics.NO_EFFECT | {"llvm.fence", "rocdl.s.waitcnt", "rocdl.s.sleep"}
"""Operations that move no value; a watch of global memory, where there is one, hears of those that order accesses."""

BARRIER = "sim.barrier"
TERMINATORS = frozenset({"llvm.br", "llvm.cond_br", "llvm.switch", "llvm.return", "llvm.unreachable", BARRIER})
BRANCHES = frozenset({"llvm.cond_br", "llvm.switch"})
LDS_ALIGN = 16
Run = Callable[[Any, dict[int, Any]], dict[int, Any]]


@dataclass(frozen=True)
class Edge:
    """A way out of a block: the successor's index, and the source of each of its arguments."""

    target: int
    passed: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Code:
    """A block ready to run.

    Attributes:
        run: function of (step, live values) that returns the values its successors need.
        end: the terminator; `edges` are its ways out in order.
        noted: makes a `run` that tells its step of every operation, for a trace.
        passing: makes a `run` that tells its step before each of the operations it is given, for a clock.
    """

    block: Block
    run: Run
    end: Op
    edges: tuple[Edge, ...]
    live_in: frozenset[int]
    noted: Callable[[], Run]
    passing: Callable[[frozenset[int]], Run]


@dataclass(frozen=True)
class Program:
    """A decoded kernel.

    Attributes:
        constants: values that are the same for every wave, by SSA number.
        lds: offset of every LDS global; `lds_bytes` is what a workgroup takes.
        polls: headers of loops that read memory or the clock and change nothing but by atomics: waiting loops, or loops
            of loads; `timed` are those of them that read the clock.
        passing: blocks' functions for a modelled clock, by index, as they have been needed.
    """

    kernel: Kernel
    graph: Graph
    codes: tuple[Code, ...]
    constants: dict[int, Any]
    lds: dict[str, int]
    lds_bytes: int
    polls: frozenset[int]
    timed: frozenset[int]
    passing: dict[int, Run] = field(default_factory=dict, repr=False, compare=False)


def decode(module: Module, name: str) -> Program:
    """The kernel `name` of `module`, decoded the first time and kept with the module: nothing that runs changes it.

    Raises:
        BadInput: listing every operation that is not supported, with its line.
    """
    if name not in module.decoded:
        module.decoded[name] = _decoded(module, name)
    program: Program = module.decoded[name]
    return program


def _decoded(module: Module, name: str) -> Program:
    kernel = canonical(module.kernels[name])
    _check_supported(kernel)
    lds, lds_bytes = _place_lds(module.globals)
    constants = dict(_constants(kernel, lds))
    blocks = [part for block in kernel.blocks for part in _split_at_barriers(block)]
    graph = analyse(blocks, frozenset(constants))
    suspects = Suspects(graph.blocks, constants)
    codes = tuple(_code(graph, i, constants, suspects) for i in range(len(graph.blocks)))
    polls = frozenset(header for header, loop in graph.loops.items() if _may_wait(graph, loop.body))
    timed = frozenset(header for header in polls if _reads_clock(graph, graph.loops[header].body))
    return Program(kernel, graph, codes, constants, lds, lds_bytes, polls, timed)


def _check_supported(kernel: Kernel) -> None:
    missing = [f"{what} at {loc}" for what, loc in semantics.unsupported(kernel)]
    missing += [f"{op.name} at {op.loc}" for op in kernel.ops() if semantics.handled_by_engine(op) and not _known(op)]
    if missing:
        wanted = "operations the simulator knows"
        raise BadInput(f"kernel {kernel.name}: expected {wanted}, got {len(missing)} others: {'; '.join(missing)}.")


def _known(op: Op) -> bool:
    by_engine = BARRIERS | SILENT | TERMINATORS | {"llvm.mlir.addressof"}
    return op.name in by_engine or is_clock(op) or access.lookup(op.name) is not None


def is_clock(op: Op) -> bool:
    """Whether `op` reads the clock."""
    return "memrealtime" in op.name or "memrealtime" in str(op.attrs.get("intrin", ""))


def _place_lds(variables: Any) -> tuple[dict[str, int], int]:
    """Offsets of the LDS globals, one after the other, each aligned."""
    offsets: dict[str, int] = {}
    end = 0
    for variable in _lds_globals(variables.values()):
        align = max(variable.alignment, LDS_ALIGN)
        offsets[variable.name] = end = -(-end // align) * align
        end += variable.nbytes
    return offsets, end


def _lds_globals(variables: Any) -> Iterator[Global]:
    return (variable for variable in variables if variable.space == access.LDS)


def _constants(kernel: Kernel, lds: dict[str, int]) -> Iterator[tuple[int, Any]]:
    for op in kernel.ops():
        if op.name == "llvm.mlir.addressof":
            yield op.results[0], _fixed(np.array([[lds[str(op.attrs["global_name"]).lstrip("@")]]], np.int64))
        elif not op.operands and (found := semantics.find(op)) is not None and found.kind == "pure":
            yield op.results[0], _fixed(found.make(op)())


def _fixed(value: Any) -> Any:
    """A value that cannot be written to, as every wave of every launch holds this one."""
    each(lambda array: array.setflags(write=False), value)
    return value


def _split_at_barriers(block: Block) -> Iterator[Block]:
    """The block in pieces, each but the last ending in a barrier."""
    label, args, first = block.label, block.args, 0
    for number, op in enumerate(block.ops):
        if op.name in BARRIERS:
            after = f"{block.label}, after operation {number}"
            end = replace(op, name=BARRIER, successors=((after, ()),))
            yield Block(label, args, (*block.ops[first:number], end))
            label, args, first = after, (), number + 1
    yield Block(label, args, block.ops[first:])


def _may_wait(graph: Graph, body: frozenset[int]) -> bool:
    """Whether what a loop reads may change by what others do, or with time, and it does nothing but look."""
    ops = [op for i in body for op in graph.blocks[i].ops]
    return any(access.looks(op) or is_clock(op) for op in ops) and not any(
        access.is_store(op) or op.name == BARRIER for op in ops
    )


def _reads_clock(graph: Graph, body: frozenset[int]) -> bool:
    return any(is_clock(op) for i in body for op in graph.blocks[i].ops)


def _code(graph: Graph, number: int, constants: dict[int, Any], suspects: Suspects) -> Code:
    block, end = graph.blocks[number], graph.blocks[number].ops[-1]
    edges = tuple(
        Edge(target, tuple(zip((a for a, _ in graph.blocks[target].args), passed, strict=True)))
        for target, passed in ((graph.places[label], passed) for label, passed in end.successors)
    )
    needed = {source for edge in edges for _, source in edge.passed} | set(end.operands)
    for edge in edges:
        args = {a for a, _ in graph.blocks[edge.target].args}
        needed |= graph.live_in[edge.target] - args
    own = graph.live_in[number] | {a for a, _ in block.args}  # a poll compares what its header had with what it gets
    needed |= {a for edge in edges for a, _ in graph.blocks[edge.target].args if a in own}
    make = partial(_generate, block, graph.live_in[number], frozenset(needed), constants, suspects)
    noted, passing = partial(make, noted=True), partial(_passing, make)
    return Code(block, make(), end, edges, graph.live_in[number], noted, passing)


def _passing(make: Callable[..., Run], points: frozenset[int]) -> Run:
    return make(points=points)


def _generate(
    block: Block,
    live_in: frozenset[int],
    needed: frozenset[int],
    constants: dict[int, Any],
    suspects: Suspects,
    noted: bool = False,
    points: frozenset[int] = frozenset(),
) -> Run:
    """The block's function, as source text compiled once; a line number tells the operation.

    With `noted`, every operation is followed by a call of `step.note` with its operands and its result; those in
    `points` come after a call of `step.point`.
    """
    used = {value for op in block.ops for value in op.operands} | needed
    names: dict[str, Any] = {f"k{value}": constants[value] for value in used if value in constants}

    def name(value: int) -> str:
        return f"k{value}" if value in constants else f"v{value}"

    given = [v for v in (*live_in, *(a for a, _ in block.args)) if v in used]
    begin = [f"v{v} = values[{v}]" for v in given]
    inserts = {} if noted else chains(block, needed, constants, suspects.maybe)
    lines = ["def run(step, values):", _joined(*begin, suspects.before(given))]
    for number, op in enumerate(block.ops[:-1]):
        refuse, follow = suspects.at(number, op, name, names)
        if number in inserts:
            line = _chained(number, op, inserts[number], name, names)
        else:
            line = _line(number, op, name, names, constants)
        note = _note(number, op, name) if noted and not constants.keys() & set(op.results) else ""
        lines.append(_joined(f"step.point({number})" if number in points else "", refuse, line, follow, note))
    passed = {source for _, sources in block.ops[-1].successors for source in sources}
    lines.append(_joined(suspects.after(needed, given, passed, names), _note(-1, block.ops[-1], name) if noted else ""))
    returned = ", ".join(f"{value}: {name(value)}" for value in sorted(needed))
    lines.append(f"return {{{returned}}}")
    source = lines[0] + "\n" + "\n".join(f"    {line}" for line in lines[1:])
    exec(compile(source, f"<block {block.label}>", "exec"), names)
    run: Run = names["run"]
    return run


def _joined(*statements: str) -> str:
    return "; ".join(filter(None, statements)) or "pass"


def _note(number: int, op: Op, name: Callable[[int], str]) -> str:
    operands = "".join(f"{name(value)}, " for value in op.operands)
    return f"step.note({number}, ({operands}), {name(op.results[0]) if op.results else None})"


FIRST_OP_LINE = 3


def _line(number: int, op: Op, name: Callable[[int], str], names: dict[str, Any], constants: dict[int, Any]) -> str:
    if op.name in SILENT or (op.results and op.results[0] in constants):
        return "; ".join(f"step.watch and step.watch.{heard}(step)" for heard in _heard(op)) or "pass"
    operands = ", ".join(name(value) for value in op.operands)
    targets = ", ".join(f"v{value}" for value in op.results)
    assign = f"{targets} = " if targets else ""
    if is_clock(op):
        names["clock"] = _clock
        return f"{assign}clock(step)"
    found = semantics.find(op)
    if found is not None and found.kind == "pure":
        names[f"f{number}"] = found.make(op)
        return f"{assign}f{number}({operands})"
    maker = access.lookup(op.name)
    names[f"f{number}"] = found.make(op) if found is not None else maker(op)  # type: ignore[misc]
    return f"step.at = {number}; {assign}f{number}(step{', ' if operands else ''}{operands})"


def _chained(number: int, op: Op, chain: Chain | None, name: Callable[[int], str], names: dict[str, Any]) -> str:
    """A chain of inserts at its last operation; nothing at those before."""
    if chain is None:
        return ""
    names[f"f{number}"] = insert_elements(chain.places)
    return f"v{op.results[0]} = f{number}({', '.join(map(name, (chain.base, *chain.values)))})"


def _heard(op: Op) -> Iterator[str]:
    """What a watch hears of an operation that moves no value."""
    if (op.name == "rocdl.s.waitcnt" and drains(int(op.attrs["bitfield"]))) or (
        op.name == "llvm.fence" and releases(op)
    ):
        yield "drained"
        if op.name == "llvm.fence" and reach_of(op) == EVERYWHERE:
            yield "published"
    if op.name == "llvm.fence" and acquires(op):
        yield "acquired_far" if reach_of(op) == EVERYWHERE else "acquired"


def _clock(step: Any) -> Any:
    return step.ticks
