"""What the tests of hand-made kernels share: a builder of IR, and an interpreter of one lane in plain Python.

The interpreter knows nothing of waves: a lane runs from the first block to its return, its integers are Python's and
its floats NumPy scalars.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from k3lab.lowering.ir import Block, Global, HostLaunch, Kernel, Loc, Module, Op, Type
from k3lab.lowering.types import parse_type
from k3lab.sim.engine import Engine
from k3lab.sim.launch import simulate
from k3lab.sim.options import Options
from tests.sim.test_semantics_kit import FLOAT_PREDICATES

I1, I8, I16, I32, I64 = (parse_type(f"i{width}") for width in (1, 8, 16, 32, 64))
F32, BF16 = parse_type("f32"), parse_type("bf16")
GLOBAL, LDS = parse_type("!llvm.ptr<1>"), parse_type("!llvm.ptr<3>")
SPACING = 1 << 40


class Build:
    """A kernel in the making; operations go to the block that `at` was last called with."""

    def __init__(self, *params: Type) -> None:
        self.types: list[Type] = []
        self._blocks: dict[str, tuple[tuple[int, ...], list[Op]]] = {}
        self.params = self.at("entry", *params)

    def at(self, label: str, *kinds: Type) -> tuple[int, ...]:
        """Begin the block `label`; returns its arguments."""
        args = tuple(self._value(kind) for kind in kinds)
        self._ops: list[Op] = []
        self._blocks[label] = (args, self._ops)
        return args

    def op(self, name: str, *operands: int, gives: Type | None = None, **attrs: Any) -> int:
        """Append an operation; returns its result (-1 if it has none)."""
        return self._append(name, operands, gives, attrs)

    def constant(self, kind: Type, value: Any) -> int:
        return self.op("llvm.mlir.constant", gives=kind, value=value)

    def load(self, kind: Type, base: int, index: int) -> int:
        """Load element `index` of the array at `base`."""
        return self.op("llvm.load", self.element(kind, base, index), gives=kind, alignment=kind.nbytes)

    def store(self, value: int, base: int, index: int) -> None:
        kind = self.types[value]
        self.op("llvm.store", value, self.element(kind, base, index), alignment=kind.nbytes)

    def element(self, kind: Type, base: int, index: int) -> int:
        attrs = {"elem_type": kind, "rawConstantIndices": [-(2**31)]}
        return self.op("llvm.getelementptr", base, index, gives=self.types[base], **attrs)

    def lds(self, name: str) -> int:
        return self.op("llvm.mlir.addressof", gives=LDS, global_name=f"@{name}")

    def add(self, a: int, b: int) -> int:
        return self.op("llvm.add", a, b, gives=self.types[a])

    def fcmp(self, predicate: str, a: int, b: int) -> int:
        return self.op("llvm.fcmp", a, b, gives=I1, predicate=FLOAT_PREDICATES.index(predicate))

    def icmp(self, predicate: str, a: int, b: int) -> int:
        return self.op("llvm.icmp", a, b, gives=I1, predicate=PREDICATES.index(predicate))

    def thread(self) -> int:
        return self.op("rocdl.workitem.id.x", gives=I32)

    def group(self) -> int:
        return self.op("rocdl.workgroup.id.x", gives=I32)

    def clock(self) -> int:
        return self.op("llvm.call_intrinsic", gives=I64, intrin="llvm.amdgcn.s.memrealtime")

    def br(self, label: str, *passed: int) -> None:
        self._append("llvm.br", (), None, {}, ((label, passed),))

    def cond(self, condition: int, yes: tuple[str, Sequence[int]], no: tuple[str, Sequence[int]]) -> None:
        self._append("llvm.cond_br", (condition,), None, {}, tuple((label, tuple(args)) for label, args in (yes, no)))

    def switch(self, value: int, default: str, cases: dict[int, str]) -> None:
        ends = tuple((label, ()) for label in (default, *cases.values()))
        self._append("llvm.switch", (value,), None, {"case_values": list(cases)}, ends)

    def ret(self) -> None:
        self.op("llvm.return")

    def kernel(self, order: Sequence[str] = ()) -> Kernel:
        """The kernel, its blocks printed in `order` (those not named, after)."""
        labels = [*order, *(label for label in self._blocks if label not in order)]
        blocks = tuple(self._block(label) for label in labels)
        assert labels[0] == "entry"
        return Kernel("k", blocks, {"gpu.kernel": True})

    def module(self, *, groups: int, threads: int = 64, order: Sequence[str] = (), lds: int = 0) -> Module:
        """A module whose host function launches the kernel with its own arguments."""
        args = tuple(("arg", i) for i in range(len(self.params)))
        launch = HostLaunch("k", (groups, 1, 1), (threads, 1, 1), 0, args)
        shared = {"shared": Global("shared", lds, 16, 3)} if lds else {}
        return Module({"k": self.kernel(order)}, shared, (launch,), tuple(self.types[p] for p in self.params), "")

    def _block(self, label: str) -> Block:
        args, ops = self._blocks[label]
        return Block(label, tuple((arg, self.types[arg]) for arg in args), tuple(ops))

    def _value(self, kind: Type) -> int:
        self.types.append(kind)
        return len(self.types) - 1

    def _append(
        self, name: str, operands: tuple[int, ...], gives: Type | None, attrs: dict[str, Any], successors: Any = ()
    ) -> int:
        results = () if gives is None else (self._value(gives),)
        kinds = tuple(self.types[value] for value in operands)
        loc = Loc("micro.py", sum(len(ops) for _, ops in self._blocks.values()) + 1)
        given = () if gives is None else (gives,)
        self._ops.append(Op(name, results, operands, given, kinds, attrs, successors, loc))
        return results[0] if results else -1


# -- one lane, in plain Python -----------------------------------------------------------------------------------------

PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
COMPARE = {"eq": operator.eq, "ne": operator.ne, **{k: getattr(operator, k) for k in ("lt", "le", "gt", "ge")}}
MEANS = {"false": "", "ord": "<=>", "uno": "?", "true": "<=>?"}
MEANS |= {"oeq": "=", "ogt": ">", "oge": ">=", "olt": "<", "ole": "<=", "one": "<>"}
MEANS |= {"u" + name[1:]: ways + "?" for name, ways in MEANS.items() if name[0] == "o" and name != "ord"}


def signed(x: int, bits: int) -> int:
    """The bits of `x` as two's complement."""
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def bits_of(x: np.float32) -> int:
    return int(np.float32(x).view(np.uint32))


