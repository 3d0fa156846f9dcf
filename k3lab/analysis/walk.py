"""A case walked through stage by stage: kernel, twin and oracle beside each other, for notebooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from k3lab import formats
from k3lab.analysis.compare import alike, raw_elements
from k3lab.analysis.sources import function_text
from k3lab.arith import make
from k3lab.backends import run as run_backend
from k3lab.backends import run_stage
from k3lab.cases import Case
from k3lab.formats.tensor import round_tensor
from k3lab.launches.declaration import Stage
from k3lab.launches.eager import lifted, run_twin
from k3lab.stages.tensors import Written

Part = Callable[[torch.Tensor], torch.Tensor]
SHOWN = 4  # values of a row


@dataclass(frozen=True)
class Markdown:
    """Text that a notebook renders."""

    text: str

    def _repr_markdown_(self) -> str:
        return self.text


@dataclass(frozen=True)
class StageError:
    """Relative rms error of a tensor: what its stage adds to exact inputs, and what has built up in the kernel."""

    adds: float
    built_up: float


class StageErrors(dict[str, StageError]):
    """By name of what a stage writes."""

    def __str__(self) -> str:
        return "\n".join(f"   {name:11} adds {e.adds:.2e}, built up {e.built_up:.2e}" for name, e in self.items())


class Walk:
    """Three runs of one case, and what a stage of it does.

    Attributes:
        kernel, twin, oracle: the runs, with all that they expose.
    """

    def __init__(self, case: Case, backend: str = "sim", parts: Mapping[str, Part] | None = None) -> None:
        """Run `case` three times.

        Args:
            parts: by name, what of a tensor its errors are counted on; all, where it is not named.

        Raises:
            BadInput, BackendUnavailable: as `k3lab.run` does.
        """
        self.case, self.launch, self.backend = case, case.declaration, backend
        self.kernel = run_backend(case.launch, case, backend=backend, dumps=True)
        self.twin = run_backend(case.launch, case)
        self.oracle = run_backend(case.launch, case, backend="oracle")
        self._parts = dict(parts or {})

    def same(self, name: str) -> bool:
        """Whether the kernel's tensor is the twin's, bit for bit and on every rank."""
        having = [rank for rank, values in enumerate(self.kernel.ranks) if name in values]
        return all(self._alike(name, rank).all() for rank in having)

    def agreement(self) -> str:
        """A line for each tensor of each rank: how many of its elements are the twin's."""
        several, lines = len(self.kernel.ranks) > 1, []
        for rank, values in enumerate(self.kernel.ranks):
            for name, value in values.items():
                count = int(self._alike(name, rank).sum())
                lead = f"rank {rank}  " if several else ""
                kept = self.launch.format_of(name, self.case.key)
                lines.append(
                    f"{lead}{name:11} {tuple(value.shape)!s:22} {kept:9} {count:8} of {value.numel():8} elements equal"
                )
        return "\n".join(lines)

    def text(self, stage: str, *places: str) -> Markdown:
        """A stage's twin, then functions of its kernel, as `function_text` names them."""
        declared = self.launch.stage(stage)
        folder = declared.folder.replace(".", "/")
        parts = [f"**{stage}, the twin** (`{folder}/twin.py`)", _code(inspect.getsource(declared.twin))]
        if places:
            parts.append(f"**{stage}, the kernel** (`{folder}/`: {', '.join(f'`{place}`' for place in places)})")
        parts += [_code(function_text(self.launch, stage, place)) for place in places]
        return Markdown("\n\n".join(parts))

    def function(self, place: str) -> Markdown:
        """A function of k3lab, `k3lab.device.narrow:even_code`."""
        return Markdown(_code(function_text(self.launch, self.launch.stages[0].name, place)))

    def beside(self, name: str, *index: int, rank: int = 0) -> str:
        """The first values of one row of a tensor: kernel, twin, oracle."""
        lead = f"rank {rank}: " if len(self.kernel.ranks) > 1 else ""
        lines = [f"{lead}{name}{list(index)}"]
        for label, run in (("kernel", self.kernel), ("twin", self.twin), ("oracle", self.oracle)):
            row = run.ranks[rank][name][index].flatten()[:SHOWN]
            lines.append(f"   {label:7}" + "".join(f"{float(value):>18.9g}" for value in row))
        return "\n".join(lines)

    def errors(self, stage: str) -> StageErrors:
        """Of rank 0: what a stage adds to the oracle's values as a kernel would hold them, and what has built up."""
        declared = self.launch.stage(stage)
        made, exact = (self._alone(declared, order) for order in ("kernel", "oracle"))
        return StageErrors(
            {
                name: StageError(
                    self._relative(name, value, exact[name]),
                    self._relative(name, self.kernel[name], self.oracle[name]),
                )
                for name, value in made.items()
            }
        )

    def alone(self, stage: str) -> list[str]:
        """Names of what a stage's kernel writes when it runs alone on exact inputs.

        Raises:
            AssertionError: when any of it is not the twin's, bit for bit.
        """
        run = run_stage(f"{self.case.launch}.{stage}", self.case, backend=self.backend)
        for rank, values in enumerate(run.ranks):
            for name, value in values.items():
                same = alike(value, self.twin.ranks[rank][name], raw_elements(run, name, rank)).all()
                assert same, f"rank {rank}: {name} of {stage} is not the twin's"
        return list(run.values)

    def _relative(self, name: str, value: torch.Tensor, true: torch.Tensor) -> float:
        part = self._parts.get(name, lambda whole: whole)
        return relative(part(value), part(true))

    def _alike(self, name: str, rank: int) -> torch.Tensor:
        wanted = self.twin.ranks[rank][name]
        return alike(self.kernel.ranks[rank][name], wanted, raw_elements(self.kernel, name, rank))

    def _alone(self, stage: Stage, order: str) -> Written:
        """What the stage's twin makes on rank 0."""
        arith = make(order, self.case.launch)
        ranks = lifted(self.launch, self.case.ranks, arith.dtype)
        for values, true in zip(ranks, self.oracle.ranks, strict=True):
            others = {name: value for name, value in true.items() if name not in stage.writes}
            values |= {name: self._stored(name, value).to(arith.dtype) for name, value in others.items()}
        read: dict[str, torch.Tensor] = {name: ranks[0][name] for name in stage.reads if name in ranks[0]}
        read |= {name: torch.stack([values[name] for values in ranks]) for name in stage.gathers}
        return run_twin(stage, arith, read, self.case.key)

    def _stored(self, name: str, value: torch.Tensor) -> torch.Tensor:
        """The oracle's value as a kernel would hold it."""
        kept = self.launch.format_of(name, self.case.key)
        return value.float() if kept == "fp32" else round_tensor(formats.parse(kept), value).float()


def relative(value: torch.Tensor, true: torch.Tensor) -> float:
    """Rms of the difference over the rms of the true values."""
    return float((value.double() - true).square().mean().sqrt() / true.double().square().mean().sqrt())


def _code(text: str) -> str:
    return f"```python\n{text.rstrip()}\n```"
