"""A bandwidth that many share: booked in windows of modelled time, whatever the order in which requests come."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


class Calendar:
    """How much of each window of time is still free.

    Requests booked together are served first come, first served. Those booked later find what is left of each window,
    spread evenly over it, however early they come: so a request never waits for one that comes a window or more later,
    and what several calls book in one window may be off by as much as the window is long.
    """

    def __init__(self, bytes_per_s: float, window_ns: float) -> None:
        self._window = window_ns
        self._full = bytes_per_s * 1e-9 * window_ns
        self._free: F64 = np.zeros(0)
        self._used = 0  # windows of which something is booked, and all before them

    def book(self, start: F64, nbytes: F64) -> F64:
        """When each request is served that comes at `start: [n]` (ns) for `nbytes: [n]` > 0."""
        order = np.argsort(start, kind="stable")
        begin, size = start[order], nbytes[order].astype(np.float64)
        first, last = int(begin[0] // self._window), int(begin[-1] // self._window)
        free = self._from(first, last, float(size.sum()))
        before = np.concatenate([[0.0], np.cumsum(free)])  # bytes that fit before each window begins
        place = begin / self._window - first
        window = np.minimum(place.astype(np.int64), len(free) - 1)
        come = before[window] + free[window] * (place - window)
        asked = np.cumsum(size)
        until = asked + np.maximum.accumulate(come - (asked - size))
        ends = np.minimum(np.searchsorted(before, until, "left") - 1, len(free) - 1)
        served = (first + ends + (until - before[ends]) / free[ends]) * self._window
        self._take(first, before, until, size)
        out = np.empty_like(begin)
        out[order] = np.maximum(served, begin)
        return out

    def _from(self, first: int, last: int, nbytes: float) -> F64:
        """What is free from window `first` on, as far as the requests may reach."""
        wanted = max(self._used, last + 1) + int(nbytes // self._full) + 2
        if wanted > len(self._free):
            more = np.full(max(wanted, 2 * len(self._free)) - len(self._free), self._full)
            self._free = np.concatenate([self._free, more])
        return self._free[first:wanted]

    def _take(self, first: int, before: F64, until: F64, size: F64) -> None:
        """Book from `until - size` to `until`, in bytes that fit from window `first` on."""
        edges = np.stack([until - size, until], 1).ravel()
        sums = np.stack([np.cumsum(size) - size, np.cumsum(size)], 1).ravel()
        taken = np.diff(np.interp(before, edges, sums, left=0.0))
        free = self._free[first : first + len(taken)]
        np.maximum(free - taken, 0.0, out=free)
        self._used = max(self._used, first + int(np.flatnonzero(taken)[-1]) + 1)
