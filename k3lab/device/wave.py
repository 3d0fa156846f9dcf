"""What the lanes of a wave do together: broadcasts, swaps, and sums in the stated order."""

from typing import Any

import flydsl._mlir.dialects.rocdl as raw
from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm
from flydsl.expr import rocdl

from k3lab.device.dsl import F32, Int32, Int64, T, Vector, located, raw_value

ROW_ROR_8, ROW_ROR_4 = 0x128, 0x124
QUAD_XOR_2, QUAD_XOR_1 = 0x4E, 0xB1
NEAR = (ROW_ROR_8, ROW_ROR_4, QUAD_XOR_2, QUAD_XOR_1)
"""DPP controls that give lane xor 8, 4, 2, 1: after the step for 8 a row has period 8, so turning it by 4 is xor 4."""


@located
def uniform(x: Any) -> Any:
    """An Int32 that all lanes share, in a scalar register."""
    return Int32(rocdl.readfirstlane(T.i32, x))


@located
def uniform64(x: Any) -> Any:
    """An Int64 that all lanes share, in scalar registers."""
    low, high = (uniform(half) for half in _halves(x))
    return Vector.from_elements([low, high], Int32).bitcast(Int64)[0]


@located
def lane_value(x: Any, lane: Any) -> Any:
    """The Int32 that lane number `lane` has, in a scalar register; all lanes share the number."""
    return Int32(rocdl.readlane(T.i32, x, Int32(lane)))


def _halves(x: Any) -> tuple[Any, Any]:
    words = Vector.from_elements([x], Int64).bitcast(Int32)
    return words[0], words[1]


@located
def ballot(condition: Any) -> Any:
    """A bit for each lane, Int64."""
    return Int64(rocdl.ballot(T.i64, condition))


@located
def dpp(x: Any, control: int) -> Any:
    """`x` of another lane of the row, by a DPP control."""
    value = raw_value(x)
    return type(x)(raw.update_dpp(value.type, value, value, control, 0xF, 0xF, True))


@located
def swap(distance: int, a: Any, b: Any) -> tuple[Any, Any]:
    """permlane swap at `distance` 16 or 32 of two Int32; for a == b: the low half's value and the high half's."""
    operation = {16: raw.permlane16_swap, 32: raw.permlane32_swap}[distance]
    pair = operation(ir.Type.parse("!llvm.struct<(i32, i32)>"), raw_value(a), raw_value(b), False, False)
    return Int32(llvm.extractvalue(T.i32, pair, [0])), Int32(llvm.extractvalue(T.i32, pair, [1]))


def _far(x: Any, distance: int, combine: Any) -> Any:
    bits = x.bitcast(Int32)
    low, high = swap(distance, bits, bits)
    return combine(low.bitcast(F32), high.bitcast(F32))


def _plus(a: Any, b: Any) -> Any:
    return a + b


@located
def bfly32(x: Any, combine: Any = _plus) -> Any:
    """v = v + v[lane xor offset] for 16, 8, 4, 2, 1: each half wave's fp32 sum, in all its lanes."""
    x = _far(x, 16, combine)
    for control in NEAR:
        x = combine(x, dpp(x, control))
    return x


@located
def bfly64(x: Any, combine: Any = _plus) -> Any:
    """v = v + v[lane xor offset] for 32, 16, 8, 4, 2, 1: the wave's fp32 sum, in all lanes."""
    return bfly32(_far(x, 32, combine), combine)
