"""Float arithmetic and comparison: IEEE 754, nearest even, subnormals kept, whatever fastmath flags allow.

bf16 is decoded to float32, computed there and rounded once: float32 has more than twice bf16's digits and two, so the
two roundings of sums, products, quotients and roots give what one would. The same holds of float16, which NumPy
computes so.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from k3lab.formats import BF16, bf16_bits, bf16_values
from k3lab.hardware.mfma.exact import to_odd, two_sum
from k3lab.lowering.ir import Op, Type
from k3lab.sim.semantics.registry import Compute, Unsupported, pure
from k3lab.sim.semantics.values import Array, spelled

ARITHMETIC: dict[str, Callable[..., Array]] = {
    "llvm.fadd": np.add,
    "llvm.fsub": np.subtract,
    "llvm.fmul": np.multiply,
    "llvm.fdiv": np.divide,
    "llvm.frem": np.fmod,
    "llvm.intr.sqrt": np.sqrt,
    "llvm.intr.floor": np.floor,
    "llvm.intr.ceil": np.ceil,
    "llvm.intr.trunc": np.trunc,
    "llvm.intr.rint": np.rint,
    "llvm.intr.nearbyint": np.rint,
    "llvm.intr.roundeven": np.rint,
}

SIGN = np.uint16(0x8000)
MAGNITUDE = np.uint16(0x7FFF)

TAIL = (1 << 29) - 1  # the float64 significand bits that a float32 drops
MIDPOINT = 1 << 28
SMALLEST_NORMAL = 2.0**-126


def computed(scalar: Type, compute: Compute) -> Compute:
    """`compute`, a function of float arrays, for operands and result of the type `scalar`."""
    if scalar.kind != "float" or scalar.name not in ("f16", "bf16", "f32", "f64"):
        raise Unsupported(f"{spelled(scalar)} arithmetic")
    if scalar.name != "bf16":
        return compute
    return lambda *operands: bf16_bits(compute(*map(bf16_values, operands)))


@pure(*ARITHMETIC)
def arithmetic(op: Op) -> Compute:
    """The correctly rounded result."""
    return computed(op.operand_types[0].scalar, ARITHMETIC[op.name])


@pure("llvm.intr.round")
def round_away(op: Op) -> Compute:
    """To the nearest integer, halves away from zero."""
    return computed(op.operand_types[0].scalar, _round_away)


def _round_away(x: Array) -> Array:
    whole = np.trunc(x)
    return np.copysign(whole + np.copysign(np.abs(x - whole) >= 0.5, x).astype(x.dtype), x)


@pure("llvm.fneg")
def fneg(op: Op) -> Compute:
    """The sign flipped, of a NaN too."""
    return (lambda x: x ^ SIGN) if _is_bf16(op) else np.negative


@pure("llvm.intr.fabs")
def fabs(op: Op) -> Compute:
    """The sign cleared, of a NaN too."""
    return (lambda x: x & MAGNITUDE) if _is_bf16(op) else np.abs


@pure("llvm.intr.copysign")
def copysign(op: Op) -> Compute:
    """The first's magnitude with the second's sign."""
    return (lambda x, sign: (x & MAGNITUDE) | (sign & SIGN)) if _is_bf16(op) else np.copysign


@pure("llvm.intr.ldexp")
def ldexp(op: Op) -> Compute:
    """x 2^n, rounded once."""
    if op.operand_types[0].scalar.name not in ("f32", "f64"):
        raise Unsupported(f"{spelled(op.operand_types[0])}")
    return lambda x, power: np.ldexp(x, power.astype(np.int32))


# -- comparison --------------------------------------------------------------------------------------------------------


def _ordered(a: Array, b: Array) -> Array:
    return (a == a) & (b == b)


def _apart(a: Array, b: Array) -> Array:
    return (a < b) | (a > b)


def _never(a: Array, b: Array) -> Array:
    return np.zeros((1,) * a.ndim, np.bool_)


ORDERED: tuple[Callable[[Array, Array], Array], ...] = (
    _never,
    np.equal,
    np.greater,
    np.greater_equal,
    np.less,
    np.less_equal,
    _apart,
    _ordered,
)
"""The predicates that a NaN never meets, by `fcmp`'s number."""

OPPOSITES = (6, 5, 4, 3, 2, 1, 7, 0)
"""Of the other eight, from `ueq` on: the predicate that each is the opposite of."""


@pure("llvm.fcmp")
def fcmp(op: Op) -> Compute:
    """One of the 16 predicates."""
    predicate = op.attrs["predicate"]
    if predicate < len(ORDERED):
        compare: Compute = ORDERED[predicate]
    else:
        opposite = ORDERED[OPPOSITES[predicate - len(ORDERED)]]
        compare = lambda a, b: ~opposite(a, b)  # noqa: E731
    if _is_bf16(op):
        return lambda a, b: compare(bf16_values(a), bf16_values(b))
    return compare


# -- fused multiply-add ------------------------------------------------------------------------------------------------


@pure("llvm.intr.fma", "llvm.intr.fmuladd")
def fma(op: Op) -> Compute:
    """a b + c, rounded once."""
    match op.operand_types[0].scalar.name:
        case "f32":
            return fma_f32
        case "bf16":
            return lambda *abc: BF16.encode(_odd_fma(*(bf16_values(x).astype(np.float64) for x in abc)))
        case "f16":
            return lambda *abc: _odd_fma(*(x.astype(np.float64) for x in abc)).astype(np.float16)
    raise Unsupported(f"{spelled(op.operand_types[0])}")


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """a b + c of float32 arrays: the product is exact in float64, and only a sum on a midpoint can be rounded wrong."""
    product = a.astype(np.float64) * b
    total = product + c
    suspect = ((total.view(np.int64) & TAIL) == MIDPOINT) | (np.abs(total) < SMALLEST_NORMAL)
    if suspect.any():
        product, addend = (np.broadcast_to(x, total.shape)[suspect] for x in (product, c.astype(np.float64)))
        total[suspect] = to_odd(*two_sum(product, addend))
    return total.astype(np.float32)


def _odd_fma(a: Array, b: Array, c: Array) -> Array:
    return to_odd(*two_sum(a * b, c))


def _is_bf16(op: Op) -> bool:
    scalar = op.operand_types[0].scalar
    computed(scalar, np.positive)
    return scalar.name == "bf16"
