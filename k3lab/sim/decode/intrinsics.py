"""Memory, time and order spelled as `llvm.call_intrinsic`, rewritten as the operations of the dialect that they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from k3lab.lowering.ir import Block, Kernel, Op

Numbers = Mapping[int, int]
Rewrite = Callable[[Op, Sequence[int | None]], Op | None]

PREFIX = "llvm.amdgcn."
CLOCK = "llvm.amdgcn.s.memrealtime"


def canonical(kernel: Kernel) -> Kernel:
    """The kernel with such intrinsics as dialect operations; those whose constants are not known stay as they are."""
    constants = {
        op.results[0]: op.attrs["value"]
        for op in kernel.ops()
        if op.name == "llvm.mlir.constant" and isinstance(op.attrs["value"], int)
    }
    blocks = tuple(Block(b.label, b.args, tuple(_rewritten(op, constants) for op in b.ops)) for b in kernel.blocks)
    return replace(kernel, blocks=blocks)


def _rewritten(op: Op, constants: Numbers) -> Op:
    if op.name in CLOCKS:
        return replace(op, name="llvm.call_intrinsic", attrs={"intrin": CLOCK})
    if op.name != "llvm.call_intrinsic":
        return op
    name = str(op.attrs["intrin"]).removeprefix(PREFIX)
    rewrite = next((make for start, make in REWRITES if name == start or name.startswith(start + ".")), None)
    if rewrite is None:
        return op
    return rewrite(op, [constants.get(value) for value in op.operands]) or op


def _named(name: str, *attrs: str) -> Rewrite:
    """An operation `name` whose last operands, constants, become the attributes `attrs`."""

    def rewrite(op: Op, constants: Sequence[int | None]) -> Op | None:
        count = len(op.operands) - len(attrs)
        values = constants[count:]
        if any(value is None for value in values):
            return None
        kept: dict[str, Any] = dict(zip(attrs, values, strict=True))
        return replace(op, name=name, operands=op.operands[:count], operand_types=op.operand_types[:count], attrs=kept)

    return rewrite


def _clock(op: Op, constants: Sequence[int | None]) -> Op:
    return replace(op, attrs={"intrin": CLOCK})


BUFFER = "raw.ptr.buffer."
ATOMICS = ("cmpswap", "swap", "add", "sub", "smin", "umin", "smax", "umax", "and", "or", "xor", "fadd", "fmin", "fmax")

REWRITES: tuple[tuple[str, Rewrite], ...] = (
    (BUFFER + "load.lds", _named("rocdl.raw.ptr.buffer.load.lds", "aux")),
    (BUFFER + "load", _named("rocdl.raw.ptr.buffer.load", "aux")),
    (BUFFER + "store", _named("rocdl.raw.ptr.buffer.store", "aux")),
    *((f"{BUFFER}atomic.{name}", _named(f"rocdl.raw.ptr.buffer.atomic.{name}", "aux")) for name in ATOMICS),
    ("s.buffer.load", _named("rocdl.s.buffer.load", "aux")),
    ("global.load.lds", _named("rocdl.global.load.lds", "size", "offset", "aux")),
    ("s.memtime", _clock),
    ("s.barrier", _named("rocdl.s.barrier")),
    ("s.waitcnt", _named("rocdl.s.waitcnt", "bitfield")),
    ("s.sleep", _named("rocdl.s.sleep", "count")),
    ("s.setprio", _named("rocdl.s.setprio", "priority")),
    ("s.nop", _named("rocdl.s.nop", "count")),
    ("s.dcache.wb", _named("rocdl.s.nop")),
    ("sched.barrier", _named("rocdl.sched.barrier", "mask")),
    ("sched.group.barrier", _named("rocdl.sched.group.barrier", "mask", "size", "groupId")),
    ("wave.barrier", _named("rocdl.wave.barrier")),
)
"""By how an intrinsic's name goes on after `llvm.amdgcn.`, type suffixes aside; the first that fits."""

CLOCKS = ("rocdl.s.memrealtime", "rocdl.s.memtime", "llvm.intr.readsteadycounter")
