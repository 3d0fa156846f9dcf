"""Operand values for which LLVM calls a result poison, so that a strict run can report them.

The semantics give such lanes what the hardware gives, or some number; a kernel that depends on it is broken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from k3lab.lowering.ir import Op
from k3lab.sim.semantics.casts import widener
from k3lab.sim.semantics.values import Array, dtype_of, unsigned

Check = Callable[..., Array]

NO_SIGNED_WRAP, NO_UNSIGNED_WRAP = 1, 2


def poison_check(op: Op) -> tuple[str, Check] | None:
    """What may be wrong with `op`'s operands, and a function of them that marks the lanes where it is.

    None for an operation whose operands are all defined.
    """
    make = CHECKS.get(op.name)
    return make(op) if make else None


def _shift(op: Op) -> tuple[str, Check]:
    width = 8 * dtype_of(op.operand_types[0].scalar).itemsize
    return f"shift by {width} bits or more", lambda value, amount: unsigned(amount) >= width


def _unsigned_division(op: Op) -> tuple[str, Check]:
    return "division by zero", lambda a, b: b == 0


def _signed_division(op: Op) -> tuple[str, Check]:
    smallest = np.iinfo(dtype_of(op.operand_types[0].scalar)).min
    return "division by zero, or of the smallest number by -1", lambda a, b: (b == 0) | ((a == smallest) & (b == -1))


def _element(op: Op) -> tuple[str, Check]:
    count = op.operand_types[0].count
    return f"vector index outside of 0 .. {count - 1}", lambda *operands: unsigned(operands[-1]) >= count


def _to_integer(op: Op) -> tuple[str, Check]:
    target = dtype_of(op.result_types[0].scalar)
    limits = np.iinfo(target if op.name == "llvm.fptosi" else unsigned(np.zeros(1, target)).dtype)
    below, above = float(limits.min), float(limits.max + 1)
    widen = widener(op.operand_types[0].scalar)

    def check(x: Array) -> Array:
        whole = np.trunc(widen(x))
        return ~((whole >= below) & (whole < above))

    return "float outside of the integer's range", check


def _zero_count(op: Op) -> tuple[str, Check] | None:
    if not op.attrs.get("is_zero_poison"):
        return None
    return "bit count of zero declared impossible", lambda a: a == 0


def _wrap(op: Op) -> tuple[str, Check] | None:
    """The `nsw` and `nuw` promises of sums and differences."""
    flags: Any = op.attrs.get("overflowFlags", 0)
    dtype = dtype_of(op.operand_types[0].scalar)
    if not isinstance(flags, int) or not flags or dtype == np.bool_:
        return None
    subtract = op.name == "llvm.sub"

    def check(a: Array, b: Array) -> Array:
        result = a - b if subtract else a + b
        wrapped = np.zeros((1,) * result.ndim, np.bool_)
        if flags & NO_SIGNED_WRAP:
            wrapped = wrapped | (((a ^ b if subtract else b ^ result) & (a ^ result)) < 0)
        if flags & NO_UNSIGNED_WRAP:
            wrapped = wrapped | (unsigned(a) < unsigned(b) if subtract else unsigned(result) < unsigned(a))
        return wrapped

    return "overflow declared impossible", check


CHECKS: dict[str, Callable[[Op], tuple[str, Check] | None]] = {
    "llvm.add": _wrap,
    "llvm.sub": _wrap,
    "llvm.shl": _shift,
    "llvm.lshr": _shift,
    "llvm.ashr": _shift,
    "llvm.sdiv": _signed_division,
    "llvm.srem": _signed_division,
    "llvm.udiv": _unsigned_division,
    "llvm.urem": _unsigned_division,
    "llvm.extractelement": _element,
    "llvm.insertelement": _element,
    "llvm.fptosi": _to_integer,
    "llvm.fptoui": _to_integer,
    "llvm.intr.ctlz": _zero_count,
    "llvm.intr.cttz": _zero_count,
}
