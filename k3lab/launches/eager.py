"""Runs a launch's twins: its stages in order, on every rank, in eager torch, on tensors as they are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from k3lab import formats
from k3lab.arith import Arith
from k3lab.formats.tensor import bf16_values
from k3lab.launches.declaration import Launch, Stage
from k3lab.launches.key import LaunchKey
from k3lab.rounding import Passed, Probe
from k3lab.stages.tensors import Tensors, Written

Rank = Mapping[str, torch.Tensor]


def run_twins(
    launch: Launch,
    key: LaunchKey,
    ranks: Sequence[Rank],
    arith: Arith,
    device: str = "cpu",
    handed: Sequence[Rank] = (),
) -> tuple[list[Written], dict[str, list[Passed]]]:
    """Every rank's exposed tensors, and what every rounding point saw, of one run on `ranks` (never changed).

    A stage that reads the same tensor objects on several ranks runs once for all of them.

    Args:
        handed: by rank, inputs as the twin of an earlier launch left them, to be taken in place of stored ones.
    """
    held = lifted(launch, ranks, arith.dtype, device)
    for values, given in zip(held, handed, strict=False):
        values.update(given)
    written: set[str] = set()
    with Probe(record=f"{launch.name}.*", keep=True, stats=False) as seen:
        for stage in launch.stages:
            made = _on_every_rank(stage, arith, held, key)
            for values, new in zip(held, made, strict=True):
                values.update(new)
            written |= set(made[0])
    names = [name for name in launch.exposed if name in written]
    return [{name: values[name] for name in names} for values in held], seen.values


def run_twin(stage: Stage, arith: Arith, values: Rank, key: LaunchKey) -> Written:
    """One stage's twin on the `values` it reads; returns what it writes, by the launch's names.

    Raises:
        AssertionError: when the twin writes a name its declaration does not list.
    """
    made = stage.twin(arith, Tensors(values, stage.reads), key)
    made = {stage.named.get(name, name): value for name, value in made.items()}
    undeclared = set(made) - set(stage.writes)
    if undeclared:
        raise AssertionError(f"stage {stage.name} wrote {sorted(undeclared)}, which its declaration does not list")
    return made


def _on_every_rank(stage: Stage, arith: Arith, held: Sequence[Rank], key: LaunchKey) -> list[Written]:
    gathered = {name: torch.stack([values[name] for values in held]) for name in stage.gathers}
    done: dict[tuple[int, ...], Written] = {}
    made = []
    for values in held:
        read = {**{name: values[name] for name in stage.reads if name in values}, **gathered}
        same = tuple(id(value) for value in read.values())
        if same not in done:
            done[same] = run_twin(stage, arith, read, key)
        made.append(done[same])
    return made


def lifted(
    launch: Launch, ranks: Sequence[Rank], dtype: torch.dtype, device: str = "cpu"
) -> list[dict[str, torch.Tensor]]:
    """Stored tensors as a twin computes with them: floats exactly in `dtype`, integers and packed bytes as they are."""
    once: dict[int, torch.Tensor] = {}  # a tensor that ranks share is lifted once, and stays shared

    def lift(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in once:
            once[id(tensor)] = lifted_tensor(launch, name, tensor.to(device), dtype)
        return once[id(tensor)]

    return [{name: lift(name, tensor) for name, tensor in tensors.items()} for tensors in ranks]


def lifted_tensor(launch: Launch, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The stored input `name` in `dtype`, exactly."""
    stored = launch.input(name).dtype
    if stored == "bf16":
        return bf16_values(tensor).to(dtype)  # by bits, so that a NaN payload that is only copied survives
    if stored == "fp8_e4m3":
        values = torch.from_numpy(formats.FP8_E4M3.decode(tensor.cpu().numpy()))
        return values.to(tensor.device, dtype)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
