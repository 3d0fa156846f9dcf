"""Reads a lowered module from MLIR's generic text, an operation a line, as `k3lab.lowering.capture` prints it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from k3lab.errors import BadInput
from k3lab.lowering.attributes import parse_attributes
from k3lab.lowering.host import Function, host_launches
from k3lab.lowering.ir import Block, Global, Kernel, Module, Op, Type
from k3lab.lowering.locations import Locations
from k3lab.lowering.scan import closing, split_top
from k3lab.lowering.types import parse_signature, parse_type

HEAD = re.compile(r'\s*(?:(%[\w#:$.]+(?:, %[\w#:$.]+)*) = )?"([\w.$-]+)"\(([^()]*)\)(?:\[([^\]]*)\])?\s*')
LABEL = re.compile(r"\s*(\^\w+)(?:\((.*)\))?:\s*(?://.*)?$")
REGION_END = re.compile(r"\s*\}(\)|, \{$)")
OPENING = re.compile(r" ?\(\{$")
ENTRY = "^bb0"
HOLDERS = ("builtin.module", "gpu.module", "llvm.func", "llvm.mlir.global")
"""The operations with regions that a lowered module has."""
MISREAD = (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError)
"""What reading ends in where a text says something of another kind than the generic form does in that place."""
MOST_RESULTS = 1024
"""Results of an operation; FlyDSL's have at most a handful."""
KERNEL_MARKS = ("gpu.kernel", "rocdl.kernel")


def parse(text: str) -> Module:
    """The module that `text` spells.

    Operands that a branch passes on stand in its successors only: `llvm.br` has no operands of its own, `llvm.cond_br`
    its condition, `llvm.switch` its value (default successor first, `case_values` for the others).

    Raises:
        BadInput: naming the line, for text that is no such module or a host function that computes its launch.
    """
    lines = text.splitlines()
    reader = _Reader()
    for line in lines:
        if line.startswith("#loc"):
            reader.locations.define(line)
    for number, line in enumerate(lines, 1):
        try:
            reader.read(line)
        except (BadInput, *MISREAD) as error:
            raise BadInput(f"IR line {number}: {_sentence(error)} Line: {line.strip()[:160]!r}.") from None
    if reader.open:
        raise BadInput(f"IR text: expected every region to close, got an open {reader.open[-1].name} at its end.")
    try:
        return reader.module(text)
    except MISREAD as error:
        raise BadInput(f"IR text: {_sentence(error)}") from None


def _sentence(error: Exception) -> str:
    if isinstance(error, BadInput):
        return str(error)
    what = "brackets nested too deeply" if isinstance(error, RecursionError) else f"{type(error).__name__}: {error}"
    return f"expected generic MLIR, got {what[:160]}."


@dataclass(frozen=True)
class _Tail:
    """What stands after an operation's operands, without its location."""

    attrs: dict[str, Any]
    operand_types: tuple[Type, ...]
    result_types: tuple[Type, ...]


@dataclass
class _Region:
    """An operation whose regions are being read."""

    name: str
    attrs: dict[str, Any]
    values: dict[str, int] | None = None
    blocks: list[Block] = field(default_factory=list)


