"""Matrix products that add to each other's sums: their sums stay as tensor cores have them until the chain ends."""

from __future__ import annotations

from dataclasses import dataclass

from k3lab.backends.cuda.fast.twice import Twice
from k3lab.lowering.ir import Op
from k3lab.sim.decode.cfg import Graph

PRODUCTS = ("rocdl.mfma.f32.16x16x32.bf16", "rocdl.mfma.scale.f32.16x16x128.f8f6f4")
TURNABLE = PRODUCTS[0]


@dataclass(frozen=True)
class Chains:
    """The products of a kernel.

    Attributes:
        fragments: sums that only products take on, as what they add to.
        zeros: constants that are 0 throughout, where a chain may start.
        turned: sums of chains that are computed transposed: their second operand is made for two lanes (`Twice`).
        all_turned: whether no product is left.
    """

    fragments: frozenset[int] = frozenset()
    zeros: frozenset[int] = frozenset()
    turned: frozenset[int] = frozenset()
    all_turned: bool = True

    @classmethod
    def of(cls, graph: Graph, twice: Twice) -> Chains:
        """Find them, and ask `twice` for the operands of the turned ones."""
        ops = [op for block in graph.blocks for op in block.ops]
        products = [op for op in ops if op.name in PRODUCTS]
        fragments = _only_added(ops)
        turned: set[int] = set()
        for chain in _linked(products, fragments):
            if all(op.name == TURNABLE and twice.can(op.operands[1]) for op in chain):
                turned |= {op.results[0] for op in chain}
                for op in chain:
                    twice.want(op.operands[1])
        twice.spare({(value, 1) for value in turned})
        zeros = {op.results[0] for op in ops if op.name == "llvm.mlir.constant" and _is_zero(op.attrs["value"])}
        return cls(fragments, frozenset(zeros), frozenset(turned), len(turned) == len(products))


def _only_added(ops: list[Op]) -> frozenset[int]:
    made: set[int] = set()
    taken: set[int] = set()
    for op in ops:
        if op.name in PRODUCTS:
            made |= set(op.results)
            taken |= set(op.operands) - {op.operands[2]}
        else:
            taken |= set(op.operands) | {value for _, passed in op.successors for value in passed}
    return frozenset(made - taken)


def _linked(products: list[Op], fragments: frozenset[int]) -> list[list[Op]]:
    """Products by chain: those that share a sum."""
    chains: dict[int, list[Op]] = {}
    for op in products:  # a block's products come in order, and a chain does not leave its block but by a fragment
        held = op.operands[2]
        chain = chains[held] if held in fragments and held in chains else []
        chain.append(op)
        chains[op.results[0]] = chain
    return list({id(chain): chain for chain in chains.values()}.values())


def _is_zero(value: object) -> bool:
    items = value if isinstance(value, list) else [value]
    return all(isinstance(item, float) and str(item) == "0.0" for item in items)
