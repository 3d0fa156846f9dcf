"""Counting, reversing and funnelling bits; sums and products that tell of overflow or saturate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from k3lab.lowering.ir import Op
from k3lab.sim.semantics.registry import Compute, Unsupported, pure
from k3lab.sim.semantics.values import Array, dtype_of, signed, unsigned

Overflowing = Callable[[Array, Array], tuple[Array, Array]]

REVERSED_BYTES = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1), axis=1, bitorder="little")


@pure("llvm.intr.ctpop")
def ctpop(op: Op) -> Compute:
    """How many bits are set."""
    dtype = _integer(op)
    return lambda a: np.bitwise_count(unsigned(a)).astype(dtype)


@pure("llvm.intr.cttz")
def cttz(op: Op) -> Compute:
    """How many zeros stand below the lowest set bit; the width for 0."""
    dtype = _integer(op)
    return lambda a: np.bitwise_count(unsigned((a & -a) - dtype.type(1))).astype(dtype)


@pure("llvm.intr.ctlz")
def ctlz(op: Op) -> Compute:
    """How many zeros stand above the highest set bit; the width for 0."""
    dtype = _integer(op)
    width = 8 * dtype.itemsize

    def run(a: Array, *_: Any) -> Array:
        smeared = unsigned(a)
        for step in (1, 2, 4, 8, 16, 32):
            if step < width:
                smeared = smeared | (smeared >> smeared.dtype.type(step))
        return np.bitwise_count(~smeared).astype(dtype)

    return run


@pure("llvm.intr.bswap")
def bswap(op: Op) -> Compute:
    """The bytes in the opposite order."""
    _integer(op)
    return lambda a: a.byteswap()


@pure("llvm.intr.bitreverse")
def bitreverse(op: Op) -> Compute:
    """The bits in the opposite order."""
    dtype = _integer(op)
    return lambda a: _reversed_bytes(np.ascontiguousarray(a.byteswap()).view(np.uint8)).view(dtype)


def _reversed_bytes(octets: Array) -> Array:
    return REVERSED_BYTES[:, 0][octets]


@pure("llvm.intr.fshl", "llvm.intr.fshr")
def funnel(op: Op) -> Compute:
    """Two words side by side, shifted left (or right); the high (or low) word of that. Amounts are taken modulo."""
    dtype = _integer(op)
    top = unsigned(np.zeros(1, dtype)).dtype.type(8 * dtype.itemsize - 1)
    one = top.dtype.type(1)

    def left(high: Array, low: Array, amount: Array) -> Array:
        step = unsigned(amount) & top
        return signed((unsigned(high) << step) | (unsigned(low) >> one >> (top - step)))

    def right(high: Array, low: Array, amount: Array) -> Array:
        step = unsigned(amount) & top
        return signed((unsigned(high) << one << (top - step)) | (unsigned(low) >> step))

    return left if op.name.endswith("fshl") else right


def _sadd(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    return total, ((a ^ total) & (b ^ total)) < 0


def _ssub(a: Array, b: Array) -> tuple[Array, Array]:
    rest = a - b
    return rest, ((a ^ b) & (a ^ rest)) < 0


def _smul(a: Array, b: Array) -> tuple[Array, Array]:
    product = a * b
    smallest = np.iinfo(product.dtype).min
    divisor = np.where(a == 0, a.dtype.type(1), a)
    flipped = (a == -1) & (b == smallest)
    return product, (a != 0) & (flipped | (product // divisor != b))


def _uadd(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    return total, unsigned(total) < unsigned(a)


def _usub(a: Array, b: Array) -> tuple[Array, Array]:
    return a - b, unsigned(a) < unsigned(b)


def _umul(a: Array, b: Array) -> tuple[Array, Array]:
    product = a * b
    divisor = unsigned(np.where(a == 0, a.dtype.type(1), a))
    return product, (a != 0) & (unsigned(product) // divisor != unsigned(b))


OVERFLOWING: dict[str, Overflowing] = {
    "sadd": _sadd,
    "ssub": _ssub,
    "smul": _smul,
    "uadd": _uadd,
    "usub": _usub,
    "umul": _umul,
}


@pure(*(f"llvm.intr.{name}.with.overflow" for name in OVERFLOWING))
def with_overflow(op: Op) -> Compute:
    """The wrapped result, and whether it wrapped."""
    _integer(op)
    return OVERFLOWING[op.name.split(".")[2]]


@pure("llvm.intr.sadd.sat", "llvm.intr.ssub.sat")
def signed_saturating(op: Op) -> Compute:
    """The result, or the nearest end of the range."""
    limits = np.iinfo(_integer(op))
    combine = OVERFLOWING[op.name.split(".")[2]]
    low, high = limits.dtype.type(limits.min), limits.dtype.type(limits.max)

    def run(a: Array, b: Array) -> Array:
        result, wrapped = combine(a, b)
        return np.where(wrapped, np.where(a < 0, low, high), result)

    return run


@pure("llvm.intr.uadd.sat", "llvm.intr.usub.sat")
def unsigned_saturating(op: Op) -> Compute:
    """The result, or the nearest end of the unsigned range."""
    name = op.name.split(".")[2]
    limit = _integer(op).type(-1 if name == "uadd" else 0)

    def run(a: Array, b: Array) -> Array:
        result, wrapped = OVERFLOWING[name](a, b)
        return np.where(wrapped, limit, result)

    return run


def _integer(op: Op) -> np.dtype[Any]:
    dtype = dtype_of(op.operand_types[0].scalar)
    if dtype == np.bool_:
        raise Unsupported("i1")
    return dtype
