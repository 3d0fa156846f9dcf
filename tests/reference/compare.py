"""A run of the twins beside the reference, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

import k3lab
from k3lab import Case
from tests.reference.kda import k1
from tests.reference.mla import m1a
from tests.reference.oproj import k2a
from tests.reference.values import Trace

REFERENCE = {"k1": k1, "m1a": m1a, "k2a": k2a}

Values = NDArray[np.float32]


def traces(case: Case, model: str = "fused") -> list[Trace]:
    """The reference's trace of every rank."""
    with np.errstate(all="ignore"):
        return REFERENCE[case.launch](case, model)


def faults(case: Case, model: str = "fused") -> list[str]:
    """Where run and reference differ, a line each; empty when every exposed tensor, and every rounding point's value
    before and after, has the same bits on every rank."""
    run, want = k3lab.run(case.launch, case, mfma=model), traces(case, model)
    assert len(run.ranks) == len(want)
    return [line for rank, trace in enumerate(want) for line in _faults_of_rank(run, rank, trace)]


def _faults_of_rank(run: k3lab.Run, rank: int, trace: Trace) -> Iterator[str]:
    unlike = set(run.ranks[rank]) ^ set(trace.exposed) | set(run.points) ^ {
        f"{run.launch.name}.{point}" for point in trace.points
    }
    if unlike:
        yield f"rank {rank}: only one of the two has {sorted(unlike)}"
        return
    for name, value in run.ranks[rank].items():
        yield from _line(f"rank {rank} {name}", value.numpy(), trace.exposed[name], trace.copies.get(name))
    for point, pair in trace.points.items():
        passed = run.points[f"{run.launch.name}.{point}"]
        one = passed[rank if len(passed) > 1 else 0]  # passed once, where all ranks compute the same
        for when, got, want in zip(("before", "after"), (one.before, one.after), pair, strict=True):
            yield from _line(f"rank {rank} {when} {point}", got.numpy(), want.reshape(got.shape))


def _line(what: str, got: Values, want: Values, copies: NDArray[np.bool_] | None = None) -> Iterator[str]:
    assert got.shape == want.shape and got.dtype == want.dtype == np.float32, what
    wrong = differs(got, want, copies)
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        first = f"{float(got[where]).hex()} where the reference has {float(want[where]).hex()}"
        yield f"{what}: {int(wrong.sum())} of {wrong.size} differ, the first at {where}: {first}"


def differs(got: Values, want: Values, copies: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """Other bits. A NaN equals any NaN, except where values are raw copies."""
    other = np.ascontiguousarray(got).view(np.uint32) != np.ascontiguousarray(want).view(np.uint32)
    alike = np.isnan(got) & np.isnan(want)
    return other & ~alike if copies is None else other & ~(alike & ~copies)
