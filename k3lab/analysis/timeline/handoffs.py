"""Waits as a CTA sees them: of its waves' waits for one region in one interval, first to last."""

from __future__ import annotations

import numpy as np

from k3lab.analysis.timeline.intervals import WAIT, Table, Timeline

CTA_WAIT = np.dtype([*((name, WAIT[name]) for name in WAIT.names or ()), ("point", "i4")])
"""A CTA's wait: `begin` and `ready` are the first of its waves', all else is of the wave whose wait ended last."""


def last_waits(timeline: Timeline) -> Table:
    """A row (`CTA_WAIT`) for each CTA, interval and region whose producer was late, by rank, CTA and time.

    None where no waits are known.
    """
    if timeline.waits is None:
        return np.empty(0, CTA_WAIT)
    late = timeline.waits["end"] > timeline.waits["ready"]
    if not late.any():
        return np.empty(0, CTA_WAIT)
    waits = np.empty(int(late.sum()), CTA_WAIT)
    for name in WAIT.names or ():
        waits[name] = timeline.waits[name][late]
    waits["point"] = timeline.wait_points[late]
    waits = np.sort(waits, order=["rank", "cta", "point", "region", "end"])
    same = np.zeros(len(waits), bool)
    same[1:] = True
    for name in ("rank", "cta", "point", "region"):
        same[1:] &= waits[name][1:] == waits[name][:-1]
    firsts = np.flatnonzero(~same)
    made = waits[np.append(firsts[1:], len(waits)) - 1]
    for name in ("begin", "ready"):
        made[name] = np.minimum.reduceat(waits[name], firsts)
    return np.sort(made, order=["rank", "cta", "ready", "end"])
