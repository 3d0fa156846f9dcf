"""K1's own tensors: in_proj's pad rows, decay parameters, recurrent states, state slots and accepted counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3lab.cases.fill import LaunchFill
from k3lab.cases.stream import F32
from k3lab.cases.values import Normal, Wanted

STATE_SCALE = 0.25  # well below the values that enter a state

NULL_KINDS = ("target", "conv", "initial", "none", "all")
"""Which of a request's slots are null, request by request in turn."""

NULLS = (-1, 0)  # null slots, in turn: any slot <= 0 is one


def fill_w_in(values: Normal, w: Wanted) -> F32:
    """in_proj, its pad rows zero."""
    rows = values.weight(w)
    rows[len(rows) - w.key.geometry.nproj_pad :] = 0.0
    return rows


def fill_conv_w(values: Normal, w: Wanted) -> F32:
    """Taps of deviation 1/2: four of them keep a deviation of 1."""
    return values.weight(w)


def fill_a_log(values: Normal, w: Wanted) -> F32:
    """Rates exp(a_log) of 0.2 to 2.7 a head."""
    return values.parameter(w, -1.5, 1.0)


def fill_dt_bias(values: Normal, w: Wanted) -> F32:
    """Mostly negative: decays a token from 0.01 to above 0.9."""
    return values.parameter(w, -5.0, 1.0)


def fill_rstate(values: Normal, w: Wanted) -> F32:
    """Recurrent states by slot."""
    return values.activation(w, STATE_SCALE)


def fill_st_idx(values: Normal, w: Wanted) -> NDArray[np.int64]:
    """Distinct slots in [R, L], some null."""
    return _slots_and_counts(w)[0]


def fill_num_acc(values: Normal, w: Wanted) -> NDArray[np.int64]:
    """Accepted tokens [R], 1 .. L in turn."""
    return _slots_and_counts(w)[1]


def _slots_and_counts(w: Wanted) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """st_idx [R, L] and num_acc [R]: made together, since the initial slot is st_idx[r, num_acc[r] - 1]."""
    requests, qlen = w.key.requests, w.key.qlen
    slots = 1 + w.shared("slots").choose(requests * qlen, w.slots - 1).reshape(requests, qlen)
    first = int(w.shared("accepted").below(qlen, (1,))[0])
    counts = 1 + (first + np.arange(requests)) % qlen
    if w.null == "mixed" and requests >= 3:
        for request in range(requests):
            kind = NULL_KINDS[request % len(NULL_KINDS)]
            counts[request] = _count_that_shows(kind, int(counts[request]), qlen)
            slots[request, _null_columns(kind, int(counts[request]) - 1, qlen)] = NULLS[request % len(NULLS)]
    return slots, counts


def _count_that_shows(kind: str, count: int, qlen: int) -> int:
    """An accepted count near `count` that keeps the kinds apart, as far as L allows.

    Conv and initial slot are the same one after a single accepted token; a target that is neither needs a third column.
    """
    if kind in ("conv", "initial") and qlen > 1:
        return max(count, 2)
    return 1 if kind == "target" and qlen == 2 else count


def _null_columns(kind: str, initial: int, qlen: int) -> list[int]:
    """Columns of st_idx to set null; `initial` is the column of the initial slot, 0 that of the conv slot."""
    match kind:
        case "conv":
            return [0]
        case "initial":
            return [initial]
        case "target":
            return [column for column in range(qlen) if column not in (0, initial)][-1:]
        case "all":
            return list(range(qlen))
    return []


def least_slots(key: Any) -> int:
    """Slot 0, which null slots read, and one for every token."""
    return int(key.tokens) + 1


FILL = LaunchFill(
    defaults={"tokens": 4, "qlen": 4, "nblocks": 4, "delta": True},
    least_slots=least_slots,
    fills={
        "w_in": fill_w_in,
        "conv_w": fill_conv_w,
        "a_log": fill_a_log,
        "dt_bias": fill_dt_bias,
        "rstate": fill_rstate,
        "st_idx": fill_st_idx,
        "num_acc": fill_num_acc,
    },
)
