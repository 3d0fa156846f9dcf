"""What a step of a half-layer leaves: a run of each launch, how they differ from another's, and their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from k3lab.analysis.compare import run_difference
from k3lab.analysis.ends import own_ranks, tensor_format, written_slots
from k3lab.analysis.report import Difference
from k3lab.backends.half_layer import Values
from k3lab.backends.run import Run
from k3lab.backends.sim import Simulated
from k3lab.cases.chain import ChainCase
from k3lab.errors import expect
from k3lab.stats import ErrorStats


@dataclass(frozen=True)
class ChainRun:
    """One step of a half-layer.

    Attributes:
        runs: by launch, its runs: one of all ranks together, or one a rank where each runs it by itself. K2a's case
            holds what it was handed, in the storage formats; an oracle's was handed unrounded values.
        timing: wall seconds on this host (measured) of each part, by what it was; `simulations` how those of the parts
            went that were simulated: findings, and what the options had modelled and counted.
    """

    case: ChainCase
    backend: str
    runs: Mapping[str, tuple[Run, ...]]
    timing: Mapping[str, float]
    provenance: Mapping[str, Any]
    simulations: Mapping[str, Simulated] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return sum(self.timing.values())

    @property
    def first(self) -> tuple[Run, ...]:
        """The attention launch's runs."""
        return self.runs[self.case.declaration.first.name]

    @property
    def last(self) -> Run:
        """K2a's run."""
        return self.runs[self.case.declaration.last.name][0]

    def ranks(self, launch: str) -> list[Values]:
        """By rank, what a launch left, by name."""
        return [values for run in self.runs[launch] for values in run.ranks]

    def differences(self, other: ChainRun) -> dict[tuple[str, str], Difference]:
        """By launch and name, how every tensor that both expose differs from the other's, over all ranks.

        Raises:
            BadInput: when the runs are of different cases.
        """
        self._same_case(other)
        return {
            (launch, name): _together(
                [run_difference(mine, theirs, name) for mine, theirs in zip(runs, other.runs[launch], strict=True)]
            )
            for launch, runs in self.runs.items()
            for name in runs[0].values
            if name in other.runs[launch][0].values
        }

    def differing(self, other: ChainRun) -> dict[tuple[str, str], Difference]:
        """Those of `differences` with an element that differs."""
        return {place: each for place, each in self.differences(other).items() if each.differ}

    def errors(self, oracle: ChainRun) -> dict[tuple[str, str], ErrorStats]:
        """By launch and end tensor, its error against the oracle's chain: what both launches have added up.

        Raises:
            BadInput: when the runs are of different cases.
        """
        self._same_case(oracle)
        return {
            (launch, name): _error(runs, oracle.ranks(launch), name)
            for launch, runs in self.runs.items()
            for name in runs[0].launch.end_tensors
            if name in runs[0].values
        }

    def _same_case(self, other: ChainRun) -> None:
        expect(other.case.hash == self.case.hash, "chain", "a run of the same case", "another case")

    def __repr__(self) -> str:
        return f"ChainRun({self.case.kind}, backend={self.backend}, {self.case!r}, {self.seconds:.2f} s measured)"


def _together(parts: Sequence[Difference]) -> Difference:
    """How a tensor differs over several runs."""
    ulps = max((part.max_ulp for part in parts if part.max_ulp is not None), default=None)
    relative = max((part.relative_rms for part in parts if part.relative_rms is not None), default=None)
    first = next(({**part.first, "rank": rank} for rank, part in enumerate(parts) if part.first), None)
    return Difference(sum(part.differ for part in parts), sum(part.count for part in parts), ulps, relative, first)


def _error(runs: Sequence[Run], exact: Sequence[Values], name: str) -> ErrorStats:
    """Error of a tensor over every rank that has its own; of states and caches, in the slots that were written."""
    stats, start = ErrorStats(tensor_format(runs[0], name)), 0
    for run in runs:
        for rank, value in own_ranks(run, name):
            true = exact[start + rank][name]
            mine = written_slots(run, name, rank, true)
            stats.update(true[mine], value.double()[mine])
        start += len(run.ranks)
    return stats
