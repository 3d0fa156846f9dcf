"""Named distributions a case's values are drawn from.

A distribution has one method for each kind of tensor a launch declares: `residual`, `activation`, `weight`,
`norm_weight`, and `parameter` for what a launch's own fills want in a range. All return float32; rounding to the
storage format comes after. Scales are a model's: residual rows and projections are about 1, norm weights around 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3lab.cases.stream import F32, Shape, Stream

NORM_SPREAD = np.float32(0.1)  # deviation of norm weights around 1


@dataclass(frozen=True)
class Wanted:
    """One tensor to draw, and what it must know of its case.

    Attributes:
        key: the launch's key.
        slots: number of slots of its states or caches.
        null: whether some slots are null: `mixed` or `none`.
        rank: whose tensor it is; rank 0's is also the one all ranks share, or the only one.
        scale_rule: MXFP4 scale rule of weights that are quantised (`k3lab.formats.mx`).
    """

    name: str
    shape: Shape
    key: Any
    seed: int
    slots: int = 1
    null: str = "none"
    rank: int = 0
    scale_rule: str = "even"

    @cached_property
    def stream(self) -> Stream:
        """This tensor's own random numbers."""
        return Stream(self.seed, f"{self.name} of rank {self.rank}" if self.rank else self.name)

    def sibling(self, name: str, shape: Shape) -> Wanted:
        """Another tensor of the same case and rank, to be drawn as it is drawn there."""
        return replace(self, name=name, shape=shape)

    def shared(self, what: str) -> Stream:
        """Random numbers that several tensors must agree on, from their beginning."""
        return Stream(self.seed, f"shared {what}")

    @property
    def width(self) -> int:
        """Size of the last dimension."""
        return self.shape[-1]

    @property
    def unit(self) -> np.float32:
        """1 / sqrt(width): a weight of this deviation maps rows of deviation 1 to values of deviation 1."""
        return np.float32(1 / sqrt(self.width))

    @property
    def row_numbers(self) -> NDArray[np.int64]:
        """Row number of every row, shaped to broadcast: the sum of its indices, so that neighbours differ."""
        return np.indices(self.shape[:-1]).sum(0)[..., None]


class Normal:
    """Model-like values without outliers; base of the other distributions."""

    name = "normal"
    about = "normal values at a model's scales"
    allow_nonfinite = False
    hunts_ties = False

    def residual(self, w: Wanted) -> F32:
        """Rows of the residual stream: prefix, delta, earlier blocks."""
        return w.stream.normal(w.shape)

    def activation(self, w: Wanted, scale: float = 1.0) -> F32:
        """Values and states kept between steps, of deviation `scale`."""
        return w.stream.normal(w.shape) * np.float32(scale)

    def weight(self, w: Wanted) -> F32:
        """A matrix whose last dimension is summed over, or a vector that is dotted with a row."""
        return w.stream.normal(w.shape) * w.unit

    def norm_weight(self, w: Wanted) -> F32:
        """Weights of an RMS norm."""
        return 1 + w.stream.normal(w.shape) * NORM_SPREAD

    def parameter(self, w: Wanted, low: float, high: float) -> F32:
        """A parameter that makes sense from `low` to `high`."""
        return w.stream.uniform(w.shape, low, high)


