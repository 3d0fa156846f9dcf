"""Vector clocks of waves: what each wave knows of what the others have done.

A wave counts its own *ticks*. That wave `w` knows tick `t` of wave `v` means: all that `v` did up to its tick `t` comes
before all that `w` does from now on.

A number for every pair of waves would take a gigabyte for eight devices of 2048 waves. But what is known of a workgroup
at any time is one of few *vectors* (a tick for each of its waves), as they change only when it passes a barrier or
releases. So a wave's clock is a *row* of numbers of such vectors, one a workgroup, and waves that know the same share a
row: it is never changed, only replaced. Nothing is rounded: every pair's number can be read off.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
FEW_ROWS, FEW_SAVED = 1024, 16384  # not worth collecting
MANY_CODES = 1 << 20  # too many for a table
AT_ONCE, FEW_JOINED = 1024, 4  # rows that are joined at a time; so few are joined one by one


class Clocks:
    """The clocks of all waves.

    Attributes:
        own: [waves, waves of a workgroup] what each wave knows of its own workgroup, up to now; its own tick is there.
        row: [waves] number of the row that holds what it knows of others; it may say less of its own workgroup.
    """

    def __init__(self, workgroups: int, waves_per_group: int) -> None:
        self._size = waves_per_group
        waves = np.arange(workgroups * waves_per_group)
        self._place = waves % waves_per_group
        self.own = np.zeros((len(waves), waves_per_group), np.int32)
        self.own[waves, self._place] = 1
        self.row = np.zeros(len(waves), np.int64)
        self._vectors, self._rows = _Table(waves_per_group), _Table(workgroups)
        self._numbers: dict[bytes, int] = {}  # of vectors, by their bytes
        for table in (self._vectors, self._rows):
            table.add(np.zeros((1, table.width), np.int32))
        # Clocks as they were at a release: (row, workgroup), and what the wave knew of its own workgroup.
        self._saved, self._saved_own = _Table(2), _Table(waves_per_group)
        self._joined: dict[Any, int] = {}  # rows by what they were joined of
        self._many = FEW_ROWS, FEW_SAVED

    def ticks(self, waves: I64) -> I32:
        """The waves' own ticks now."""
        return self.own[waves, self._place[waves]]

    def ordered(self, wave: I64, other: NDArray[Any], tick: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether `wave` knows `tick` of `other`."""
        group = other // self._size
        place = other - group * self._size
        known = self._vectors.items[self._rows.items[self.row[wave], group], place]
        mine = wave // self._size == group
        if mine.any():
            known = np.where(mine, self.own[wave, place], known)
        result: NDArray[np.bool_] = known >= tick
        return result

    def barrier(self, complete: NDArray[np.bool_]) -> None:
        """All waves of the `complete` workgroups know what each of them knows."""
        groups = np.flatnonzero(complete)
        waves = groups[:, None] * self._size + np.arange(self._size)
        self.own[waves] = self.own[waves].max(1, keepdims=True)
        rows = self.row[waves]
        for group in np.flatnonzero((rows != rows[:, :1]).any(1)):
            self.row[waves[group]] = self._join_all(rows[group])
        self._pass(waves.ravel())

    def join(self, groups: I64) -> int:
        """All waves of all `groups` know what each of them knows; returns their tick, the same for all from now on."""
        waves = (groups[:, None] * self._size + np.arange(self._size)).ravel()
        vectors = self.own[waves].reshape(len(groups), self._size, self._size).max(1)
        self.row[waves] = self._raised(self._join_all(self.row[waves]), groups, vectors)
        self.own[waves] = np.repeat(vectors, self._size, axis=0)
        tick = int(vectors.max()) + 1
        self.own[waves, self._place[waves]] = tick
        return tick

    def release(self, waves: I64) -> I64:
        """Save the clocks of `waves` (each once), without what they do next; returns numbers for `acquire`."""
        saved = self._saved.add(np.stack([self.row[waves], waves // self._size], 1))
        self._saved_own.add(self.own[waves])
        self._pass(waves)
        return saved

    def acquire(self, wave: I64, saved: I64) -> None:
        """Each `wave` learns the clock with number `saved`; both flat, a wave may come often."""
        both = wave.astype(np.int64) << 32 | saved
        both = np.unique(both[np.diff(both, prepend=-1) != 0])  # a wave's lanes often get the same
        wave, saved = both >> 32, both & 0xFFFFFFFF
        first = np.flatnonzero(np.diff(wave, prepend=-1))
        learners: dict[tuple[int, bytes], list[int]] = {}  # waves that know the same and learn the same
        for one, numbers in zip(wave[first].tolist(), np.split(saved, first[1:]), strict=True):
            learners.setdefault((int(self.row[one]), numbers.tobytes()), []).append(one)
        rows = self._learnt([(row, np.frombuffer(numbers, np.int64)) for row, numbers in learners])
        for row, alike in zip(rows, learners.values(), strict=True):
            self.row[alike] = row
        waves = np.unique(wave)
        theirs = self._vectors.items[self._rows.items[self.row[waves], waves // self._size]]
        self.own[waves] = np.maximum(self.own[waves], theirs)

    @property
    def saved_end(self) -> int:
        """One past the largest number of a saved clock."""
        return self._saved.end

    @property
    def crowded(self) -> bool:
        """Whether it is time to `collect`."""
        return self._rows.used > self._many[0] or self._saved.used > self._many[1]

    def collect(self, in_use: I64) -> None:
        """Forget all saved clocks but those with the numbers `in_use`, and all rows that nobody needs any more."""
        self._saved.keep(in_use)
        self._saved_own.keep(in_use)
        rows = np.unique(np.concatenate([[0], self.row, self._saved.items[in_use, 0]]))
        self._rows.keep(rows)
        used = np.zeros(len(self._vectors.items), bool)
        for row in rows:
            used[self._rows.items[row]] = True
        vectors = np.flatnonzero(used)
        self._vectors.items = self._vectors.items[vectors]  # 0 stays 0: rows have it where nothing is known
        self._vectors.forget_numbers(len(vectors))
        again = np.cumsum(used, dtype=np.int32) - 1
        for row in rows:
            self._rows.items[row] = again[self._rows.items[row]]
        self._numbers = {vector.tobytes(): i for i, vector in enumerate(self._vectors.items)}
        self._joined.clear()
        self._many = max(FEW_ROWS, 2 * len(rows)), max(FEW_SAVED, 2 * len(in_use))

    def _pass(self, waves: I64) -> None:
        self.own[waves, self._place[waves]] += 1

    def _once(self, key: Any, make: Callable[[], int]) -> int:
        if key not in self._joined:
            if len(self._joined) > 8 * FEW_ROWS:
                self._joined.clear()
            self._joined[key] = make()
        return self._joined[key]

    def _learnt(self, lessons: list[tuple[int, I64]]) -> list[int]:
        """Rows joined with saved clocks, for each (row, their numbers)."""
        rounds = max(len(saved) for _, saved in lessons)
        if len(lessons) <= rounds:
            return [self._once((row, saved.tobytes()), partial(self._learn_all, row, saved)) for row, saved in lessons]
        rows = np.array([row for row, _ in lessons])
        for turn in range(rounds):
            for part in np.array_split(np.arange(len(lessons)), -(-len(lessons) // AT_ONCE)):
                some = part[[len(lessons[i][1]) > turn for i in part]]
                rows[some] = self._learn_one(rows[some], np.array([lessons[i][1][turn] for i in some], np.int64))
        return rows.tolist()

    def _learn_all(self, row: int, saved: I64) -> int:
        """A row joined with several saved clocks."""
        row = self._join_all(np.append(row, self._saved.items[saved, 0]))
        groups = self._saved.items[saved, 1]
        order = np.argsort(groups, kind="stable")
        groups, first = np.unique(groups[order], return_index=True)
        return self._raised(row, groups, np.maximum.reduceat(self._saved_own.items[saved[order]], first))

    def _learn_one(self, rows: I64, saved: I64) -> I64:
        """Each row joined with one saved clock."""
        pairs, which = np.unique(rows << 32 | self._saved.items[saved, 0], return_inverse=True)
        rows = self._join_each(pairs >> 32, pairs & 0xFFFFFFFF)[which]
        groups = self._saved.items[saved, 1]
        old = self._vectors.items[self._rows.items[rows, groups]]
        new = np.maximum(old, self._saved_own.items[saved])
        more = np.flatnonzero((new != old).any(1))
        if more.size:
            raised = self._rows.items[rows[more]]
            raised[np.arange(len(more)), groups[more]] = self._numbered(new[more])
            rows[more] = self._rows.add(raised)
        return rows

    def _join_each(self, rows: I64, others: I64) -> I64:
        """Each row joined with another one: one of the two, if it knows all that the other one does."""
        result = rows.copy()
        one, other = self._rows.items[rows], self._rows.items[others]
        at, group = np.nonzero(one != other)
        these, those = one[at, group], other[at, group]
        both = self._larger(these, those)
        news, olds = both != these, both != those  # where the one knows less, where the other one
        less, more = (np.bincount(at, where, len(rows)) > 0 for where in (news, olds))
        result[less & ~more] = others[less & ~more]
        mixed = less & more
        if mixed.any():
            one[at, group] = both
            result[mixed] = self._rows.add(one[mixed])
        return result

    def _larger(self, one: NDArray[Any], other: NDArray[Any]) -> I64:
        """The numbers of the larger of two vectors each, tick by tick; few pairs are different ones."""
        pairs, which = _distinct(one.astype(np.int64) * self._vectors.end + other, self._vectors.end**2)
        a, b = np.divmod(pairs, max(1, self._vectors.end))
        vectors = np.maximum(self._vectors.items[a], self._vectors.items[b])
        larger = np.where((vectors == self._vectors.items[a]).all(1), a, b)
        new = (vectors != self._vectors.items[larger]).any(1)
        if new.any():
            larger[new] = self._numbered(vectors[new])
        result: I64 = larger[which]
        return result

    def _join_all(self, rows: I64) -> int:
        rows = np.unique(rows)
        while len(rows) > FEW_JOINED:
            half = len(rows) // 2
            ways = -(-half // AT_ONCE)
            pairs = zip(np.array_split(rows[:half], ways), np.array_split(rows[half : 2 * half], ways), strict=True)
            rows = np.unique(np.concatenate([rows[2 * half :], *(self._join_each(a, b) for a, b in pairs)]))
        return reduce(lambda a, b: self._once((a, b), partial(self._join, a, b)), rows.tolist())

    def _join(self, a: int, b: int) -> int:
        return int(self._join_each(np.array([a]), np.array([b]))[0])

    def _raised(self, row: int, groups: I64, vectors: I32) -> int:
        """The row, knowing at least `vectors` of `groups`."""
        now = self._rows.items[row, groups]
        old = self._vectors.items[now]
        new = np.maximum(old, vectors)
        if (new == old).all():
            return row
        raised = self._rows.items[row].copy()
        raised[groups] = self._numbered(new)
        return int(self._rows.add(raised[None])[0])

    def _numbered(self, vectors: I32) -> I64:
        """The numbers of vectors, each kept once."""
        raw, size = vectors.tobytes(), 4 * self._size
        names = [raw[i : i + size] for i in range(0, len(raw), size)]
        new = [i for i, name in enumerate(names) if self._numbers.setdefault(name, -1) < 0]
        new = list({names[i]: i for i in new}.values())
        if new:
            numbers = self._vectors.add(vectors[new])
            self._numbers.update(zip((names[i] for i in new), numbers.tolist(), strict=True))
        return np.array([self._numbers[name] for name in names], np.int64)


def _distinct(codes: I64, end: int) -> tuple[I64, I64]:
    """The numbers among `codes`, all below `end`, and for each code which of them it is."""
    if end > MANY_CODES:
        return np.unique(codes, return_inverse=True)
    there = np.zeros(end, bool)
    there[codes] = True
    return np.flatnonzero(there), (np.cumsum(there) - 1)[codes]


class _Table:
    """Rows of int32 by number; those no longer kept are used again.

    Attributes:
        items: [room, width]; `used`: how many of them hold something; `end`: one past the last that ever did.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.items = np.zeros((16, width), np.int32)
        self.end = 0
        self._free: I64 = np.zeros(0, np.int64)

    @property
    def used(self) -> int:
        return self.end - len(self._free)

    def add(self, rows: NDArray[Any]) -> I64:
        """Keep rows; returns their numbers."""
        again, self._free = self._free[: len(rows)], self._free[len(rows) :]
        fresh = len(rows) - len(again)
        numbers = np.append(again, self.end + np.arange(fresh))
        self.end += fresh
        if self.end > len(self.items):
            grown = np.zeros((max(self.end, 2 * len(self.items)), self.width), np.int32)
            grown[: len(self.items)] = self.items
            self.items = grown
        self.items[numbers] = rows
        return numbers

    def keep(self, numbers: I64) -> None:
        """Forget all rows but those."""
        kept = np.zeros(self.end, bool)
        kept[numbers] = True
        self._free = np.flatnonzero(~kept)

    def forget_numbers(self, count: int) -> None:
        """The rows have been numbered anew, from 0 to `count`."""
        self.end, self._free = count, np.zeros(0, np.int64)
