"""Who stored and who read what of one buffer since the launch began, by grain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3lab.sim.clocks import Clocks
from k3lab.sim.touch import WORD, Touch, words_of

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
Bools = NDArray[np.bool_]
NOBODY = -1
END = -1


@dataclass(frozen=True)
class Conflict:
    """Element `index` of a touch and what another wave did to the same bytes, unordered with it."""

    index: tuple[int, ...]
    wave: int
    line: int
    did: str


class Stores:
    """The last store to each grain of a buffer.

    Attributes:
        grain: bytes in one; it shrinks to the smallest access.
    """

    def __init__(self, nbytes: int, grain: int) -> None:
        self.grain = grain
        count = nbytes // grain + 2  # a misaligned access looks one further
        self.wave = np.full(count, NOBODY, np.int32)
        self.tick, self.line = np.zeros(count, np.int32), np.zeros(count, np.int32)

    def refine(self, grain: int) -> None:
        """Have grains of `grain` bytes at most."""
        if grain < self.grain:
            times = self.grain // grain
            self.wave, self.tick, self.line = (np.repeat(a, times) for a in (self.wave, self.tick, self.line))
            self.grain = grain

    def conflict(self, touch: Touch, clocks: Clocks) -> Conflict | None:
        """A store that is not ordered before `touch`."""
        at = grains_of(touch, self.grain)
        other, wave = self.wave[at], touch.wave[..., None]
        # A wave knows its own tick, and nobody (the last wave, by its number -1) never did anything.
        bad = ~clocks.ordered(wave, other, np.where(other == NOBODY, 0, self.tick[at]))
        return self._first(bad, at, "stored")

    def note(self, touch: Touch, clocks: Clocks, line: int) -> Conflict | None:
        """Let `touch` be the last store; the conflict, if waves meet in this very access."""
        at = grains_of(touch, self.grain)
        wave = np.broadcast_to(touch.wave[..., None], at.shape)
        self.wave[at], self.tick[at], self.line[at] = wave, clocks.ticks(touch.wave)[..., None], line
        return self._first(self.wave[at] != wave, at, "stored")

    def _first(self, bad: Bools, at: I64, did: str) -> Conflict | None:
        if not bad.any():
            return None
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        place = at[index]
        return Conflict(index, int(self.wave[place]), int(self.line[place]), did)


class Reads:
    """All reads of each grain since the last store to it, as linked lists: they share their tails."""

    def __init__(self, nbytes: int, grain: int) -> None:
        self.grain = grain
        self.head = np.full(nbytes // grain + 2, END, np.int64)
        self._entries = np.zeros((1024, 4), np.int64)  # wave, tick, line, next
        self._count = 0

    def refine(self, grain: int) -> None:
        """Have grains of `grain` bytes at most."""
        if grain < self.grain:
            self.head = np.repeat(self.head, self.grain // grain)
            self.grain = grain

    def note(self, touch: Touch, ticks: I32, line: int) -> None:
        """Add a load; `ticks` are its waves' own, and broadcast with its elements."""
        at = grains_of(touch, self.grain)
        wave, tick = (np.broadcast_to(v[..., None], at.shape).ravel().astype(np.int64) for v in (touch.wave, ticks))
        at, chosen = _distinct(at.ravel(), wave)
        wave, tick = wave[chosen], tick[chosen]
        last = self.head[at]
        new = (last == END) | (self._entries[last, 0] != wave) | (self._entries[last, 1] != tick)
        if new.any():
            self._push(at[new], wave[new], tick[new], line)

    def conflict(self, touch: Touch, clocks: Clocks) -> Conflict | None:
        """A read that is not ordered before the store `touch`."""
        at = grains_of(touch, self.grain)
        wave = np.broadcast_to(touch.wave[..., None], at.shape)
        entry = self.head[at]
        while (here := entry != END).any():
            other, tick = self._entries[entry, 0], self._entries[entry, 1]
            bad = here & ~clocks.ordered(wave, other, tick)
            if bad.any():
                index = tuple(int(i) for i in np.argwhere(bad)[0])
                return Conflict(index, int(other[index]), int(self._entries[entry[index], 2]), "loaded")
            entry = np.where(here, self._entries[entry, 3], END)
        return None

    def forget(self, touch: Touch) -> None:
        """The store `touch` comes after all reads of its grains, if it covers them whole."""
        at = grains_of(touch, self.grain)
        if touch.size >= self.grain:
            self.head[at] = END

    def _push(self, at: I64, wave: I64, tick: I64, line: int) -> None:
        """New first entries of the lists of `at`, which is sorted."""
        numbers = self._count + np.arange(len(at))
        self._reserve(len(at))
        again = np.append(False, at[1:] == at[:-1])
        following = np.where(again, numbers - 1, self.head[at])
        self._entries[numbers] = np.stack([wave, tick, np.full_like(numbers, line), following], 1)
        last = np.append(~again[1:], True)
        self.head[at[last]] = numbers[last]
        self._count += len(at)

    def _reserve(self, more: int) -> None:
        if (need := self._count + more) > len(self._entries):
            grown = np.zeros((max(need, 2 * len(self._entries)), 4), np.int64)
            grown[: self._count] = self._entries[: self._count]
            self._entries = grown


class Words:
    """The last store to each 4-byte word of a buffer's pairs and flags, and the clock it released."""

    def __init__(self, nbytes: int) -> None:
        self.stores = Stores(nbytes, WORD)
        self.saved = np.full(nbytes // WORD + 2, NOBODY, np.int64)

    def acquire(self, touch: Touch, clocks: Clocks, seen: Bools) -> None:
        """The waves of `touch` learn what the stores released that it reads, where it has `seen` them."""
        at = words_of(touch.offset, touch.size)
        other, tick, saved = self.stores.wave[at], self.stores.tick[at], self.saved[at]
        wave = np.broadcast_to(touch.wave[..., None], at.shape)
        new = (saved != NOBODY) & seen & ~clocks.ordered(wave, other, tick)
        if new.any():
            clocks.acquire(wave[new], saved[new], other[new].astype(np.int64), tick[new])

    def put(self, touch: Touch, clocks: Clocks, line: int, releases: bool) -> Conflict | None:
        """Note a store, and the clock it releases; the conflict, if waves meet in this very access."""
        clash = self.stores.note(touch, clocks, line)
        at = words_of(touch.offset, touch.size)
        if not releases:
            self.saved[at] = NOBODY
            return clash
        waves, which = np.unique(touch.wave, return_inverse=True)
        saved, _ = clocks.release(waves)
        self.saved[at] = np.broadcast_to(saved[which.reshape(touch.wave.shape)][..., None], at.shape)
        return clash


def grains_of(touch: Touch, grain: int) -> I64:
    """Numbers of the grains that each element covers, `[..., grains]`."""
    grains: I64 = touch.offset[..., None] // grain + np.arange(max(1, touch.size // grain))
    return grains


def finest(touch: Touch) -> int:
    """The largest power of two that divides the access's size and every offset."""
    bits = touch.size | int(np.bitwise_or.reduce(touch.offset, axis=None))
    return bits & -bits


def _distinct(grain: I64, wave: I64) -> tuple[I64, I64]:
    """Each (grain, wave) once, sorted by grain: the grains, and where they are."""
    _, chosen = np.unique(grain << 32 | wave, return_index=True)
    return grain[chosen], chosen
