"""Reproducible random numbers: the same bits on every machine and with every NumPy.

NumPy promises the words of a bit generator for good, but not what its distributions make of them, and those call the C
library. So values are made here from PCG64's words, by integer arithmetic and one or two float32 roundings.
"""

from __future__ import annotations

from math import prod, sqrt
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from k3lab.errors import expect

F32 = NDArray[np.float32]
Shape = tuple[int, ...]

CHUNK = 1 << 16  # values made at a time, so that a weight of 45 million passes through the cache once
HALVES = np.uint64(0x0000FFFF0000FFFF)
MEAN = 2 * 0xFFFF  # of the sum of four 16-bit numbers
DEVIATION = sqrt((2**32 - 1) / 3)


class Stream:
    """The random numbers called `name` under `seed`; independent of every other name's.

    Raises:
        BadInput: for a seed that is no whole number >= 0.
    """

    def __init__(self, seed: int, name: str) -> None:
        whole = isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0
        expect(whole, "seed", "a whole number >= 0", repr(seed))
        self._source = np.random.PCG64(np.random.SeedSequence([seed, crc32(name.encode())]))

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` 64-bit words."""
        words: NDArray[np.uint64] = self._source.random_raw(count)
        return words

    def normal(self, shape: Shape) -> F32:
        """Near normal, mean 0, deviation 1: the sum of four uniform numbers, so never beyond 3.47."""
        out = np.empty(prod(shape), np.float32)
        for start in range(0, out.size, CHUNK):
            part = out[start : start + CHUNK]
            np.copyto(part, _sum_of_four(self.words(part.size)) - MEAN, casting="same_kind")
            part *= np.float32(1 / DEVIATION)
        return out.reshape(shape)

    def uniform(self, shape: Shape, low: float, high: float) -> F32:
        """Uniform in [low, high]."""
        unit = (self.words(prod(shape)) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        return (unit * np.float32(high - low) + np.float32(low)).reshape(shape)

    def below(self, limit: int, shape: Shape) -> NDArray[np.int64]:
        """Whole numbers 0 .. limit - 1."""
        return (self.words(prod(shape)) % np.uint64(limit)).astype(np.int64).reshape(shape)

    def signs(self, shape: Shape) -> F32:
        """+1.0 or -1.0."""
        return (1 - 2 * self.below(2, shape)).astype(np.float32)

    def choose(self, count: int, limit: int) -> NDArray[np.int64]:
        """`count` different numbers of 0 .. limit - 1, shuffled (all of them when there are fewer)."""
        return np.argsort(self.words(limit), kind="stable")[:count]


def _sum_of_four(words: NDArray[np.uint64]) -> NDArray[np.int32]:
    """The sum of each word's four 16-bit quarters."""
    pairs = ((words & HALVES) + ((words >> np.uint64(16)) & HALVES)).view(np.uint32)
    return (pairs[0::2] + pairs[1::2]).view(np.int32)