def float_of(bits: int) -> np.float32:
    return np.uint32(bits).view(np.float32)


def quotient(a: int, b: int) -> int:
    """Truncated toward zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def relation(a: np.float32, b: np.float32) -> str:
    """How two floats stand to each other: `<`, `=`, `>`, or `?` where one is a NaN."""
    if np.isnan(a) or np.isnan(b):
        return "?"
    return "=" if a == b else ">" if a > b else "<"


UNSIGNED: dict[str, Callable[..., int]] = {
    "llvm.add": operator.add,
    "llvm.sub": operator.sub,
    "llvm.mul": operator.mul,
    "llvm.and": operator.and_,
    "llvm.or": operator.or_,
    "llvm.xor": operator.xor,
    "llvm.shl": operator.lshift,
    "llvm.lshr": operator.rshift,
    "llvm.udiv": operator.floordiv,
    "llvm.urem": operator.mod,
    "llvm.intr.umin": min,
    "llvm.intr.umax": max,
    "llvm.intr.ctpop": int.bit_count,
}
SIGNED: dict[str, Callable[..., int]] = {
    "llvm.sdiv": quotient,
    "llvm.srem": lambda a, b: a - quotient(a, b) * b,
    "llvm.intr.smin": min,
    "llvm.intr.smax": max,
}
FLOATS: dict[str, Callable[..., Any]] = {
    "llvm.fadd": operator.add,
    "llvm.fsub": operator.sub,
    "llvm.fmul": operator.mul,
    "llvm.fdiv": operator.truediv,
}


class Lane:
    """One lane of a kernel; `memory` is what its pointers point into, by argument number."""

    def __init__(self, kernel: Kernel, args: Sequence[Any], thread: int, group: int) -> None:
        self.blocks = {block.label: block for block in kernel.blocks}
        self.thread, self.group = thread, group
        self.memory = {i: arg.reshape(-1).view(np.uint8) for i, arg in enumerate(args) if isinstance(arg, np.ndarray)}
        self.entry = kernel.blocks[0]
        self.values: dict[int, Any] = {
            number: (i + 1) * SPACING if i in self.memory else args[i] for i, (number, _) in enumerate(self.entry.args)
        }

    def run(self) -> dict[int, Any]:
        """Run to the end; returns every value's last content."""
        block = self.entry
        with np.errstate(all="ignore"):
            while True:
                for op in block.ops[:-1]:
                    result = self._result(op, [self.values[value] for value in op.operands])
                    if op.results:
                        self.values[op.results[0]] = result
                way = self._way(block.ops[-1])
                if way is None:
                    return self.values
                label, passed = way
                block = self.blocks[label]
                self.values |= dict(
                    zip((arg for arg, _ in block.args), [self.values[value] for value in passed], strict=True)
                )

    def _way(self, end: Op) -> tuple[str, tuple[int, ...]] | None:
        match end.name:
            case "llvm.br":
                return end.successors[0]
            case "llvm.cond_br":
                return end.successors[0 if self.values[end.operands[0]] else 1]
            case "llvm.switch":
                value = signed(self.values[end.operands[0]], 32)
                cases = end.attrs["case_values"]
                return end.successors[cases.index(value) + 1 if value in cases else 0]
            case "llvm.return":
                return None
        raise AssertionError(end.name)

    def _result(self, op: Op, operands: list[Any]) -> Any:
        kind = op.result_types[0] if op.results else None
        if op.name in FLOATS:
            return FLOATS[op.name](*operands)
        if op.name in UNSIGNED or op.name in SIGNED:
            bits = op.operand_types[0].bits
            if op.name in SIGNED:
                return SIGNED[op.name](*(signed(x, bits) for x in operands)) & ((1 << bits) - 1)
            return UNSIGNED[op.name](*operands) & ((1 << bits) - 1)
        return getattr(self, "_" + op.name.split(".", 1)[1].replace(".", "_"))(op, kind, *operands)

    def _mlir_constant(self, op: Op, kind: Type) -> Any:
        value = op.attrs["value"]
        return np.float32(value) if kind.kind == "float" else value & ((1 << kind.bits) - 1)

    def _workitem_id_x(self, op: Op, kind: Type) -> int:
        return self.thread

    def _workgroup_id_x(self, op: Op, kind: Type) -> int:
        return self.group

    def _ballot(self, op: Op, kind: Type, condition: bool) -> int:
        """Kernels here only ask who is there, where all should be."""
        return (1 << 64) - 1

    def _s_barrier(self, op: Op, kind: None) -> None: ...

    def _ashr(self, op: Op, kind: Type, a: int, amount: int) -> int:
        return (signed(a, kind.bits) >> amount) & ((1 << kind.bits) - 1)

    def _icmp(self, op: Op, kind: Type, a: int, b: int) -> bool:
        name = PREDICATES[op.attrs["predicate"]]
        if name[0] == "s":
            a, b = (signed(x, op.operand_types[0].bits) for x in (a, b))
        return COMPARE[name if name in COMPARE else name[1:]](a, b)

    def _fcmp(self, op: Op, kind: Type, a: np.float32, b: np.float32) -> bool:
        return relation(a, b) in MEANS[FLOAT_PREDICATES[op.attrs["predicate"]]]

    def _select(self, op: Op, kind: Type, condition: bool, yes: Any, no: Any) -> Any:
        return yes if condition else no

    def _trunc(self, op: Op, kind: Type, a: int) -> int:
        return a & ((1 << kind.bits) - 1)

    def _zext(self, op: Op, kind: Type, a: int) -> int:
        return int(a)

    def _sext(self, op: Op, kind: Type, a: int) -> int:
        return signed(int(a), op.operand_types[0].bits) & ((1 << kind.bits) - 1)

    def _sitofp(self, op: Op, kind: Type, a: int) -> np.float32:
        return np.float32(signed(int(a), op.operand_types[0].bits))

    def _uitofp(self, op: Op, kind: Type, a: int) -> np.float32:
        return np.float32(int(a))

    def _bitcast(self, op: Op, kind: Type, a: Any) -> Any:
        return float_of(a) if kind.kind == "float" else bits_of(a)

    def _getelementptr(self, op: Op, kind: Type, base: int, index: int) -> int:
        return base + signed(index, op.operand_types[1].bits) * op.attrs["elem_type"].nbytes

    def _load(self, op: Op, kind: Type, address: int) -> Any:
        data = self._place(address, kind.nbytes)
        return data.view(np.float32)[0] if kind.kind == "float" else int.from_bytes(data.tobytes(), "little")

    def _store(self, op: Op, kind: None, value: Any, address: int) -> None:
        size = op.operand_types[0].nbytes
        bits = bits_of(value) if op.operand_types[0].kind == "float" else int(value)
        self._place(address, size)[:] = np.frombuffer(bits.to_bytes(size, "little"), np.uint8)

    def _place(self, address: int, size: int) -> np.ndarray:
        number, offset = address // SPACING - 1, address % SPACING
        data = self.memory[number][offset : offset + size]
        assert len(data) == size, f"argument {number} + {offset}"
        return data


def by_lanes(module: Module, *args: Any) -> None:
    """Run every lane of the launch by itself, one after the other, on the arrays in `args`."""
    launch = module.launches[0]
    for group in range(launch.grid[0]):
        for thread in range(launch.block[0]):
            Lane(module.kernels["k"], args, thread, group).run()


def run(module: Module, *args: Any, **options: Any) -> Engine:
    """Simulate with the engine."""
    return simulate(module, *args, options=Options(**options))


def spelled(module: Module) -> str:
    """The kernel as text, for what a failing test prints."""
    lines = []
    for block in module.kernels["k"].blocks:
        lines.append(f"{block.label}{[arg for arg, _ in block.args]}:")
        lines += [f"  {list(op.results)} = {op.name} {list(op.operands)} {_shown(op)}" for op in block.ops]
    return "\n".join(lines)


def _shown(op: Op) -> str:
    return " ".join(str(x) for x in (op.attrs or "", op.successors or "") if x)