class _Reader:
    """Keeps what the lines so far have said."""

    def __init__(self) -> None:
        self.locations = Locations()
        self.open: list[_Region] = []
        self._functions: list[Function] = []
        self._globals: dict[str, Global] = {}
        self._tails: dict[str, _Tail] = {}
        self._values: dict[str, int] = {}
        self._label: tuple[str, tuple[tuple[int, Type], ...]] = (ENTRY, ())
        self._ops: list[Op] = []

    def read(self, line: str) -> None:
        """Take one line.

        Raises:
            BadInput: for a line that is neither an operation, a block's label, a region's end nor a location.
        """
        if found := HEAD.match(line):
            self._operation(line, found)
        elif found := LABEL.match(line):
            self._block(found[1], found[2])
        elif found := REGION_END.match(line):
            self._region_end(line[found.end() :] if found[1] == ")" else None)
        elif line.strip() and not line.startswith(("#", "//", "{-#", "#-}")):
            raise BadInput("expected an operation, a block or a region's end.")

    # Operations and blocks.

    def _operation(self, line: str, head: re.Match[str]) -> None:
        rest = line[head.end() :]
        if rest.endswith("({"):
            self._region_begin(head[2], OPENING.sub("", rest))
            return
        types, place = _placed(rest)
        tail = self._tail(types)
        if head[2] == "llvm.mlir.global":
            self._global(tail.attrs)
            return
        operands = self._numbers(head[3])
        if len(operands) != len(tail.operand_types):
            raise BadInput(f"expected {len(operands)} operand types, got {len(tail.operand_types)}.")
        results = self._results(head[1], len(tail.result_types))
        own, successors = _branch(head[2], operands, head[4], tail.attrs)
        self._ops.append(
            Op(
                head[2],
                results,
                own,
                tail.result_types,
                tail.operand_types[: len(own)],
                tail.attrs,
                successors,
                self.locations.resolve(place) if place else None,
            )
        )

    def _tail(self, text: str) -> _Tail:
        """Properties `<{...}>`, attributes `{...}` and types; the same text gives the same object."""
        if text not in self._tails:
            attrs, rest = _properties(text)
            if not rest.startswith(":"):
                raise BadInput(f"expected ': (types) -> types' after the attributes, got {rest[:40]!r}.")
            operand_types, result_types = parse_signature(rest[1:].strip())
            self._tails[text] = _Tail(attrs, operand_types, result_types)
        return self._tails[text]

    def _numbers(self, names: str) -> tuple[int, ...]:
        """The values of `%3, %arg0`; one that is used before it is defined gets its number here."""
        values = self._values
        return tuple([values.setdefault(name, len(values)) for name in names.split(", ")]) if names else ()

    def _results(self, names: str | None, count: int) -> tuple[int, ...]:
        """The values that `%5` or `%5:2` defines."""
        if not names:
            return ()
        name, _, several = names.partition(":")
        if several and int(several) > MOST_RESULTS:
            raise BadInput(f"expected at most {MOST_RESULTS} results, got {several[:20]}.")
        named = [f"{name}#{place}" for place in range(int(several))] if several else names.split(", ")
        if len(named) != count:
            raise BadInput(f"expected {len(named)} result types, got {count}.")
        return self._numbers(", ".join(named))

    def _block(self, label: str, args: str | None) -> None:
        self._finish_block()
        self._label = label, tuple(self._argument(arg) for arg in split_top(args or ""))

    def _argument(self, text: str) -> tuple[int, Type]:
        name, _, spelled = text.partition(": ")
        where = spelled.find(" loc(")
        return self._numbers(name)[0], parse_type(spelled[:where] if where > 0 else spelled)

    def _finish_block(self) -> None:
        if self.open and (self._ops or self._label[1] or self._label[0] != ENTRY):
            self.open[-1].blocks.append(Block(*self._label, tuple(self._ops)))
        self._label, self._ops = (ENTRY, ()), []

    # Regions.

    def _region_begin(self, name: str, properties: str) -> None:
        if name not in HOLDERS:
            raise BadInput(f"expected fully lowered code, got {name}, which has a region.")
        region = _Region(name, _properties(properties)[0])
        if name == "llvm.func":
            region.values, self._values = self._values, {}
            self._label, self._ops = (ENTRY, ()), []
        self.open.append(region)

    def _region_end(self, rest: str | None) -> None:
        if not self.open:
            raise BadInput("expected an open region, got none.")
        self._finish_block()
        if rest is None:
            return
        region = self.open.pop()
        attrs = {**region.attrs, **_properties(rest.strip())[0]}
        if region.name == "llvm.func":
            self._values = region.values or {}
            self._functions.append(Function(attrs.get("sym_name", ""), tuple(region.blocks), attrs))
        elif region.name == "llvm.mlir.global":
            self._global(attrs)

    def _global(self, attrs: dict[str, Any]) -> None:
        name, kind = attrs["sym_name"], parse_type(attrs["global_type"])
        self._globals[name] = Global(
            name, kind.nbytes, attrs.get("alignment", 1), attrs.get("addr_space", 0), attrs.get("value")
        )

    # The whole.

    def module(self, text: str) -> Module:
        """The module, once all lines are read.

        Raises:
            BadInput: when it has no kernel, or its host function computes its launch.
        """
        kernels = [found for found in self._functions if any(mark in found.attrs for mark in KERNEL_MARKS)]
        host = [found for found in self._functions if _launches(found)]
        if not kernels:
            raise BadInput("IR module: expected a kernel (a function marked gpu.kernel), got none.")
        return Module(
            {found.name: Kernel(found.name, found.blocks, found.attrs) for found in kernels},
            self._globals,
            tuple(launch for function in host for launch in host_launches(function)),
            tuple(kind for _, kind in host[0].blocks[0].args) if host else (),
            text,
        )


def _launches(function: Function) -> bool:
    return any(op.name == "gpu.launch_func" for block in function.blocks for op in block.ops)


def _placed(text: str) -> tuple[str, str]:
    """What stands before the location at the end, and the location's inside; a string may say ` loc(` too."""
    before, mark, place = text.rpartition(" loc(")
    if not mark or not place.endswith(")") or before.count('"') % 2:
        return text, ""
    return before, place[:-1]


def _properties(text: str) -> tuple[dict[str, Any], str]:
    """What `<{...}> {...}` says, and the text after it."""
    attrs: dict[str, Any] = {}
    while text.startswith(("<{", "{")):
        end = closing(text, 0) + 1
        attrs |= parse_attributes(text[2 : end - 2] if text[0] == "<" else text[1 : end - 1])
        text = text[end:].lstrip()
    return attrs, text


def _branch(
    name: str, operands: tuple[int, ...], labels: str | None, attrs: dict[str, Any]
) -> tuple[tuple[int, ...], tuple[tuple[str, tuple[int, ...]], ...]]:
    """A terminator's own operands, and its successors with the operands that each gets."""
    if not labels:
        return operands, ()
    names = labels.split(", ")
    sizes = attrs.get("operandSegmentSizes") or [0, len(operands)]
    if name == "llvm.switch":
        sizes = [*sizes[:2], *(attrs.get("case_operand_segments") or [0] * (len(names) - 1))]
    if len(sizes) != len(names) + 1 or sum(sizes) != len(operands):
        raise BadInput(f"expected operand segments for {len(names)} successors, got {sizes}.")
    parts = _cut(operands, sizes)
    return parts[0], tuple(zip(names, parts[1:], strict=True))


def _cut(operands: tuple[int, ...], sizes: Iterable[int]) -> list[tuple[int, ...]]:
    parts, start = [], 0
    for size in sizes:
        parts.append(operands[start : start + size])
        start += size
    return parts
