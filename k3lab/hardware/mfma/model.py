"""What an MFMA accumulation model is, and the loop over cache-sized blocks of output columns they all share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3lab.errors import expect

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Steps = Sequence[F32]
StepChain = Callable[[Steps, Steps, F32], F32]
TileSums = Callable[[F32, F32, F32], tuple[F32, NDArray[np.bool_]]]

BLOCK_OUTPUTS = 1 << 15  # float64 accumulators of a block: 256 KiB each array, so a few of them stay in L2
MIN_BLOCK = 16  # columns: below this the call overhead outweighs the cache


@dataclass(frozen=True)
class MfmaModel:
    """One rule for how a matrix instruction adds its K products to the accumulator.

    `scaled_model` names the model that stands in for the scaled MFMA (fp4 operands, K = 128): this one, unless its
    source says nothing about that instruction. `tiles`, where a model has it, is a quick way to run one MFMA of many
    tiles, which may leave some of them undone: from a [W, ..., M, K], b [W, ..., N, K] and c [W, ..., M, N] (any W may
    be 1) to the results and which of the W tiles they hold for.
    """

    name: str
    description: str
    scaled_model: str
    run: StepChain
    tiles: TileSums | None = None

    def chain(self, a: F32 | Steps, b: F32 | Steps, c: F32 | None = None) -> F32:
        """Run n MFMAs in a row on one accumulator: acc[m, j] = MFMA(acc[m, j], a[i, m, :], b[i, j, :]).

        Args:
            a: [n, ..., M, K] float32 values, K in slot order (32, or 128 for the scaled MFMA).
            b: [n, ..., N, K] float32 values; any strides, never copied as a whole. Either operand may be a sequence
                of n arrays instead, for steps that no single stride reaches.
            c: [..., M, N] float32, the first accumulator; +0.0 when left out.

        Returns:
            [..., M, N] float32; the leading dimensions of a, b and c broadcast.

        Raises:
            BadInput: when a shape or a dtype does not fit.
        """
        a, b = list(a), list(b)
        _check(a, b, c)
        lead = np.broadcast_shapes(a[0].shape[:-2], b[0].shape[:-2], () if c is None else c.shape[:-2])
        shape = (*lead, a[0].shape[-2], b[0].shape[-2])
        start = np.broadcast_to(np.float32(0.0) if c is None else c, shape)
        out = np.empty(shape, np.float32)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for columns in column_blocks(shape):
                out[..., columns] = self.run(a, [step[..., columns, :] for step in b], start[..., columns])
        return out


def column_blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Slices of the last dimension, N, that keep about `BLOCK_OUTPUTS` outputs each."""
    rows = int(np.prod(shape[:-1]))
    if rows == 0:
        return iter(())
    width = max(MIN_BLOCK, BLOCK_OUTPUTS // rows)
    return (slice(first, min(first + width, shape[-1])) for first in range(0, shape[-1], width))


def slot_major(b: F32) -> F32:
    """[..., N, K] as a contiguous [..., K, N]: a slot's N values lie side by side."""
    return np.ascontiguousarray(b.swapaxes(-1, -2))


def _check(a: Steps, b: Steps, c: F32 | None) -> None:
    expect(len(a) == len(b) > 0, "MFMA steps of a and b", "the same number, at least one", (len(a), len(b)))
    for name, steps in (("a [n, ..., M, K]", a), ("b [n, ..., N, K]", b)):
        shapes = {step.shape for step in steps}
        expect(all(step.dtype == np.float32 for step in steps), f"MFMA operand {name}", "float32", steps[0].dtype)
        expect(len(shapes) == 1 and steps[0].ndim >= 2, f"MFMA operand {name}", "equal shapes of all steps", shapes)
    expect(a[0].shape[-1] == b[0].shape[-1] > 0, "MFMA slots K of a and b", a[0].shape[-1], b[0].shape[-1])
    if c is not None:
        tile = (a[0].shape[-2], b[0].shape[-2])
        expect(c.dtype == np.float32 and c.shape[-2:] == tile, "MFMA accumulator c", f"float32 {tile}", c.shape)
