"""Minima and maxima of floats: those that prefer numbers (`minnum`, `maxnum`) and those that keep NaN.

-0 is below +0 in all of them, which LLVM asks of `minimum` and `maximum` and the hardware does everywhere.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from k3lab.lowering.ir import Op
from k3lab.sim.semantics.floats import computed
from k3lab.sim.semantics.registry import Compute, pure
from k3lab.sim.semantics.values import Array, raw

Binary = Callable[[Array, Array], Array]


def _picking(pick: Binary, combine_bits: Binary) -> Binary:
    """`pick`, and on equal numbers the bits combined: that only tells -0 from +0."""

    def run(a: Array, b: Array) -> Array:
        return np.where(a == b, combine_bits(raw(a), raw(b)).view(a.dtype), pick(a, b))

    return run


minnum = _picking(np.fmin, np.bitwise_or)
maxnum = _picking(np.fmax, np.bitwise_and)
minimum = _picking(np.minimum, np.bitwise_or)
maximum = _picking(np.maximum, np.bitwise_and)

EXTREMES = {
    "llvm.intr.minnum": minnum,
    "llvm.intr.maxnum": maxnum,
    "llvm.intr.minimum": minimum,
    "llvm.intr.maximum": maximum,
}


@pure(*EXTREMES)
def extreme(op: Op) -> Compute:
    """The smaller or the larger of two."""
    return computed(op.operand_types[0].scalar, EXTREMES[op.name])


@pure("rocdl.fmed3", "llvm.amdgcn.fmed3")
def fmed3(op: Op) -> Compute:
    """The middle one of three; with a NaN among them, the smallest number."""
    return computed(op.operand_types[0].scalar, _median)


def _median(a: Array, b: Array, c: Array) -> Array:
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    middle = maxnum(minnum(a, b), minnum(maxnum(a, b), c))
    return np.where(nan, minnum(minnum(a, b), c), middle)
