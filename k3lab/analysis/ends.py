"""Tensors of a run by name: those it exposes, and what an analysis makes of them (M1a's decode attention)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from k3lab.analysis.attention import POINT, can_attend, decode_attention
from k3lab.backends import Run
from k3lab.cases.case import Case
from k3lab.launches.eager import lifted_tensor
from k3lab.stats import ErrorStats


@dataclass(frozen=True)
class Derived:
    """A tensor computed from a run's outputs: every rank's, rounded at `point`, where `possible` for its case."""

    name: str
    about: str
    fmt: str
    point: str
    compute: Callable[[Run], list[torch.Tensor]]
    possible: Callable[[Case], bool]


ATTENTION = Derived(
    "attention", "decode attention on the outputs, gated: K2a's core", "bf16", POINT, decode_attention, can_attend
)
DERIVED: dict[str, tuple[Derived, ...]] = {"m1a": (ATTENTION,)}
"""By launch."""


def derived(case: Case) -> dict[str, Derived]:
    """The derived tensors that can be computed from runs of `case`, by name."""
    return {each.name: each for each in DERIVED.get(case.launch, ()) if each.possible(case)}


def tensor_names(run: Run) -> tuple[str, ...]:
    """Exposed tensors in the order the stages write them, then derived ones, which need all stages and ranks."""
    return (*run.values, *(derived(run.case) if run.stages is None and run.live is None else ()))


def end_names(run: Run) -> tuple[str, ...]:
    """The tensors an error budget is drawn up for."""
    return (*(name for name in run.launch.end_tensors if name in run.values), *derived(run.case))


def tensor_format(run: Run, name: str) -> str:
    """The format whose ulp is the unit of `name`'s error."""
    return run.launch.format_of(name, run.key) if name in run.values else derived(run.case)[name].fmt


def tensor_kind(run: Run, name: str) -> str:
    """What `name` is: output, region, rows, local or derived."""
    return run.launch.kind_of(name) if name in run.values else "derived"


def every_rank(run: Run, name: str) -> list[torch.Tensor]:
    """The tensor `name` of every rank."""
    return [values[name] for values in run.ranks] if name in run.values else derived(run.case)[name].compute(run)


def tensor_about(run: Run, name: str) -> str:
    """What `name` is, in a phrase."""
    return run.launch.about_of(name) if name in run.values else derived(run.case)[name].about


def own_ranks(run: Run, name: str) -> list[tuple[int, torch.Tensor]]:
    """The tensor `name` of the ranks that have their own, as (rank, value)."""
    return run.distinct(name) if name in run.values else list(enumerate(every_rank(run, name)))


def run_error(run: Run, oracle: Run, name: str) -> ErrorStats:
    """Error of `name` against the oracle's, over every rank that has its own."""
    return error_by_rank(run, every_rank(oracle, name), name)


def error_by_rank(run: Run, exact: Sequence[torch.Tensor], name: str) -> ErrorStats:
    """Error of `name` against `exact`, by rank; of states and caches only the slots that the launch wrote count."""
    stats = ErrorStats(tensor_format(run, name))
    for rank, value in own_ranks(run, name):
        mine = written_slots(run, name, rank, exact[rank])
        stats.update(exact[rank][mine], value.double()[mine])
    return stats


def written_slots(run: Run, name: str, rank: int, exact: torch.Tensor) -> torch.Tensor:
    """Which slots of a state or cache differ from the input in the oracle's `exact`; every row of another tensor."""
    inputs = run.case.ranks[rank]
    dims = run.launch.input(name).slot_dims if name in inputs else 0
    if not dims:
        return torch.ones(exact.shape[0], dtype=torch.bool, device=exact.device)
    before = lifted_tensor(run.launch, name, inputs[name].to(exact.device), exact.dtype)
    return ~((exact == before) | (exact.isnan() & before.isnan())).flatten(dims).all(-1)
