"""What an operation costs a wave, but for what it waits for: instructions of each kind, told from the operation alone.

An operation counts as the instructions that it plainly is: one for each 32-bit register of its result. What the
compiler folds, fuses, moves to the scalar unit or spills is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from k3lab.lowering.ir import Op, Type
from k3lab.sim.clock.costs import Costs
from k3lab.sim.decode import access
from k3lab.sim.decode.program import is_clock
from k3lab.sim.semantics.hardware import FUNCTIONS
from k3lab.sim.semantics.matrix import NAME as MATRIX_NAME
from k3lab.sim.semantics.narrow import matrix_format
from k3lab.sim.semantics.registry import HANDLED_BY_ENGINE, NO_EFFECT

REGISTER = 32  # bits
POINTERS = {3: 1, 5: 1}  # registers of a pointer, by address space; 2 of any other
MOVES = frozenset(
    {
        "llvm.addrspacecast",
        "llvm.bitcast",
        "llvm.extractelement",
        "llvm.extractvalue",
        "llvm.freeze",
        "llvm.insertelement",
        "llvm.insertvalue",
        "llvm.inttoptr",
        "llvm.ptrtoint",
        "llvm.shufflevector",
        "llvm.trunc",
    }
)
"""Operations that only call registers by another name: free, and no use of what they are given."""

FREE = NO_EFFECT | {
    "llvm.mlir.addressof",
    "llvm.mlir.constant",
    "llvm.mlir.poison",
    "llvm.mlir.undef",
    "llvm.mlir.zero",
}
FREE |= {"rocdl.make.buffer.rsrc", "rocdl.s.waitcnt", "llvm.fence"}
FREE |= {f"rocdl.{what}.id.{axis}" for what in ("workitem", "workgroup") for axis in "xyz"}
EXPANDED = {"llvm.fdiv": 10, **dict.fromkeys(("llvm.sdiv", "llvm.srem", "llvm.udiv", "llvm.urem"), 24)}
"""Operations that are a sequence of instructions: roughly how many vector ones LLVM makes of one."""

EIGHT_BIT = ("fp8", "bf8")


@dataclass(frozen=True)
class Work:
    """Instructions: vector ones, transcendental ones, ones of memory and control; matrix passes (16 x 16, 32 x 32).

    Attributes:
        sleeps: units of `s_sleep`.
    """

    vector: int = 0
    transcendental: int = 0
    other: int = 0
    passes_16: int = 0
    passes_32: int = 0
    passes_16_8bit: int = 0
    passes_32_8bit: int = 0
    sleeps: int = 0

    def __add__(self, more: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(more, f.name) for f in fields(Work)))

    def vector_cycles(self, costs: Costs) -> float:
        """Cycles of the SIMD's vector unit."""
        return self.vector * costs.valu_cycles + self.transcendental * costs.trans_cycles

    def matrix_cycles(self, costs: Costs) -> float:
        """Cycles of the SIMD's matrix core."""
        small = self.passes_16 + costs.passes_8bit * self.passes_16_8bit
        large = self.passes_32 + costs.passes_8bit * self.passes_32_8bit
        return (small * costs.passes_16 + large * costs.passes_32) * costs.pass_cycles

    def cycles(self, costs: Costs) -> float:
        """Cycles of a wave that does one thing after the other."""
        other = self.other * costs.issue_cycles + self.sleeps * costs.sleep_cycles
        return self.vector_cycles(costs) + self.matrix_cycles(costs) + other


def work_of(op: Op) -> Work:
    """What `op` costs, without what it waits for."""
    if op.name in FREE or op.name in MOVES:
        return Work()
    if op.name == "rocdl.s.sleep":
        return Work(other=1, sleeps=int(op.attrs.get("count", 1)))
    if op.name.startswith("rocdl.mfma."):
        return _matrix(op)
    if is_clock(op) or access.lookup(op.name) is not None or op.name in HANDLED_BY_ENGINE or op.successors:
        return Work(other=1)
    if op.name in EXPANDED:
        return Work(vector=EXPANDED[op.name] * _registers(op))
    if op.name == "llvm.getelementptr" and len(op.operands) == 1:
        return Work()
    called = str(op.attrs.get("intrin", "")) if op.name == "llvm.call_intrinsic" else op.name
    if called in FUNCTIONS or called.removesuffix(".f32") in FUNCTIONS:
        return Work(transcendental=_registers(op))
    return Work(vector=_registers(op))


def _matrix(op: Op) -> Work:
    found = MATRIX_NAME.match(op.name)
    assert found, op.name
    small = found[1] == "16"
    if ".scale." in op.name and any(matrix_format(op.attrs[of]) in EIGHT_BIT for of in ("cbsz", "blgp")):
        return Work(passes_16_8bit=1) if small else Work(passes_32_8bit=1)
    return Work(passes_16=1) if small else Work(passes_32=1)


def _registers(op: Op) -> int:
    """Registers of the result; of a comparison, those of what it compares."""
    kinds = op.result_types if op.result_types and _bits(op.result_types[0]) > 1 else op.operand_types
    return max((-(-_bits(kind) // REGISTER) for kind in kinds[:1]), default=1) or 1


def _bits(kind: Type) -> int:
    match kind.kind:
        case "int" | "float":
            return kind.bits
        case "ptr":
            return REGISTER * POINTERS.get(kind.space, 2)
        case "vector" | "array":
            assert kind.element
            return kind.count * _bits(kind.element)
        case "struct":
            return sum(map(_bits, kind.elements))
    return 0
