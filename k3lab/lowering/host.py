"""What the host function launches: grid, block and kernel arguments in terms of its own arguments and constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3lab.errors import BadInput
from k3lab.lowering.ir import Block, HostLaunch, Op

PASSED_ON = ("llvm.sext", "llvm.zext", "llvm.trunc", "llvm.bitcast", "llvm.inttoptr", "llvm.ptrtoint")
"""Operations that give their operand on, at another width or as another type."""
SEGMENTS = ("async", "gx", "gy", "gz", "bx", "by", "bz", "cx", "cy", "cz", "dynamic", "args", "stream")
"""The operand groups of `gpu.launch_func`, in order."""

Source = tuple[str, Any]
"""("arg", i), or ("const", value)."""


@dataclass(frozen=True)
class Function:
    """A function of the module, the host's or a kernel."""

    name: str
    blocks: tuple[Block, ...]
    attrs: Mapping[str, Any]


def host_launches(function: Function) -> list[HostLaunch]:
    """The launches of a host function, in order.

    Raises:
        BadInput: naming the operation, when a launch is computed from more than arguments and constants.
    """
    if len(function.blocks) != 1:
        raise BadInput(f"host function {function.name!r}: expected straight-line code, got branches.")
    block = function.blocks[0]
    sources: dict[int, Source] = {value: ("arg", place) for place, (value, _) in enumerate(block.args)}
    producers: dict[int, Op] = {}
    launches = []
    for op in block.ops:
        producers |= dict.fromkeys(op.results, op)
        if op.name == "llvm.mlir.constant":
            sources[op.results[0]] = "const", op.attrs["value"]
        elif op.name in PASSED_ON and op.operands[0] in sources:
            sources[op.results[0]] = _passed(op, sources[op.operands[0]])
        elif op.name == "llvm.extractvalue":
            _extract(op, sources, producers)
        elif op.name == "gpu.launch_func":
            launches.append(_launch(op, sources, producers, function.name))
    return launches


def _passed(op: Op, source: Source) -> Source:
    """A constant at its new width; an argument as it is."""
    kind, value = source
    result = op.result_types[0]
    if kind != "const" or result.kind != "int" or not isinstance(value, int):
        return source
    before = op.operand_types[0].bits
    if op.name == "llvm.zext" and value < 0:
        return "const", value + (1 << before)
    if op.name == "llvm.trunc":
        kept = value & ((1 << result.bits) - 1)
        return "const", kept - (1 << result.bits) if result.bits > 1 and kept >> (result.bits - 1) else kept
    return source


def _extract(op: Op, sources: dict[int, Source], producers: Mapping[int, Op]) -> None:
    """Take what was put into a struct out again."""
    value = op.operands[0]
    seen: set[int] = set()  # a text may insert a value into itself
    while (made := producers.get(value)) and made.name == "llvm.insertvalue" and value not in seen:
        seen.add(value)
        if made.attrs.get("position") == op.attrs.get("position"):
            if made.operands[1] in sources:
                sources[op.results[0]] = sources[made.operands[1]]
            return
        value = made.operands[0]


def _launch(op: Op, sources: Mapping[int, Source], producers: Mapping[int, Op], function: str) -> HostLaunch:
    groups = _groups(op)

    def source(value: int) -> Source:
        if value in sources:
            return sources[value]
        maker = producers.get(value)
        what = f"{maker.name} ({maker.loc})" if maker else "nothing here"
        raise BadInput(f"host function {function!r}: expected arguments and constants in its launch, got {what}.")

    def size(name: str, default: int) -> Any:
        if not groups[name]:
            return default
        kind, value = made = source(groups[name][0])
        return value if kind == "const" else made

    if any(groups[name] for name in ("cx", "cy", "cz")):
        raise BadInput(f"host function {function!r}: expected a launch without clusters, got one with.")
    return HostLaunch(
        op.attrs["kernel"].split("::")[-1],
        (size("gx", 1), size("gy", 1), size("gz", 1)),
        (size("bx", 1), size("by", 1), size("bz", 1)),
        size("dynamic", 0),
        tuple(source(value) for value in groups["args"]),
    )


def _groups(op: Op) -> dict[str, tuple[int, ...]]:
    sizes = op.attrs.get("operandSegmentSizes", [])
    if len(sizes) != len(SEGMENTS) or sum(sizes) != len(op.operands):
        raise BadInput(f"gpu.launch_func: expected {len(SEGMENTS)} operand groups, got {sizes}.")
    groups, start = {}, 0
    for name, size in zip(SEGMENTS, sizes, strict=True):
        groups[name] = op.operands[start : start + size]
        start += size
    return groups
