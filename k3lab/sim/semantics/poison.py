"""Operand values for which LLVM calls a result poison, and what can be told of them when a kernel is decoded.

The semantics give such lanes what the hardware gives, or some number; a kernel that depends on it is broken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from k3lab.lowering.ir import Op
from k3lab.sim.semantics.bits import OVERFLOWING
from k3lab.sim.semantics.casts import widener
from k3lab.sim.semantics.values import Array, dtype_of, unsigned

Check = Callable[..., Array]
Found = tuple[str, Check]

NO_SIGNED_WRAP, NO_UNSIGNED_WRAP = 1, 2


def poison_check(op: Op) -> Found | None:
    """What may be wrong with `op`'s operands, and a function of them that marks the lanes where it is.

    None for an operation whose operands are all defined.
    """
    make = CHECKS.get(op.name)
    return make(op) if make else None


def never_poison(op: Op, constants: Mapping[int, Any], defining: Mapping[int, Op]) -> bool:
    """Whether the constants among `op`'s operands rule out what `poison_check` looks for.

    Args:
        constants: values known when the kernel is decoded, by SSA number.
        defining: the operation that gives a value.
    """
    if op.name in SHIFTS and not _flags(op) and not op.attrs.get("isExact"):
        width = 8 * dtype_of(op.operand_types[0].scalar).itemsize
        return _below(op.operands[1], width, constants, defining)
    if op.name in DIVISIONS and not op.attrs.get("isExact"):
        divisor = constants.get(op.operands[1])
        return divisor is not None and not ((divisor == 0) | (divisor == -1)).any()
    if op.name in ELEMENTS:
        count = op.operand_types[0].count
        return _below(op.operands[-1], count, constants, defining)
    return False


def _below(value: int, limit: int, constants: Mapping[int, Any], defining: Mapping[int, Op]) -> bool:
    """Whether an unsigned value is below `limit`: a constant, or masked by one."""
    while value not in constants:
        op = defining.get(value)
        if op is None:
            return False
        if op.name in ("llvm.and", "llvm.urem"):
            known = [constants[x] for x in op.operands if x in constants and (op.name == "llvm.and" or x != value)]
            bound = limit if op.name == "llvm.and" else limit + 1
            return any(bool(((x >= 0) & (x < bound)).all()) for x in known)
        if op.name not in ("llvm.zext", "llvm.trunc", "llvm.sext"):
            return False
        value = op.operands[0]
    return bool((unsigned(constants[value]) < limit).all())


SHIFTS = ("llvm.shl", "llvm.lshr", "llvm.ashr")
DIVISIONS = ("llvm.sdiv", "llvm.srem", "llvm.udiv", "llvm.urem")
ELEMENTS = ("llvm.extractelement", "llvm.insertelement")


def _flags(op: Op) -> int:
    flags: Any = op.attrs.get("overflowFlags", 0)
    return flags if isinstance(flags, int) else 0


def _either(*checks: Found | None) -> Found | None:
    """Several checks as one."""
    some = [check for check in checks if check is not None]
    if len(some) < 2:
        return some[0] if some else None
    message = ", or ".join(message for message, _ in some)

    def check(*operands: Array) -> Array:
        result = some[0][1](*operands)
        for _, another in some[1:]:
            result = result | another(*operands)
        return result

    return message, check


def _shift(op: Op) -> Found | None:
    width = 8 * dtype_of(op.operand_types[0].scalar).itemsize
    wide: Found = (f"shift by {width} bits or more", lambda value, amount: unsigned(amount) >= width)
    return _either(wide, _lost_left(op) if op.name == "llvm.shl" else _lost_right(op))


def _lost_left(op: Op) -> Found | None:
    """The `nsw` and `nuw` promises of a left shift: shifting back gives the value."""
    flags = _flags(op)
    if not flags:
        return None

    def check(value: Array, amount: Array) -> Array:
        moved = value << amount
        lost = np.zeros((1,) * moved.ndim, np.bool_)
        if flags & NO_SIGNED_WRAP:
            lost = lost | (moved >> amount != value)
        if flags & NO_UNSIGNED_WRAP:
            lost = lost | (unsigned(moved) >> unsigned(amount) != unsigned(value))
        return lost

    return "overflow declared impossible", check


def _lost_right(op: Op) -> Found | None:
    if not op.attrs.get("isExact"):
        return None
    return "shift declared exact that loses bits", lambda value, amount: value >> amount << amount != value


def _unsigned_division(op: Op) -> Found | None:
    zero: Found = ("division by zero", lambda a, b: b == 0)
    return _either(zero, _inexact(op, unsigned))


def _signed_division(op: Op) -> Found | None:
    smallest = np.iinfo(dtype_of(op.operand_types[0].scalar)).min
    wrong: Found = (
        "division by zero, or of the smallest number by -1",
        lambda a, b: (b == 0) | ((a == smallest) & (b == -1)),
    )
    return _either(wrong, _inexact(op, lambda value: value))


def _inexact(op: Op, read: Callable[[Array], Array]) -> Found | None:
    if not op.attrs.get("isExact"):
        return None
    return "division declared exact that leaves a rest", lambda a, b: read(a) % read(np.where(b == 0, 1, b)) != 0


def _element(op: Op) -> Found:
    count = op.operand_types[0].count
    return f"vector index outside of 0 .. {count - 1}", lambda *operands: unsigned(operands[-1]) >= count


def _to_integer(op: Op) -> Found:
    target = dtype_of(op.result_types[0].scalar)
    limits = np.iinfo(target if op.name == "llvm.fptosi" else unsigned(np.zeros(1, target)).dtype)
    below, above = float(limits.min), float(limits.max + 1)
    widen = widener(op.operand_types[0].scalar)

    def check(x: Array) -> Array:
        whole = np.trunc(widen(x))
        return ~((whole >= below) & (whole < above))

    return "float outside of the integer's range", check


def _zero_count(op: Op) -> Found | None:
    if not op.attrs.get("is_zero_poison"):
        return None
    return "bit count of zero declared impossible", lambda a: a == 0


def _smallest(op: Op) -> Found | None:
    if not op.attrs.get("is_int_min_poison"):
        return None
    smallest = np.iinfo(dtype_of(op.operand_types[0].scalar)).min
    return "magnitude of the smallest number declared impossible", lambda a: a == smallest


def _wrap(op: Op) -> Found | None:
    """The `nsw` and `nuw` promises of sums, differences and products."""
    flags = _flags(op)
    if not flags or dtype_of(op.operand_types[0].scalar) == np.bool_:
        return None
    name = op.name.removeprefix("llvm.")
    kinds = [sign for sign, flag in (("s", NO_SIGNED_WRAP), ("u", NO_UNSIGNED_WRAP)) if flags & flag]

    def check(a: Array, b: Array) -> Array:
        wrapped = [OVERFLOWING[sign + name](a, b)[1] for sign in kinds]
        return wrapped[0] if len(wrapped) == 1 else wrapped[0] | wrapped[1]

    return "overflow declared impossible", check


def _cut(op: Op) -> Found | None:
    """The `nsw` and `nuw` promises of a truncation: widening gives the value back."""
    flags, target = _flags(op), dtype_of(op.result_types[0].scalar)
    if not flags or target == np.bool_:
        return None

    def check(a: Array) -> Array:
        cut = a.astype(target)
        lost = np.zeros((1,) * a.ndim, np.bool_)
        if flags & NO_SIGNED_WRAP:
            lost = lost | (cut != a)
        if flags & NO_UNSIGNED_WRAP:
            lost = lost | (unsigned(cut) != unsigned(a))
        return lost

    return "truncation declared to lose nothing", check


def _negative(op: Op) -> Found | None:
    return ("negative number declared impossible", lambda a: a < 0) if op.attrs.get("nonNeg") else None


def _joint(op: Op) -> Found | None:
    return ("common bits declared impossible", lambda a, b: a & b != 0) if op.attrs.get("isDisjoint") else None


CHECKS: dict[str, Callable[[Op], Found | None]] = {
    "llvm.add": _wrap,
    "llvm.sub": _wrap,
    "llvm.mul": _wrap,
    "llvm.or": _joint,
    "llvm.trunc": _cut,
    "llvm.zext": _negative,
    "llvm.uitofp": _negative,
    **dict.fromkeys(SHIFTS, _shift),
    "llvm.sdiv": _signed_division,
    "llvm.srem": _signed_division,
    "llvm.udiv": _unsigned_division,
    "llvm.urem": _unsigned_division,
    **dict.fromkeys(ELEMENTS, _element),
    "llvm.fptosi": _to_integer,
    "llvm.fptoui": _to_integer,
    "llvm.intr.abs": _smallest,
    "llvm.intr.ctlz": _zero_count,
    "llvm.intr.cttz": _zero_count,
}
