"""Whether what is timed is right: every output of one launch held against the float64 oracle.

A subject rounds about where the kernel rounds, so the two errors are alike in power; the bound lets a subject have
twice the power of the twin's error, that is, 3.01 dB less signal to noise. Where the twin has no error at all, the
subject may have none either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from k3lab.backends import Run, run
from k3lab.cases.case import Case
from k3lab.kernels.host import loaded
from k3lab.launches.eager import lifted_tensor
from k3lab.stats import ErrorStats

MARGIN_DB = 10 * math.log10(2)
Values = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Reference:
    """What outputs are held against: the oracle, and the torch-order twin whose error sets the bound."""

    oracle: Run
    twin: Run


@dataclass(frozen=True)
class Check:
    """Signal to noise against the oracle, in dB by output; infinite where nothing differs.

    Attributes:
        wanted: what the twin's own figure asks for.
        worst: the output that lies deepest below (or least above) what is wanted.
    """

    snr: Mapping[str, float]
    wanted: Mapping[str, float]

    @property
    def fine(self) -> bool:
        return all(self.snr[name] >= self.wanted[name] for name in self.wanted)

    @property
    def worst(self) -> str:
        return min(self.snr, key=lambda name: self.snr[name] - min(self.wanted[name], 1e6))


def reference(case: Case) -> Reference:
    """The case's oracle and twin, on the CPU."""
    return Reference(run(case.launch, case, backend="oracle"), run(case.launch, case, order="torch"))


def values_of(case: Case, tensors: Values) -> dict[str, torch.Tensor]:
    """A launch's outputs by name, as the tensors of a rank hold them now: copies, fp32 on the CPU."""
    launch = case.declaration
    made = {output.name: output.dtype for output in launch.made_for(case.key)}
    inputs = {decl.name for decl in launch.inputs_for(case.key)}
    found = {}
    for name in launch.outputs:
        if name in made:
            found[name] = loaded(tensors[name].to("cpu", copy=True), made[name])
        elif name in inputs:
            found[name] = lifted_tensor(launch, name, tensors[name].to("cpu", copy=True), torch.float32)
    return found


def checked(against: Reference, got: Sequence[Values]) -> Check:
    """Every rank's outputs against the oracle's, elements of all ranks together."""
    launch, key = against.oracle.launch, against.oracle.key
    names = [name for name in got[0] if name in against.oracle.values]
    snr, wanted = {}, {}
    for name in names:
        unit = launch.format_of(name, key)
        subject, twin = ErrorStats(unit), ErrorStats(unit)
        for rank, values in enumerate(got):
            exact = against.oracle.ranks[rank][name]
            subject.update(exact, values[name].to(exact.dtype))
            twin.update(exact, against.twin.ranks[rank][name].to(exact.dtype))
        snr[name] = -math.inf if subject.mismatched > twin.mismatched else subject.snr_db
        wanted[name] = twin.snr_db - MARGIN_DB
    return Check(snr, wanted)
