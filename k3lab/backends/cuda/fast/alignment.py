"""How many low bits of a value are 0 for certain: what makes an access of 16 bytes one instruction without a test.

The IR promises the alignment of one element only. What it multiplies, shifts and adds says more. Kernel parameters that
addresses are made of are taken to be multiples of 16 (torch's allocations are); who launches checks that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from k3lab.errors import expect
from k3lab.lowering.ir import Module, Op, Type
from k3lab.lowering.types import parse_type
from k3lab.sim.decode.cfg import Graph
from k3lab.sim.semantics.pointers import DYNAMIC, allocated

MOST = 16
"""Low bits that are followed: a constant 0 has that many."""
ASSUMED = 4
"""Low bits of an address among the parameters that are taken to be 0."""
LEAST = (
    "llvm.add",
    "llvm.sub",
    "llvm.or",
    "llvm.xor",
    "llvm.intr.smin",
    "llvm.intr.smax",
    "llvm.select",
)
"""Operations whose result has as many as the operand with the fewest."""
SAME = (
    "llvm.inttoptr",
    "llvm.ptrtoint",
    "llvm.zext",
    "llvm.sext",
    "llvm.trunc",
    "llvm.freeze",
    "rocdl.readfirstlane",
    "rocdl.make.buffer.rsrc",
)
"""Operations whose result has as many as the first operand."""


@dataclass(frozen=True)
class Alignment:
    """What is known of a kernel's values.

    Attributes:
        zeros: low bits that are 0, by value; none where a value is missing.
        assumed: places of the parameters that are taken to be multiples of 16.
    """

    zeros: dict[int, int]
    assumed: tuple[int, ...]

    def of(self, *values: int) -> int:
        """Bytes that the sum of `values` is a multiple of, 16 at most."""
        return 1 << min(ASSUMED, *(self.zeros.get(value, 0) for value in values))


def alignment(graph: Graph, module: Module) -> Alignment:
    """Start with all bits 0, and follow what says otherwise until nothing new does."""
    ops = [op for block in graph.blocks for op in block.ops]
    known = {op.results[0]: op.attrs["value"] for op in ops if op.name == "llvm.mlir.constant"}
    roots = _addresses(ops)
    params = [value for value, _ in graph.blocks[0].args]
    start = {value: ASSUMED if value in roots else 0 for value in params}
    zeros = dict.fromkeys((value for op in ops for value in op.results), MOST)
    zeros |= dict.fromkeys((value for block in graph.blocks for value, _ in block.args), MOST) | start
    changed = True
    while changed:
        changed = False
        for block in graph.blocks:
            for op in block.ops:
                found = {value: _zeros(op, zeros, known, module) for value in op.results}
                for label, passed in op.successors:
                    args = graph.blocks[graph.places[label]].args
                    for (arg, _), source in zip(args, passed, strict=True):
                        found[arg] = min(found.get(arg, MOST), zeros[source])
                for value, count in found.items():
                    if count < zeros[value]:
                        zeros[value], changed = count, True
    return Alignment(zeros, tuple(place for place, value in enumerate(params) if value in roots))


def check_aligned(kernel: str, assumed: Sequence[int], words: Sequence[int], parameters: int) -> None:
    """Whether a launch's arguments are what was assumed of them.

    Args:
        assumed: places of the parameters that are taken to be multiples of 16.
        words: the arguments of all ranks, one after the other, `parameters` of each.

    Raises:
        BadInput: naming the first argument that is not.
    """
    for start in range(0, len(words), parameters) if assumed else ():
        for place in assumed:
            expect(
                words[start + place] % (1 << ASSUMED) == 0,
                f"fast build of {kernel}: argument {place} of rank {start // parameters} of the launch",
                f"an address that is a multiple of {1 << ASSUMED}",
                f"{words[start + place]:#x}",
                "align that tensor's memory, or use the exact build",
            )


def _addresses(ops: list[Op]) -> set[int]:
    """Values that an address is made of by adding."""
    made = {op.results[0]: op for op in ops if op.results}
    found: set[int] = set()
    todo = [op.operands[0] for op in ops if op.name == "llvm.inttoptr"]
    while todo:
        value = todo.pop()
        if value in found:
            continue
        found.add(value)
        if value in made and made[value].name in ("llvm.add", "llvm.select"):
            op = made[value]
            todo += op.operands[1:] if op.name == "llvm.select" else op.operands
    return found


def _trailing(value: object) -> int:
    if not isinstance(value, int):
        return 0
    return MOST if value == 0 else min(MOST, (value & -value).bit_length() - 1)


def _zeros(op: Op, zeros: dict[int, int], known: dict[int, object], module: Module) -> int:
    at = [zeros[value] for value in op.operands]
    if op.name in LEAST:
        return min(at[1:] if op.name == "llvm.select" else at)
    if op.name in SAME:
        return at[0]
    if op.name == "llvm.mlir.constant":
        return _trailing(op.attrs["value"])
    return SPECIAL.get(op.name, lambda *_: 0)(op, at, known, module)


Count = Callable[[Op, list[int], dict[int, object], Module], int]


def _shift(op: Op, known: dict[int, object]) -> int | None:
    by = known.get(op.operands[1])
    return by if isinstance(by, int) and 0 <= by < 64 else None


def _left(op: Op, at: list[int], known: dict[int, object], module: Module) -> int:
    by = _shift(op, known)
    return at[0] if by is None else min(MOST, at[0] + by)


def _right(op: Op, at: list[int], known: dict[int, object], module: Module) -> int:
    by = _shift(op, known)
    return 0 if by is None else max(0, at[0] - by)


def _product(op: Op, at: list[int], known: dict[int, object], module: Module) -> int:
    return min(MOST, at[0] + at[1])


def _and(op: Op, at: list[int], known: dict[int, object], module: Module) -> int:
    return max(at)


def _lds(op: Op, at: list[int], known: dict[int, object], module: Module) -> int:
    variable = module.globals.get(str(op.attrs["global_name"]).lstrip("@"))
    return ASSUMED if variable is not None and variable.space == 3 else 0


def _step(op: Op, at: list[int], known: dict[int, object], module: Module) -> int:
    element = op.attrs["elem_type"]
    size = allocated(element if isinstance(element, Type) else parse_type(str(element)))
    index = op.attrs["rawConstantIndices"][0]
    return min(at[0], _trailing(size * index) if index != DYNAMIC else min(MOST, _trailing(size) + at[1]))


SPECIAL: dict[str, Count] = {
    "llvm.shl": _left,
    "llvm.ashr": _right,
    "llvm.lshr": _right,
    "llvm.mul": _product,
    "llvm.and": _and,
    "llvm.mlir.addressof": _lds,
    "llvm.getelementptr": _step,
}
