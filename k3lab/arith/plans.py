"""How a kernel deals the K columns of a matrix product to waves and MFMAs.

A plan cuts rows `x: [..., S, K]` into the operands of successive MFMAs, `[..., waves, S, 32]` each: operand i + 1
accumulates on the result of operand i, and the last axis is the instruction's K slots. It then joins the waves' sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F

from k3lab.arith.orders import FROM_ZERO
from k3lab.geometry import KCH, WAVES

MFMA_K = 32
QUADS = KCH // MFMA_K  # MFMAs a chunk


class Plan(Protocol):
    """Deals K columns to MFMAs and joins what the waves have summed; `scaled` is the MFMA with E8M0 block scales."""

    scaled: ClassVar[bool]

    def activations(self, x: torch.Tensor) -> list[torch.Tensor]:
        """`x: [..., S, K]` -> one `[..., waves, S, 32]` for each MFMA of a wave's chain."""

    def weights(self, w: torch.Tensor) -> list[torch.Tensor]:
        """`w: [..., N, K]` -> one `[..., waves, N, 32]` for each MFMA of a wave's chain."""

    def join(self, sums: torch.Tensor) -> torch.Tensor:
        """The waves' sums `[..., waves, S, N]` -> `[..., S, N]`."""

    def describe(self) -> str:
        """In words, as reports and notebooks print it."""


@dataclass(frozen=True)
class WaveChunks:
    """A GEMV task: wave w takes the 128-column chunks w, w + 8, ...; the waves' sums are added in order from 0.0.

    A wave whose last round has no chunk left multiplies the last chunk's weights by zero activations, so an infinity
    there still poisons the sum, as it does in the kernel.
    """

    waves: int = WAVES
    scaled: ClassVar[bool] = False

    def activations(self, x: torch.Tensor) -> list[torch.Tensor]:
        return self._deal(F.pad(x, (0, self._missing(x) * KCH)))

    def weights(self, w: torch.Tensor) -> list[torch.Tensor]:
        clamped = [w[..., -KCH:]] * self._missing(w)
        return self._deal(torch.cat([w, *clamped], dim=-1) if clamped else w)

    def join(self, sums: torch.Tensor) -> torch.Tensor:
        return FROM_ZERO.fold(sums.movedim(-3, -1))

    def describe(self) -> str:
        return f"{self.waves} waves take 128-column chunks in turn, 4 MFMAs a chunk; waves added in order from 0.0"

    def _missing(self, x: torch.Tensor) -> int:
        return -(x.shape[-1] // KCH) % self.waves

    def _deal(self, x: torch.Tensor) -> list[torch.Tensor]:
        dealt = x.unflatten(-1, (-1, self.waves, QUADS, MFMA_K)).movedim((-4, -2), (0, 1)).transpose(-3, -2)
        return [step for chunk_round in dealt for step in chunk_round]


@dataclass(frozen=True)
class OneWave:
    """K = 128 in one wave: slot 8 g + e of MFMA q is column 32 g + 8 q + e, so a lane's 32 columns lie together."""

    scaled: ClassVar[bool] = False

    def activations(self, x: torch.Tensor) -> list[torch.Tensor]:
        return self._deal(x)

    def weights(self, w: torch.Tensor) -> list[torch.Tensor]:
        return self._deal(w)

    def join(self, sums: torch.Tensor) -> torch.Tensor:
        return sums.squeeze(-3)

    def describe(self) -> str:
        return "one wave, 4 MFMAs; MFMA q takes columns 32 g + 8 q .. + 7 of each lane group g"

    def _deal(self, x: torch.Tensor) -> list[torch.Tensor]:
        dealt = x.unflatten(-1, (QUADS, QUADS, MFMA_K // QUADS)).movedim(-2, 0)
        return [step.flatten(-2).unsqueeze(-3) for step in dealt]


@dataclass(frozen=True)
class OneScaled:
    """K = 128 in one scaled MFMA: slot 32 g + e is column 32 g + e, block g of 32 columns sharing a scale."""

    scaled: ClassVar[bool] = True

    def activations(self, x: torch.Tensor) -> list[torch.Tensor]:
        return [x]

    def weights(self, w: torch.Tensor) -> list[torch.Tensor]:
        return [w]

    def join(self, sums: torch.Tensor) -> torch.Tensor:
        return sums

    def describe(self) -> str:
        return "one scaled MFMA of K 128"


GEMV = WaveChunks()
G1 = OneWave()
SCALED = OneScaled()
