"""The hardware's approximate functions, as the models that twin and simulator share, and LLVM's functions on top.

`rsq`, `rcp` and `exp2` are `k3lab.hardware.approx`. Assumed here: `log` (base 2) and `sqrt` are correctly rounded, and
both take a subnormal for a zero of its sign.
"""

from __future__ import annotations

from decimal import Context, Decimal

import numpy as np

from k3lab.hardware import approx
from k3lab.lowering.ir import Op
from k3lab.sim.semantics.registry import Compute, Unsupported, pure
from k3lab.sim.semantics.values import Array, spelled

TAIL = (1 << 29) - 1  # the float64 significand bits that a float32 drops
MIDPOINT = 1 << 28
SLACK = 16  # float64 ulps: far more than a float64 log2 is off
DIGITS = Context(prec=50)
LOG_2 = DIGITS.ln(Decimal(2))

SMALLEST_NORMAL = np.float32(2.0**-126)
BELOW_ONE = np.float32(1.0 - 2.0**-24)


def sqrt(x: Array) -> Array:
    """The correctly rounded root of float32 x, subnormals flushed (assumed)."""
    return np.sqrt(_flushed(x))


def log2(x: Array) -> Array:
    """The correctly rounded base-2 logarithm of float32 x, subnormals flushed (assumed)."""
    x = _flushed(x)
    wide = np.log2(x, dtype=np.float64)
    result = wide.astype(np.float32)
    undecided = np.abs((wide.view(np.int64) & TAIL) - MIDPOINT) <= SLACK
    if undecided.any():
        result[undecided] = [_log2_of(value) for value in x[undecided].tolist()]
    return result


def fract(x: Array) -> Array:
    """x less its floor, always below 1; NaN for infinities."""
    return np.minimum(x - np.floor(x), BELOW_ONE)


def exp2_scaled(x: Array) -> Array:
    """2^x with subnormal results: below 2^-126 the argument is raised by 64 and the result scaled back."""
    small = x < -126.0
    if not small.any():
        return approx.exp2(x)
    raised = np.where(small, x + np.float32(64.0), x)
    return approx.exp2(raised) * np.where(small, np.float32(2.0**-64), np.float32(1.0))


def log2_scaled(x: Array) -> Array:
    """log2 of subnormals too: they are scaled up by 2^32 and 32 is taken off the result."""
    small = x < SMALLEST_NORMAL
    if not small.any():
        return log2(x)
    scaled = np.where(small, x * np.float32(2.0**32), x)
    return log2(scaled) - np.where(small, np.float32(32.0), np.float32(0.0))


FUNCTIONS: dict[str, Compute] = {
    "rocdl.exp2": approx.exp2,
    "llvm.amdgcn.exp2": approx.exp2,
    "rocdl.rsq": approx.rsq,
    "llvm.amdgcn.rsq": approx.rsq,
    "rocdl.rcp": approx.rcp,
    "llvm.amdgcn.rcp": approx.rcp,
    "rocdl.sqrt": sqrt,
    "llvm.amdgcn.sqrt": sqrt,
    "rocdl.log": log2,
    "llvm.amdgcn.log": log2,
    "llvm.amdgcn.fract": fract,
    "llvm.intr.exp2": exp2_scaled,
    "llvm.intr.log2": log2_scaled,
}


@pure(*FUNCTIONS)
def function(op: Op) -> Compute:
    """A function of float32."""
    if op.operand_types[0].scalar.name != "f32":
        raise Unsupported(f"of {spelled(op.operand_types[0])}")
    name = op.name if op.name != "llvm.call_intrinsic" else str(op.attrs["intrin"]).removesuffix(".f32")
    return FUNCTIONS[name]


def _flushed(x: Array) -> Array:
    """Subnormals turned into zeros of their sign."""
    return np.where(np.abs(x) < SMALLEST_NORMAL, np.copysign(np.float32(0.0), x), x)


def _log2_of(x: float) -> np.float32:
    """The float32 nearest to log2 x, by 50 digits; it is a power's exponent or irrational, so no tie can come."""
    exact = DIGITS.divide(DIGITS.ln(Decimal(x)), LOG_2)
    near = np.float32(exact)
    neighbours = (np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf)))
    return min(neighbours, key=lambda candidate: abs(Decimal(float(candidate)) - exact))
