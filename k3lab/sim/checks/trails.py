"""Who stored and who read what of one buffer since the launch began, by grain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3lab.sim.checks.clocks import Clocks
from k3lab.sim.checks.touch import SYSTEM, WORD, Touch, words_of

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
    tick: int
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
        if (other == NOBODY).all():
            return None
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
        return Conflict(index, int(self.wave[place]), int(self.tick[place]), int(self.line[place]), did)


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
                line = int(self._entries[entry[index], 2])
                return Conflict(index, int(other[index]), int(tick[index]), line, "loaded")
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
    """The last store to each 4-byte word of a buffer's pairs and flags.

    Attributes:
        saved: number of the clock it released, or `NOBODY`; `system`: whether it did so for every device.
    """

    def __init__(self, nbytes: int) -> None:
        self.stores = Stores(nbytes, WORD)
        self.saved = np.full(nbytes // WORD + 2, NOBODY, np.int32)
        self.system = np.zeros(len(self.saved), bool)

    def acquire(self, touch: Touch, clocks: Clocks, seen: Bools, device: I64) -> None:
        """The waves of `touch` learn what the stores released that it reads, where it has `seen` them.

        `device: [waves]`: from one to another, both store and load must be of system scope.
        """
        at = words_of(touch.offset, touch.size)
        other, tick, saved = self.stores.wave[at], self.stores.tick[at], self.saved[at]
        wave = np.broadcast_to(touch.wave[..., None], at.shape)
        new = (saved != NOBODY) & seen
        if device[-1]:  # there are several
            far = self.system[at] & (touch.policy & SYSTEM == SYSTEM)
            new = new & (far | (device[other] == device[wave]))
        if not new.any():
            return
        new = new & ~clocks.ordered(wave, other, tick)
        if new.any():
            clocks.acquire(wave[new], saved[new])

    def put(self, touch: Touch, clocks: Clocks, line: int, releases: bool) -> Conflict | None:
        """Note a store, and the clock it releases; the conflict, if waves meet in this very access."""
        clash = self.stores.note(touch, clocks, line)
        at = words_of(touch.offset, touch.size)
        if not releases:
            self.saved[at] = NOBODY
            return clash
        waves, which = np.unique(touch.wave, return_inverse=True)
        saved = clocks.release(waves)
        self.saved[at] = np.broadcast_to(saved[which.reshape(touch.wave.shape)][..., None], at.shape)
        self.system[at] = touch.policy & SYSTEM == SYSTEM
        return clash


class Listed:
    """Reads of a buffer that nothing has stored to yet.

    They are kept small: places that are the sum of one by wave and one by lane (nearly all are) as those two, and of
    equal reads by the same waves at the same line the last one: a store that is ordered after it is so after all.
    """

    def __init__(self) -> None:
        self._reads: dict[tuple[Any, ...], tuple[Touch, tuple[I64, ...], I32]] = {}

    def note(self, touch: Touch, ticks: I32) -> None:
        """Add a load."""
        parts = _sum_of(touch.offset)
        digest = blake2b(touch.wave.tobytes(), digest_size=16)
        for part in parts:
            digest.update(part.tobytes())
        key = (touch.loc, touch.size, touch.offset.shape, digest.digest())
        nowhere = np.zeros(1, np.int64)  # a read that is only listed is never reported by its lanes
        self._reads[key] = replace(touch, offset=nowhere, row=nowhere, lane=nowhere), parts, ticks

    def reads(self) -> Iterator[tuple[Touch, I32]]:
        """All loads, and the ticks of their waves."""
        for touch, parts, ticks in self._reads.values():
            offset = parts[0].astype(np.int64) + sum(parts[1:])
            yield replace(touch, offset=offset, row=np.zeros_like(touch.wave), lane=np.zeros_like(touch.wave)), ticks


def _sum_of(offset: I64) -> tuple[I64, ...]:
    """Arrays that broadcast and add up to `offset`: [n, 1] and [1, lanes] if that is possible."""
    kind = np.int32 if int(offset.max()) < 2**31 else np.int64
    if offset.ndim == 2:
        rows, lanes = offset[:, :1], offset[:1] - offset[0, 0]
        if (rows + lanes == offset).all():
            return rows.astype(kind), lanes.astype(kind)
    return (offset.astype(kind),)


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
