"""What a wave operation may know of the waves it runs for."""

from __future__ import annotations

from typing import Protocol

from k3lab.hardware.mfma import MfmaModel
from k3lab.sim.semantics.values import Array

WAVE = 64
"""Lanes of a wave."""


class WaveContext(Protocol):
    """A cohort: n waves that run an operation together.

    Attributes:
        n: how many waves.
        mask: the active lanes, bool [n, 64]; None when all are.
        strict: whether to report what the hardware does silently though no kernel should rely on it.
        wave_in_block: each wave's place in its block, int32 [n, 1].
        block_xyz, thread_xyz: indices of the block, int32 [n, 1], and of the thread in it, int32 [n, 64].
        grid, block_dim: sizes in blocks and in threads.
        mfma: how a matrix instruction adds.
    """

    @property
    def n(self) -> int: ...

    @property
    def mask(self) -> Array | None: ...

    @property
    def strict(self) -> bool: ...

    @property
    def wave_in_block(self) -> Array: ...

    @property
    def block_xyz(self) -> tuple[Array, ...]: ...

    @property
    def thread_xyz(self) -> tuple[Array, ...]: ...

    @property
    def grid(self) -> tuple[int, int, int]: ...

    @property
    def block_dim(self) -> tuple[int, int, int]: ...

    @property
    def mfma(self) -> MfmaModel: ...

    def report(self, kind: str, message: str, lanes: Array | None) -> None:
        """Note a broken rule: `lanes` is a bool array that broadcasts to [n, 64], or None for all of them."""
