"""Kernels made by hand, operation by operation: control flow and values without a text or a source."""

from __future__ import annotations

from typing import Any

from k3lab.lowering.ir import Block, Op, Type
from k3lab.lowering.types import parse_type
from k3lab.sim.decode.cfg import Graph, analyse

I32, I64 = parse_type("i32"), parse_type("i64")
PAIR, SUMS, OPERAND = parse_type("vector<2xi32>"), parse_type("vector<4xf32>"), parse_type("vector<8xbf16>")
IN_LDS, IN_GLOBAL = parse_type("!llvm.ptr<3>"), parse_type("!llvm.ptr<1>")
BF16, SCALED = "rocdl.mfma.f32.16x16x32.bf16", "rocdl.mfma.scale.f32.16x16x128.f8f6f4"


class Made:
    """A kernel made by hand: values are numbered as they come."""

    def __init__(self, *params: Type) -> None:
        self.blocks: list[tuple[list[tuple[int, Type]], list[Op]]] = []
        self.count = 0
        self.params = self.block(*params)

    def block(self, *kinds: Type) -> list[int]:
        """Begins a block; returns its arguments."""
        args = [(self.count + i, kind) for i, kind in enumerate(kinds)]
        self.count += len(args)
        self.blocks.append((args, []))
        return [value for value, _ in args]

    def __call__(self, name: str, *operands: int, kind: Type | None = I64, of: Type = I64, **attrs: Any) -> int:
        results = () if kind is None else (self.count,)
        self.count += len(results)
        types = () if kind is None else (kind,)
        self.blocks[-1][1].append(Op(name, results, operands, types, (of,) * len(operands), attrs))
        return self.count - 1

    def constant(self, value: Any) -> int:
        return self("llvm.mlir.constant", value=value)

    def load(self, address: int, space: Type = IN_LDS) -> int:
        return self("llvm.load", address, kind=OPERAND, of=space)

    def product(self, a: int, b: int, c: int, name: str = BF16) -> int:
        return self(name, a, b, c, kind=SUMS)

    def to(self, *ways: tuple[int, tuple[int, ...]], when: int | None = None) -> None:
        """Ends a block: jumps to blocks by number, with what is passed."""
        name = "llvm.return" if not ways else "llvm.br" if when is None else "llvm.cond_br"
        successors = tuple((f"b{block}", passed) for block, passed in ways)
        operands = () if when is None else (when,)
        self.blocks[-1][1].append(Op(name, (), operands, (), (I64,) * len(operands), {}, successors))

    def graph(self) -> Graph:
        return analyse(
            [Block(f"b{i}", tuple(args), tuple(ops)) for i, (args, ops) in enumerate(self.blocks)], frozenset()
        )
