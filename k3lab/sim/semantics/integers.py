"""Integer arithmetic, comparison, selection and changes of width.

Integers wrap around. Shift amounts are masked to the width, as the hardware does; division by zero gives some number
(`poison` tells what LLVM leaves undefined).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from k3lab.lowering.ir import Op, Type
from k3lab.sim.semantics.registry import Compute, pure
from k3lab.sim.semantics.values import Array, align_axes, dtype_of, signed, unsigned

Binary = Callable[[Array, Array], Array]

WRAPPING: dict[str, tuple[Binary, Binary]] = {
    "llvm.add": (np.add, np.logical_xor),
    "llvm.sub": (np.subtract, np.logical_xor),
    "llvm.mul": (np.multiply, np.logical_and),
}
"""Operation: how integers do it, and how single bits do."""

BITWISE: dict[str, Binary] = {"llvm.and": np.bitwise_and, "llvm.or": np.bitwise_or, "llvm.xor": np.bitwise_xor}

PREDICATES: tuple[tuple[Binary, bool], ...] = (
    (np.equal, False),
    (np.not_equal, False),
    (np.less, True),
    (np.less_equal, True),
    (np.greater, True),
    (np.greater_equal, True),
    (np.less, False),
    (np.less_equal, False),
    (np.greater, False),
    (np.greater_equal, False),
)
"""By `icmp`'s number: the comparison, and whether it is a signed one."""


@pure(*WRAPPING)
def wrapping(op: Op) -> Compute:
    """Sums, differences and products modulo 2^width."""
    integers, bits = WRAPPING[op.name]
    return bits if _dtype(op) == np.bool_ else integers


@pure(*BITWISE)
def bitwise(op: Op) -> Compute:
    """Bit by bit."""
    _dtype(op)
    return BITWISE[op.name]


@pure("llvm.sdiv")
def sdiv(op: Op) -> Compute:
    """The quotient truncated toward zero."""
    _dtype(op)
    return _truncated_quotient


@pure("llvm.srem")
def srem(op: Op) -> Compute:
    """What the truncated quotient leaves, with the dividend's sign."""
    _dtype(op)
    return lambda a, b: a - _truncated_quotient(a, b) * b


@pure("llvm.udiv")
def udiv(op: Op) -> Compute:
    """The quotient of unsigned numbers."""
    _dtype(op)
    return lambda a, b: signed(unsigned(a) // _nonzero(unsigned(b)))


@pure("llvm.urem")
def urem(op: Op) -> Compute:
    """The rest of unsigned numbers."""
    _dtype(op)
    return lambda a, b: signed(unsigned(a) % _nonzero(unsigned(b)))


@pure("llvm.shl")
def shl(op: Op) -> Compute:
    """Left."""
    mask = _amount_mask(op)
    return lambda a, amount: np.left_shift(a, amount & mask)


@pure("llvm.ashr")
def ashr(op: Op) -> Compute:
    """Right, copies of the sign coming in."""
    mask = _amount_mask(op)
    return lambda a, amount: np.right_shift(a, amount & mask)


@pure("llvm.lshr")
def lshr(op: Op) -> Compute:
    """Right, zeros coming in."""
    mask = _amount_mask(op)
    return lambda a, amount: signed(np.right_shift(unsigned(a), unsigned(amount & mask)))


@pure("llvm.icmp")
def icmp(op: Op) -> Compute:
    """A comparison of integers or pointers; of single bits, a set one is -1 to signed predicates."""
    compare, is_signed = PREDICATES[op.attrs["predicate"]]
    if _dtype(op) == np.bool_:
        return (lambda a, b: compare(b, a)) if is_signed else compare
    if is_signed or compare in (np.equal, np.not_equal):
        return compare
    return lambda a, b: compare(unsigned(a), unsigned(b))


@pure("llvm.intr.scmp", "llvm.intr.ucmp")
def three_way(op: Op) -> Compute:
    """-1, 0 or 1 for less, equal or greater."""
    of = unsigned if op.name.endswith("ucmp") else _as_is
    result = dtype_of(op.result_types[0].scalar)
    return lambda a, b: (of(a) > of(b)).astype(result) - (of(a) < of(b)).astype(result)


@pure("llvm.intr.smin", "llvm.intr.smax", "llvm.intr.umin", "llvm.intr.umax")
def extreme(op: Op) -> Compute:
    """The smaller or the larger, as signed or unsigned numbers."""
    _dtype(op)
    pick: Binary = np.minimum if op.name.endswith("min") else np.maximum
    if "smin" in op.name or "smax" in op.name:
        return pick
    return lambda a, b: signed(pick(unsigned(a), unsigned(b)))


@pure("llvm.intr.abs")
def absolute(op: Op) -> Compute:
    """The magnitude; that of the smallest number is itself."""
    _dtype(op)
    return lambda a, *_: np.abs(a)


@pure("llvm.select")
def select(op: Op) -> Compute:
    """One value where the condition holds, the other elsewhere."""
    return _select


@pure("llvm.trunc")
def trunc(op: Op) -> Compute:
    """The low bits."""
    target = dtype_of(op.result_types[0].scalar)
    if target == np.bool_:
        return lambda a: (a & 1).astype(np.bool_)
    return lambda a: a.astype(target)


@pure("llvm.sext")
def sext(op: Op) -> Compute:
    """Wider, filled with the sign; a set single bit becomes -1."""
    target = dtype_of(op.result_types[0].scalar)
    if _dtype(op) == np.bool_:
        return lambda a: -a.astype(target)
    return lambda a: a.astype(target)


@pure("llvm.zext")
def zext(op: Op) -> Compute:
    """Wider, filled with zeros."""
    _dtype(op)
    target = dtype_of(op.result_types[0].scalar)
    return lambda a: unsigned(a).astype(target)


def _dtype(op: Op) -> np.dtype[Any]:
    return dtype_of(_scalar(op))


def _scalar(op: Op) -> Type:
    return op.operand_types[0].scalar


def _amount_mask(op: Op) -> Any:
    dtype = _dtype(op)
    return dtype.type(8 * dtype.itemsize - 1)


def _as_is(value: Array) -> Array:
    return value


def _nonzero(divisor: Array) -> Array:
    """The divisor with 1 for 0, so that lanes without a meaning do not stop the others."""
    return np.where(divisor == 0, divisor.dtype.type(1), divisor)


def _truncated_quotient(a: Array, b: Array) -> Array:
    b = _nonzero(b)
    quotient = a // b
    rounded_down = (quotient * b != a) & ((a < 0) != (b < 0))
    quotient += rounded_down
    return quotient


def _select(condition: Array, yes: Any, no: Any) -> Any:
    if condition.size == 1:
        return yes if condition.item() else no
    if isinstance(yes, tuple):
        return tuple(_select(condition, *pair) for pair in zip(yes, no, strict=True))
    return np.where(align_axes(condition, yes.ndim), yes, no)
