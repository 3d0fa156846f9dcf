"""What a run leaves behind: every exposed tensor by name, rounding point values, provenance."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from k3lab import __version__
from k3lab.cases.case import Case
from k3lab.errors import BadInput
from k3lab.launches import Launch, LaunchKey
from k3lab.rounding import Passed
from k3lab.sim.clock.record import Modelled
from k3lab.sim.record.traffic import Traffic


@dataclass(frozen=True)
class Run:
    """One execution of a launch on a case.

    Attributes:
        ranks: by rank, exposed tensors by name (outputs, regions in capitals, locals), in the run's working dtype: fp32
            values that fit their storage format, or float64 for the oracle. Ranks may share a tensor object.
        points: by full point name, the values before and after narrowing, one for each time the point was passed; empty
            where a kernel ran, whose narrowings show in its tensors alone.
        seconds: wall time of the execution on this host (measured).
        provenance: versions, backend, device, key, case hash, order, MFMA model, probes; of a kernel's run the build,
            and how it was simulated.
        rank_stamps: by live rank, time stamps [BLOCKS, points] int64 of a timeline build, 0 where a CTA did not pass.
            With a modelled clock they are ticks of modelled time, 100 MHz; the simulator's clock without one stands
            still while any wave has work to do.
        clock: of a simulation with a modelled clock, every wave's modelled time and who waited for whom; else None.
        traffic: of a simulation that counts, bytes and matrix operations by stage and buffer; else None.
        stages: names of the stages that ran, in order; None: all.
        live: numbers of the ranks that ran; None: all. Of any other, `ranks` has only the words that were sent to it.
    """

    case: Case
    backend: str
    order: str
    mfma: str
    device: str
    ranks: Sequence[Mapping[str, torch.Tensor]]
    points: Mapping[str, Sequence[Passed]]
    seconds: float
    provenance: Mapping[str, Any]
    rank_stamps: Sequence[torch.Tensor] = field(default=())
    stages: tuple[str, ...] | None = None
    live: tuple[int, ...] | None = None
    clock: Modelled | None = None
    traffic: Traffic | None = None

    @property
    def launch(self) -> Launch:
        return self.case.declaration

    @property
    def key(self) -> LaunchKey:
        return self.case.key

    @property
    def values(self) -> Mapping[str, torch.Tensor]:
        """The first live rank's exposed tensors: rank 0's, but where others run alone."""
        return self.ranks[self.live[0] if self.live else 0]

    def distinct(self, name: str) -> list[tuple[int, torch.Tensor]]:
        """The exposed tensor `name` of every rank that has it, as (rank, value); one object of several counts once."""
        seen: dict[int, tuple[int, torch.Tensor]] = {}
        for rank, values in enumerate(self.ranks):
            if name in values:
                seen.setdefault(id(values[name]), (rank, values[name]))
        return list(seen.values())

    @property
    def stamps(self) -> torch.Tensor | None:
        """The first live rank's time stamps [BLOCKS, points], if the build keeps any, in `launch.stamps`' order."""
        return self.rank_stamps[0] if self.rank_stamps else None

    @property
    def outputs(self) -> dict[str, torch.Tensor]:
        return {name: self.values[name] for name in self.launch.outputs if name in self.values}

    @property
    def regions(self) -> dict[str, torch.Tensor]:
        return {r.name: self.values[r.name] for r in self.launch.regions if r.name in self.values}

    @property
    def locals(self) -> dict[str, torch.Tensor]:
        return {local.name: self.values[local.name] for local in self.launch.locals if local.name in self.values}

    def __getitem__(self, name: str) -> torch.Tensor:
        """The exposed tensor called `name` in `values`.

        Raises:
            BadInput: listing the names when there is none.
        """
        if name not in self.values:
            raise BadInput(f"run of {self.launch.name}: expected one of {list(self.values)}, got {name!r}.")
        return self.values[name]

    def __repr__(self) -> str:
        key = self.key
        stages = f"stages={'+'.join(self.stages)}, " if self.stages else ""
        stages += f"live={list(self.live)} of {len(self.ranks)}, " if self.live is not None else ""
        return (
            f"Run({self.launch.name}, {stages}backend={self.backend}, order={self.order}, mfma={self.mfma}, "
            f"device={self.device}, S={key.tokens}, geometry={key.geometry.name}, {self.seconds:.2f} s measured)"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{name}</td><td>{tuple(value.shape)}</td><td>{str(value.dtype).removeprefix('torch.')}</td></tr>"
            for name, value in self.values.items()
        )
        return f"<p><b>{self!r}</b></p><table><tr><th>tensor</th><th>shape</th><th>held as</th></tr>{rows}</table>"


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    return {
        "k3lab": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def device_name(device: str) -> str:
    """The device a run used, as the system names it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({platform.processor() or platform.machine()}, {torch.get_num_threads()} torch threads)"
