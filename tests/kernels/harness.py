"""Runs a launch's kernel in the simulator and holds what it exposes against the kernel-order twin, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

import k3lab
from k3lab import Case
from k3lab.backends.sim import simulated
from k3lab.geometry import Geometry
from k3lab.kernels.host import Buffers
from k3lab.sim.options import Options

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

ON_A_GPU = replace(Geometry.k3(), blocks=132)
"""A CTA for each multiprocessor of an H200."""
DETECTORS = {"races": True, "global_races": True, "guards": True, "scopes": True}
ORDERS = {
    "random": lambda seed: {"schedule": "random", "seed": 3 * seed + seed % 2},
    "fine": lambda seed: {"schedule": "random", "seed": 3 * seed + 2},  # wave by wave
    "adversarial": lambda seed: {"schedule": "adversarial", "seed": seed},
    "relaxed": lambda seed: {"memory": "relaxed", "seed": seed},
    "relaxed-random": lambda seed: {"memory": "relaxed", "schedule": "random", "seed": 3 * seed + seed % 2},
}
"""Options of the simulator by seed: every third random order is the fine one."""
FINE_TOKENS = 6
"""Up to so many tokens the fine orders take no more than a minute."""


def under_orders(cases: Sequence[tuple[str, ...]], tokens: Callable[[tuple[str, ...]], int]) -> list[Any]:
    """For every case two of the `ORDERS`, all of them in turn; the fine one for cases of few tokens alone."""
    made = []
    for i, labels in enumerate(cases):
        names = [name for name in ORDERS if name != "fine" or tokens(labels) <= FINE_TOKENS]
        chosen = sorted({names[i % len(names)], names[(i + 2) % len(names)]})
        made += [pytest.param(labels, how, id="-".join([*labels, how])) for how in chosen]
    return made


BUILD = ("dumps", "timeline", "bounded", "blocks", "token_tile", "prefetch", "gemv_all", "k_parts", "at_once", "ahead")
BUILD += ("kda0", "gate_local", "qb0", "uk_ctas")
"""Options of a build alone: no result depends on them."""


def mini_case(launch: str, **options: Any) -> Case:
    """A case at test size; `blocks` sets the number of CTAs."""
    geometry = Geometry.mini()
    if blocks := options.pop("blocks", None):
        geometry = replace(geometry, blocks=blocks)
    return k3lab.make_case(launch, geometry=geometry, **options)


@cache
def twin_of(launch: str, options: frozenset[tuple[str, Any]]) -> Mapping[str, torch.Tensor]:
    """The kernel-order twin's exposed tensors for a case of the default build: knobs must not matter."""
    return k3lab.run(launch, mini_case(launch, **dict(options))).values


def exposed(case: Case, options: Options | None = None, dumps: bool = True) -> dict[str, torch.Tensor]:
    """What one launch on `case` leaves, by name."""
    buffers = Buffers.of(case.declaration, replace(case.key, dumps=dumps), case.ranks[0])
    simulated(buffers, options)
    return buffers.exposed()


def differences(got: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> list[str]:
    """A line for each tensor that differs: NaN equals NaN, -0.0 is not 0.0."""
    lines = []
    for name, value in got.items():
        other = wanted[name].to(value.dtype)
        assert value.shape == other.shape, f"{name}: {tuple(value.shape)}, not {tuple(other.shape)}"
        differ = _bits(value) != _bits(other)
        if value.is_floating_point():
            differ &= ~(value.isnan() & other.isnan())
        if differ.any():
            index = tuple(differ.nonzero()[0].tolist())
            lines.append(f"{name}{list(index)}: {value[index]} not {other[index]} ({int(differ.sum())} elements)")
    return lines


def _bits(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().view(torch.int32) if value.dtype == torch.float32 else value


def faults_of(case: Case, sim: Options | None = None) -> list[str]:
    """Where the kernel differs from the twin on `case`."""
    return differences(exposed(case, sim), k3lab.run(case.launch, case).values)


def with_tensors(case: Case, **tensors: torch.Tensor) -> Case:
    """`case` with some tensors replaced."""
    return replace(case, tensors={**case.tensors, **tensors})


def faults(launch: str, sim: Options | None = None, restride: Any = None, **options: Any) -> list[str]:
    """Where the kernel differs from the twin for a mini case with `options`; nothing exposed may be missing."""
    case = mini_case(launch, **options)
    if restride is not None:
        case = replace(case, tensors={**case.tensors, **restride(case.tensors)})
    twin = twin_of(launch, frozenset((k, v) for k, v in options.items() if k not in BUILD))
    got = exposed(case, sim)
    missing = set(twin) - set(got) - ({"WGT"} if options.get("gate_local") else set())
    return [f"missing: {name}" for name in sorted(missing)] + differences(got, twin)
