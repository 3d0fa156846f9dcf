"""Values to bytes and back: how each type lies in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3lab.lowering.ir import Type
from k3lab.sim.semantics.values import held_as

Bytes = NDArray[np.uint8]
SHORT_POINTER = 4  # bytes of an LDS pointer, which is held in 8


def to_bytes(value: NDArray[Any], kind: Type) -> Bytes:
    """A value `[W, L]` or `[W, L, k]` as it lies in memory, `[W, L, bytes]`."""
    if _is_short(kind):
        value = value.astype(np.int32)
    if held_as(kind)[1] is None:
        value = value[..., None]
    return np.ascontiguousarray(value).view(np.uint8)


def from_bytes(data: Bytes, kind: Type) -> NDArray[Any]:
    """The inverse of `to_bytes`."""
    dtype, elements = held_as(kind)
    data = np.ascontiguousarray(data)
    value: NDArray[Any] = data.view(np.int32).astype(np.int64) if _is_short(kind) else data.view(dtype)
    return value[..., 0] if elements is None else value


def _is_short(kind: Type) -> bool:
    return kind.scalar.kind == "ptr" and kind.scalar.nbytes == SHORT_POINTER
