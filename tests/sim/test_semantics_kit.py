"""What the tests of the operations' semantics share: operations by hand, and waves to run them on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from k3lab.hardware.mfma import MODELS, MfmaModel
from k3lab.lowering.ir import Op
from k3lab.lowering.types import parse_signature
from k3lab.sim import semantics

LANES = np.arange(64)
FUSED = MODELS["fused"]


def op(name: str, signature: str, **attrs: Any) -> Op:
    """An operation with the signature `(operand types) -> result types`."""
    operands, results = parse_signature(signature)
    if results and results[0].kind == "void":
        results = ()
    return Op(name, tuple(range(len(results))), tuple(range(len(operands))), results, operands, attrs)


FLOAT_PREDICATES = (
    "false",
    "oeq",
    "ogt",
    "oge",
    "olt",
    "ole",
    "one",
    "ord",
    "ueq",
    "ugt",
    "uge",
    "ult",
    "ule",
    "une",
    "uno",
    "true",
)
"""Float comparisons in the order MLIR numbers them."""


@dataclass
class Waves:
    """Some waves in a row, of a block of 4 waves."""

    n: int = 2
    mask: Any = None
    strict: bool = False
    mfma: MfmaModel = FUSED
    grid: tuple[int, int, int] = (7, 5, 3)
    block_dim: tuple[int, int, int] = (256, 1, 1)
    reports: list[tuple[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        wave = np.arange(self.n, dtype=np.int32)[:, None]
        self.wave_in_block = wave % 4
        self.block_xyz = (wave // 4, wave // 4 + 10, wave // 4 + 20)
        thread = self.wave_in_block * 64 + LANES.astype(np.int32)
        self.thread_xyz = (thread, thread * 0, thread * 0)

    def report(self, kind: str, message: str, lanes: Any) -> None:
        assert message
        self.reports.append((kind, lanes))


def run(name: str, signature: str, *values: Any, waves: Waves | None = None, **attrs: Any) -> Any:
    """The operation's result."""
    made = op(name, signature, **attrs)
    found = semantics.find(made)
    assert found is not None, name
    context = [waves or Waves()] if found.kind == "wave" else []
    with np.errstate(all="ignore"):
        return found.make(made)(*context, *values)


def row(values: Any, dtype: Any) -> Any:
    """Values as the lanes of one wave."""
    return np.array(values, dtype)[None, :]


def random_bits(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Any:
    """Every bit drawn: for floats this means NaNs, infinities and subnormals too."""
    dtype = np.dtype(dtype)
    return np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]


def same_bits(a: Any, b: Any) -> bool:
    """Equal in dtype, shape and every bit."""
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def same_values(a: Any, b: Any) -> bool:
    """Equal floats: signs of zeros count, NaNs are all alike."""
    a, b = np.asarray(a), np.asarray(b)
    nan = np.isnan(a)
    return a.dtype == b.dtype and bool((nan == np.isnan(b)).all()) and a[~nan].tobytes() == b[~nan].tobytes()
