"""What the operations of a lowered kernel compute, on whole cohorts of waves at once.

    >>> semantics = find(op)
    >>> run = semantics.make(op)  # once, at decode time
    >>> run(*operands) if semantics.kind == "pure" else run(context, *operands)

`values` says how SSA values are held, `context` what an operation may know of its waves, `poison` for which operand
values LLVM leaves the result undefined and `spread` what that makes of later ones. Nothing here touches memory or
control flow. Callers silence NumPy's floating-point warnings (`np.errstate(all="ignore")`) once around a run: inactive
lanes hold garbage, and operations compute on it.
"""

from k3lab.sim.semantics import (  # noqa: F401  (each registers its operations)
    bits,
    casts,
    constants,
    conversions,
    crosslane,
    floats,
    hardware,
    integers,
    lanes,
    matrix,
    minmax,
    pointers,
    registers,
    vectors,
)
from k3lab.sim.semantics.context import WAVE, WaveContext
from k3lab.sim.semantics.poison import poison_check
from k3lab.sim.semantics.registry import (
    HANDLED_BY_ENGINE,
    NO_EFFECT,
    Semantics,
    Unsupported,
    find,
    handled_by_engine,
    lookup,
    supported_names,
    unsupported,
)

__all__ = [
    "HANDLED_BY_ENGINE",
    "NO_EFFECT",
    "WAVE",
    "Semantics",
    "Unsupported",
    "WaveContext",
    "find",
    "handled_by_engine",
    "lookup",
    "poison_check",
    "supported_names",
    "unsupported",
]