class Outliers(Normal):
    """A few channels are large in every residual row, the same ones in prefix, delta and blocks."""

    name = "outliers"
    about = "normal, but a few channels of the residual stream are 20 to 100 times larger, as in real models"

    def residual(self, w: Wanted) -> F32:
        channels = w.shared(f"outlier channels of {w.width}")
        chosen = channels.choose(max(2, w.width // 512), w.width)
        x = super().residual(w)
        x[..., chosen] *= channels.uniform(chosen.shape, 20, 100)
        return x


class Tiny(Normal):
    """Row by row: squares next to eps, squares far below it, squares that vanish, bf16 subnormals."""

    name = "tiny"
    about = "rows so small that the norms' eps decides, squares vanish, or values are bf16 subnormals; by row in turn"
    scales = np.array([2.0**-9, 2.0**-40, 2.0**-80, 2.0**-130], np.float32)

    def residual(self, w: Wanted) -> F32:
        return super().residual(w) * self._by_row(w)

    def activation(self, w: Wanted, scale: float = 1.0) -> F32:
        return super().activation(w, scale) * self._by_row(w)

    def _by_row(self, w: Wanted) -> F32:
        return self.scales[w.row_numbers % len(self.scales)]


class Huge(Normal):
    """The largest power of two whose sums of squares over a row still fit fp32, prefix plus delta included."""

    name = "huge"
    about = "residual rows and states so large that a row's sum of squares reaches about 1/5 of the fp32 maximum"

    def residual(self, w: Wanted) -> F32:
        return super().residual(w) * self._scale(w)

    def activation(self, w: Wanted, scale: float = 1.0) -> F32:
        # A state row is summed over 128 columns, and the outputs' squares once more over a head.
        return super().activation(w, scale) * np.float32(2.0**54)

    def _scale(self, w: Wanted) -> np.float32:
        # scale^2 width is at most 2^125; prefix plus delta doubles it. The maximum is 2^128.
        return np.float32(2.0 ** ((125 - (w.width - 1).bit_length()) // 2))


class Ties(Normal):
    """prefix + delta lies midway between two bf16 values, in every element; and in_nw and its like are hunted."""

    name = "ties"
    about = "prefix + delta is a bf16 rounding tie everywhere; norm weights put the mix between two bf16 values"
    hunts_ties = True

    def residual(self, w: Wanted) -> F32:
        """+-(1 + m / 128), or for the delta an odd multiple of 1 / 256: their sum stays in [1, 2), halfway.

        Every column has a power of two of its own on top, the same in all tensors.
        """
        scale = np.float32(2.0) ** (w.shared(f"tie exponents of {w.width}").below(5, (w.width,)) - 2).astype(np.float32)
        signs = w.stream.signs(w.shape)
        if w.name == "delta":
            return signs * (1 + 2 * w.stream.below(8, w.shape)).astype(np.float32) / 256 * scale
        return signs * (128 + 8 + w.stream.below(112, w.shape)).astype(np.float32) / 128 * scale


class Constant(Normal):
    """Every tensor holds one value, a power of two (but for the rows a launch needs at zero): sums by hand."""

    name = "constant"
    about = "one value a tensor: residual 1, states 1/2, norm weights 1, weights the power of two at or below 1 / width"

    def residual(self, w: Wanted) -> F32:
        return _full(w, 1)

    def activation(self, w: Wanted, scale: float = 1.0) -> F32:
        return _full(w, 0.5 * scale)

    def weight(self, w: Wanted) -> F32:
        return _full(w, 2.0 ** -(w.width - 1).bit_length())

    def norm_weight(self, w: Wanted) -> F32:
        return _full(w, 1)

    def parameter(self, w: Wanted, low: float, high: float) -> F32:
        return _full(w, (low + high) / 2)


class Adversarial(Normal):
    """Large columns cancel in pairs, so that what a sum leaves depends on its order.

    Partners lie 64 columns apart (two lanes of a wave) or 128 (two waves, two slices). Residual rows hold +M and -M
    there; weights are equal there, so every dot product cancels too.
    """

    name = "adversarial"
    about = "cancelling sums: a quarter of the columns hold +M, -M pairs across lanes or waves, the rest is 2^-16 M"
    large, small = np.float32(2.0**8), np.float32(2.0**-8)

    def residual(self, w: Wanted) -> F32:
        return self._cancelling(w, super().residual(w))

    def activation(self, w: Wanted, scale: float = 1.0) -> F32:
        x = super().activation(w, scale)
        return self._cancelling(w, x) if w.width >= 128 else x

    def weight(self, w: Wanted) -> F32:
        return self._paired(w, super().weight(w))

    def norm_weight(self, w: Wanted) -> F32:
        return self._paired(w, super().norm_weight(w))

    def _cancelling(self, w: Wanted, x: F32) -> F32:
        plus, minus = _partners(w)
        pairs = x[..., plus] * self.large
        x *= self.small
        x[..., plus], x[..., minus] = pairs, -pairs
        return x

    def _paired(self, w: Wanted, x: F32) -> F32:
        plus, minus = _partners(w)
        x[..., minus] = x[..., plus]
        return x


def _partners(w: Wanted) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Columns that hold +M and their partners that hold -M, the same for every tensor of this width."""
    chunks = w.width // 128
    spread = w.shared(f"partners in {w.width}")
    first = spread.choose(16, 64)
    lanes = (128 * np.arange(chunks)[:, None] + first[:8]).ravel()
    waves = (128 * np.arange(0, chunks - 1, 2)[:, None] + first[8:]).ravel()
    return np.concatenate([lanes, waves]), np.concatenate([lanes + 64, waves + 128])


def _full(w: Wanted, value: float) -> F32:
    return np.full(w.shape, value, np.float32)
