"""A weaker memory than the default one: stores are under way for a while, and plain loads may see what was cached.

Any store may be seen by other workgroups only when its wave has drained it, or at random before; its own workgroup sees
it at once. An aligned 8-byte piece arrives whole. A load without device scope may, by 128-byte line, give what memory
held at some time since its workgroup last dropped its caches (an acquire fence of device scope).

Between devices it takes more. A store without system scope may stay in its device's caches, drained or not, until a
release of system scope by its workgroup or the end of its launch; and a load without system scope may give what another
device's bytes were at some time since its workgroup's last acquire of system scope or the start of its launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3lab.sim.checks.touch import DEVICE_WIDE, EVERYWHERE, WORD, Touch, words_of
from k3lab.sim.memory.spaces import Buffer

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
NOBODY = -1
WHOLE_BITS, LINE_BITS = 3, 7  # what arrives whole; what is cached together
SLOWNESS = 8  # a piece under way arrives early with a chance of one in so many at each step


@dataclass
class _Copy:
    """What is known of a buffer beside its bytes, each by byte.

    Attributes:
        coming: bytes under way, stored by wave `sender` (`NOBODY`: none is); `far`: with system scope.
        before: what the byte was before it last changed, at time `changed` by a wave of workgroup `by`.
        local: whether its last change may be known to the device alone that made it.
        queue: offsets of stores some of which may be under way.
    """

    buffer: Buffer
    queue: list[I64] = field(default_factory=list)

    def __post_init__(self) -> None:
        size = self.buffer.data.size
        self.coming, self.before = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        self.sender, self.by = np.full(size, NOBODY, np.int32), np.full(size, NOBODY, np.int32)
        self.changed = np.zeros(size, np.int32)
        self.far, self.local = np.zeros(size, bool), np.zeros(size, bool)


class RelaxedMemory:
    """Global memory as the workgroups of a simulation see it."""

    def __init__(self, device: I64, waves_per_group: int, seed: int) -> None:
        """`device`: whose each workgroup is."""
        self._waves_per_group = waves_per_group
        self._device = device
        self._several = bool(device[-1])
        self._seed = np.uint64(seed)
        self._now = 0
        self._acquired, self._acquired_far = np.zeros(len(device), np.int64), np.zeros(len(device), np.int64)
        self._copies: dict[int, _Copy] = {}

    def may_differ(self, touch: Touch, reach: int) -> bool:
        """Whether a load may get something else than memory holds."""
        copy = self._copies.get(touch.buffer.base)
        return copy is not None and (self._several or reach < 1 or bool(copy.queue))

    def load(self, touch: Touch, data: Bytes, reach: int) -> Bytes:
        """The bytes `touch` gets, where memory holds `data`; `reach` is that of the operation, as `touch` has it."""
        copy, at = self._copy(touch), _bytes_of(touch)
        group = (touch.wave // self._waves_per_group)[..., None]
        data = np.where(self._stale(copy, at, group, reach) | self._hidden(copy, at, group), copy.before[at], data)
        return np.where(self._own(copy, at, group), copy.coming[at], data)

    def store(self, touch: Touch, data: Bytes, reach: int) -> None:
        """Send `data` on its way."""
        copy, at = self._copy(touch), _bytes_of(touch)
        wave = np.broadcast_to(touch.wave[..., None], at.shape)
        sender = copy.sender[at]
        self._arrive(copy, at[(sender != NOBODY) & (sender != wave)])  # two stores to a byte arrive in their order
        copy.coming[at], copy.sender[at], copy.far[at] = data, wave, reach == EVERYWHERE
        copy.queue.append(at.ravel())

    def settle(self, touch: Touch, reach: int) -> None:
        """Before an atomic access: let all arrive that is under way to its bytes; what it stores arrives at once."""
        copy, at = self._copy(touch), _bytes_of(touch).ravel()
        self._arrive(copy, at[copy.sender[at] != NOBODY])
        self._now += 1
        copy.before[at], copy.changed[at] = copy.buffer.data[at], self._now
        copy.by[at] = touch.wave[0] // self._waves_per_group
        copy.local[at] = self._several and reach < EVERYWHERE

    def seen(self, touch: Touch) -> Bools:
        """Whether the waves of `touch` see the last store to each of its words, `[..., words]` (or one for all)."""
        copy = self._copies.get(touch.buffer.base)
        if copy is None or not (copy.queue or self._several):
            return np.array(True)
        at = np.minimum(words_of(touch.offset, touch.size) * WORD, touch.buffer.data.size - 1)
        group = (touch.wave // self._waves_per_group)[..., None]
        arrived = (copy.sender[at] == NOBODY) & ~self._hidden(copy, at, group)
        seen: Bools = arrived | self._own(copy, at, group)
        return seen

    def drained(self, waves: I64) -> bool:
        """Let all stores of `waves` arrive; whether any did."""
        return self._arrivals(lambda copy, at: np.isin(copy.sender[at], waves))

    def published(self, groups: I64) -> bool:
        """All that `groups` have stored and drained is there for every device; whether that changes anything."""
        some = False
        for copy in self._copies.values() if self._several else ():
            mine = copy.local & np.isin(copy.by, groups)
            copy.local[mine] = False
            some |= bool(mine.any())
        return some

    def acquired(self, groups: I64, reach: int) -> None:
        """`groups` drop what they have cached, of their own device or of every one."""
        self._acquired[groups] = self._now
        if reach == EVERYWHERE:
            self._acquired_far[groups] = self._now

    def pass_time(self, *, idle: bool = False) -> bool:
        """Let some stores arrive, more when all waves wait; whether any did. When `idle`, one does if any can."""
        while any(copy.queue for copy in self._copies.values()):
            self._now += 1
            if self._arrivals(self._lucky if idle else self._early):
                return True
            if not idle:
                return False
        return False

    def _lucky(self, copy: _Copy, at: I64) -> Bools:
        """Which of the pieces under way at offsets `at` arrive now: half of them."""
        return self._draw(at >> WHOLE_BITS, self._now) % 2 == 0

    def _early(self, copy: _Copy, at: I64) -> Bools:
        """The same while other waves can go on: few of them, and none of the waves that are slow this time."""
        slow = self._draw(copy.sender[at]) % 2 == 1
        return ~slow & (self._draw(at >> WHOLE_BITS, self._now) % SLOWNESS == 0)

    def _copy(self, touch: Touch) -> _Copy:
        base = touch.buffer.base
        if base not in self._copies:
            self._copies[base] = _Copy(touch.buffer)
        return self._copies[base]

    def _arrivals(self, choose: Callable[[_Copy, I64], Bools]) -> bool:
        """Let those bytes under way arrive that `choose` picks; whether any did."""
        some = False
        for copy in self._copies.values():
            if copy.queue:
                at = copy.queue[0] if len(copy.queue) == 1 else np.unique(np.concatenate(copy.queue))
                at = at[copy.sender[at] != NOBODY]
                chosen = choose(copy, at)
                self._arrive(copy, at[chosen])
                some |= bool(chosen.any())
                copy.queue = [at[~chosen]] if not chosen.all() else []
        return some

    def _arrive(self, copy: _Copy, at: I64) -> None:
        """Let the bytes under way to offsets `at` arrive."""
        if at.size == 0:
            return
        self._now += 1
        data = copy.buffer.data
        copy.before[at], copy.changed[at] = data[at], self._now
        copy.by[at] = copy.sender[at] // self._waves_per_group
        data[at], copy.sender[at] = copy.coming[at], NOBODY
        copy.local[at] = ~copy.far[at] & self._several

    def _own(self, copy: _Copy, at: I64, group: I64) -> Bools:
        sender = copy.sender[at]
        own: Bools = (sender != NOBODY) & (sender // self._waves_per_group == group)
        return own

    def _hidden(self, copy: _Copy, at: I64, group: I64) -> Bools:
        """Whether a byte's last change has stayed in another device's caches, by line."""
        if not self._several:
            return np.array(False)
        hidden: Bools = copy.local[at] & (self._device[copy.by[at]] != self._device[group])
        if hidden.any():
            hidden &= self._draw(at >> LINE_BITS, copy.buffer.base) % 2 == 0
        return hidden

    def _stale(self, copy: _Copy, at: I64, group: I64, reach: int) -> Bools:
        """Whether a workgroup gets an old byte: one changed by others since it dropped its caches, in a cached line."""
        late: Bools = np.array(False)
        if reach < DEVICE_WIDE:
            late = (copy.changed[at] > self._acquired[group]) & (copy.by[at] != group)
        if reach < EVERYWHERE and self._several:
            foreign = self._device[copy.by[at]] != self._device[group]
            late = late | ((copy.changed[at] > self._acquired_far[group]) & foreign)
        if not late.any():
            return late
        # A line is cached or not until the next acquire: a workgroup never sees a byte go back.
        return late & (self._draw(at >> LINE_BITS, group, self._acquired[group], copy.buffer.base) % 2 == 0)

    def _draw(self, *numbers: Any) -> NDArray[np.uint64]:
        """Random numbers, the same for the same `numbers` (and the seed)."""
        mixed = np.array(self._seed)
        for number in numbers:
            mixed = _mix(mixed + np.asarray(number).astype(np.uint64))
        return mixed


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit numbers that spreads every bit: the finaliser of the SplitMix64 generator."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def _bytes_of(touch: Touch) -> I64:
    at: I64 = touch.offset[..., None] + np.arange(touch.size)
    return at
