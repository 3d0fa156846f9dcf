"""What the clock keeps of global memory: which lines a device has touched, and who stored each word when."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3lab.sim.checks.touch import WORD, Touch, words_of

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bools = NDArray[np.bool_]
NEVER, NOT_YET = -np.inf, np.inf
NOBODY = -1


@dataclass(frozen=True)
class Found:
    """Lines that a touch reaches into, `[..., 1 or 2]`, by element; `fresh`: which of them it is the first to touch."""

    lines: I64
    fresh: Bools


class Lines:
    """Lines that a device has touched since its launch began, and when each had come (modelled ns)."""

    def __init__(self, line_bytes: int) -> None:
        self._shift = line_bytes.bit_length() - 1
        self._come: dict[tuple[int, int], F64] = {}  # by device and buffer
        self._latest: dict[tuple[int, int], float] = {}
        self._mark: dict[int, I64] = {}

    def forget(self, device: int) -> None:
        """A launch of the device begins."""
        for key in [key for key in self._come if key[0] == device]:
            del self._come[key], self._latest[key]

    def touch(self, device: int, touch: Touch, time: F64) -> Found:
        """Touch lines, at `time: [n]` by row of the step; of several elements that are first at a line, one is."""
        lines = (touch.offset >> self._shift)[..., None]
        last = ((touch.offset + (touch.size - 1)) >> self._shift)[..., None]
        if (lines != last).any():
            lines = np.concatenate([lines, last], -1)
        key, count = (device, touch.buffer.base), (touch.buffer.data.size >> self._shift) + 1
        if key not in self._come:
            self._come[key], self._latest[key] = np.full(count, NOT_YET), 0.0
        come = self._come[key]
        fresh = come[lines] == NOT_YET
        if fresh.any():
            mark = self._mark.setdefault(touch.buffer.base, np.zeros(count, np.int64))
            chosen = lines[fresh]
            rank = np.empty(len(time), np.int64)
            rank[np.argsort(-time, kind="stable")] = np.arange(len(time))
            ranks = np.broadcast_to(rank[touch.row][..., None], lines.shape)[fresh]
            number = ranks * len(chosen) + np.arange(len(chosen))
            mark[chosen] = -1
            np.maximum.at(mark, chosen, number)
            fresh[fresh] = mark[chosen] == number
            come[chosen] = 0.0
        return Found(lines, fresh)

    def fill(self, device: int, touch: Touch, found: Found, when: F64) -> None:
        """Fresh lines come at `when`, which broadcasts with the elements."""
        key = device, touch.buffer.base
        times = np.broadcast_to(when[..., None], found.lines.shape)[found.fresh]
        self._come[key][found.lines[found.fresh]] = times
        self._latest[key] = max(self._latest[key], float(times.max()))

    def come(self, device: int, touch: Touch, found: Found, soonest: float) -> F64 | None:
        """By element, when the last of its lines came; None if all came by `soonest`."""
        key = device, touch.buffer.base
        return None if self._latest[key] <= soonest else self._come[key][found.lines].max(-1)


@dataclass
class Writers:
    """By word of a buffer, the last store: when (modelled ns), and by whom; `NEVER` and `NOBODY` before any."""

    when: F64
    who: I64


class Stores:
    """Who stored each word of global memory when."""

    def __init__(self) -> None:
        self._writers: dict[int, Writers] = {}

    def note(self, touch: Touch, when: F64, who: I64) -> None:
        """Stores at `when` by `who`, which broadcast with the elements of `touch`."""
        base = touch.buffer.base
        if base not in self._writers:
            count = touch.buffer.data.size // WORD + 2
            self._writers[base] = Writers(np.full(count, NEVER), np.full(count, NOBODY, np.int64))
        writers, words = self._writers[base], words_of(touch.offset, touch.size)
        writers.when[words] = when[..., None]
        writers.who[words] = who[..., None]

    def of(self, touch: Touch) -> tuple[F64, I64, I64] | None:
        """(when, by whom, which word) of every word of every element, `[..., words]`; None if nobody stored any."""
        writers = self._writers.get(touch.buffer.base)
        if writers is None:
            return None
        words = words_of(touch.offset, touch.size)
        who = writers.who[words]
        return None if (who == NOBODY).all() else (writers.when[words], who, words)


class Rows:
    """The elements of a touch by the step's row they belong to.

    Attributes:
        index: [rows] rows that have any, ascending.
    """

    def __init__(self, touch: Touch) -> None:
        self._flat = touch.offset.ndim == 1
        if self._flat:
            self.index, self._starts = np.unique(touch.row, return_index=True)
        else:
            self.index = np.broadcast_to(touch.row, (touch.offset.shape[0], 1))[:, 0]

    def sum(self, values: I64) -> I64:
        """[rows] the sum over a row's elements."""
        total: I64 = np.add.reduceat(values, self._starts) if self._flat else values.sum(1)
        return total

    def max(self, values: F64) -> F64:
        """[rows] the largest of a row's elements."""
        largest: F64 = np.maximum.reduceat(values, self._starts) if self._flat else values.max(1)
        return largest

    def last(self, values: F64) -> I64:
        """[rows] where a row's largest value is among its elements, flat; the first of equal ones."""
        if not self._flat:
            return values.argmax(1) + np.arange(len(values)) * values.shape[1]
        ends = np.append(self._starts[1:], len(values))
        return np.array([int(values[a:b].argmax()) + a for a, b in zip(self._starts, ends, strict=True)], np.int64)
