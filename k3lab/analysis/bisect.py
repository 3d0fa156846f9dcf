"""`bisect`: the first stage of a launch whose kernel differs from its twin, each run alone on exact inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import torch

from k3lab import formats
from k3lab.analysis.compare import alike, label, raw_elements
from k3lab.analysis.ends import own_ranks, tensor_format
from k3lab.analysis.words import plural
from k3lab.backends import Run, run, run_stage
from k3lab.backends.session import KERNELS, check_kernel
from k3lab.cases.case import Case
from k3lab.errors import InternalFault, expect
from k3lab.kernels.host import written
from k3lab.launches import get

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Element:
    """The first element of a tensor that differs, with both values.

    Attributes:
        got, want: the kernel's value and the twin's; `got_bits`, `want_bits` their bits in hexadecimal.
        format: the format these bits are of: the tensor's own, or fp32 where a value does not fit that.
        ulps: steps of the format from one value to the other; None where one is NaN.
        differ, count: elements of the tensor that differ, and all of them.
    """

    tensor: str
    rank: int
    index: tuple[int, ...]
    got: float
    want: float
    got_bits: str
    want_bits: str
    format: str
    ulps: int | None
    differ: int
    count: int

    def __str__(self) -> str:
        rank = f" of rank {self.rank}" if self.rank else ""
        apart = f"{self.ulps} ulp apart" if self.ulps is not None else "not comparable in ulp"
        return (
            f"{self.tensor}{list(self.index)}{rank}: kernel {self.got!r} ({self.got_bits}), twin {self.want!r} "
            f"({self.want_bits}), {apart} in {self.format}; {self.differ} of {self.count} values differ"
        )


@dataclass(frozen=True)
class StageCheck:
    """Stages that ran in one build, what they wrote (elements by tensor), and what went wrong.

    Attributes:
        elements: the first element that differs, of every tensor that has one.
        stopped: the sentence of a fault that ended the run; empty if none did.
    """

    stages: tuple[str, ...]
    tensors: Mapping[str, int]
    elements: tuple[Element, ...] = ()
    stopped: str = ""

    @property
    def name(self) -> str:
        return "+".join(self.stages)

    @property
    def equal(self) -> bool:
        """Whether all it wrote is the twin's, bit for bit."""
        return not self.elements and not self.stopped

    @property
    def outcome(self) -> str:
        """What came of it, in a sentence without its end."""
        if self.stopped:
            return f"stopped: {self.stopped.rstrip('.')}"
        if self.elements:
            return "; ".join(str(element) for element in self.elements)
        return f"equal to the twin in {', '.join(self.tensors)} ({sum(self.tensors.values())} values)"


@dataclass(frozen=True)
class Bisection:
    """Stages of a launch one after the other, up to the first whose kernel is not its twin.

    Attributes:
        against: what was run, in a few words; `case` its inputs.
        checks: one a stage that ran, in order.
    """

    launch: str
    against: str
    case: str
    checks: Sequence[StageCheck]

    @property
    def fault(self) -> StageCheck | None:
        """The first stage that is not its twin; None when all are."""
        return next((check for check in self.checks if not check.equal), None)

    @property
    def equal(self) -> bool:
        """Whether every stage equals its twin, bit for bit."""
        return self.fault is None

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        if self.fault is None:
            return f"{self.launch}: {plural(len(self.checks), 'stage')}, each equal to its twin bit for bit."
        if self.fault.stopped:
            return f"{self.launch}: stage {self.fault.name} is the first that fails."
        return f"{self.launch}: stage {self.fault.name} is the first that differs, at {self.fault.elements[0]}."

    def __repr__(self) -> str:
        lines = [f"{check.name}: {check.outcome}" for check in self.checks]
        return "\n".join([f"{self.against}; {self.case}", *(f"  {line}" for line in lines), self.verdict])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{check.name}</td><td>{'yes' if check.equal else '<b>no</b>'}</td>"
            f"<td>{escape(check.outcome)}</td></tr>"
            for check in self.checks
        )
        head = "<tr><th>stage</th><th>equal</th><th>what came of it</th></tr>"
        about = escape(f"{self.against}; {self.case}")
        return f"<p><b>{escape(self.verdict)}</b></p><p>{about}</p><table>{head}{rows}</table>"


def bisect(
    launch: str,
    case: Case,
    backend: str = "sim",
    mfma: str = "fused",
    sim: Any = None,
    progress: Progress = lambda what: None,
    **cuda: Any,
) -> Bisection:
    """Run a launch's stages one by one, each on the twin's inputs, until one does not give the twin's bits.

    Args:
        backend: one that runs kernels: `sim`, `gfx950`, `cuda`.
        sim: how to simulate, as in `run`.
        progress: called with the stage that is about to run.
        cuda: `live`, `build` and `gpus`, as in `run`.

    Raises:
        BadInput: as `run` does.
        BackendUnavailable: as `run` does.
    """
    expect(backend in KERNELS, "backend", f"one that runs kernels: {', '.join(KERNELS)}", repr(backend))
    check_kernel(get(launch), backend, None, sim, mfma)
    twin = run(launch, case, mfma=mfma)
    checks: list[StageCheck] = []
    against = ""
    for stages in units(case):
        progress("+".join(stages))
        check, made = check_stages(case, twin, stages, backend, mfma, sim, **cuda)
        checks.append(check)
        against = against or (label(made) if made else backend)
        if not check.equal:
            break
    return Bisection(launch, f"{launch}, {against}, stage by stage", repr(case), checks)


def check_stages(
    case: Case, twin: Run, stages: tuple[str, ...], backend: str, mfma: str = "fused", sim: Any = None, **cuda: Any
) -> tuple[StageCheck, Run | None]:
    """Stages in one build against the twin; and their run, unless a fault ended it."""
    try:
        made = run_stage(case.launch, case, backend, stages=stages, mfma=mfma, sim=sim, **cuda)
    except InternalFault as fault:
        return StageCheck(stages, {}, stopped=str(fault)), None
    counts = {name: value.numel() for name, value in made.values.items()}
    return StageCheck(stages, counts, tuple(first_elements(made, twin))), made


def units(case: Case) -> list[tuple[str, ...]]:
    """Stages to run in a build each; one whose result stays inside a CTA in this build runs with the next."""
    launch = case.declaration
    found: list[tuple[str, ...]] = []
    waiting: tuple[str, ...] = ()
    for stage in launch.stages:
        waiting = (*waiting, stage.name)
        if written(launch, case.key, waiting) & set(launch.exposed):
            found.append(waiting)
            waiting = ()
    return found


def first_elements(made: Run, twin: Run) -> Iterator[Element]:
    """Of every tensor of `made` that is not the twin's, the first element that differs."""
    for name in made.values:
        for rank, got in own_ranks(made, name):
            want = twin.ranks[rank][name]
            differs = ~alike(got, want, raw_elements(made, name, rank))
            if differs.any():
                index = tuple(int(i) for i in differs.nonzero()[0])
                shown = _held(got[index], want[index], tensor_format(made, name))
                yield Element(name, rank, index, **shown, differ=int(differs.sum()), count=got.numel())
                break


def _held(got: torch.Tensor, want: torch.Tensor, fmt: str) -> dict[str, Any]:
    """Both values with their bits in `fmt`, or in fp32 where one does not fit `fmt`."""
    if not got.is_floating_point():
        values = {"got": int(got), "want": int(want)}
        bits = {f"{name}_bits": hex(value) for name, value in values.items()}
        return {**values, **bits, "format": fmt, "ulps": abs(values["got"] - values["want"])}
    words = torch.stack([got.float(), want.float()])
    codes, width = _codes(words, fmt)
    if codes is None:
        fmt, (codes, width) = "fp32", _codes(words, "fp32")
    assert codes is not None
    steps = [_ordinal(code, width) for code in codes]
    return {
        "got": got.item(),
        "want": want.item(),
        "got_bits": f"0x{codes[0]:0{width // 4}x}",
        "want_bits": f"0x{codes[1]:0{width // 4}x}",
        "format": fmt,
        "ulps": None if words.isnan().any() else abs(steps[0] - steps[1]),
    }


def _codes(values: torch.Tensor, fmt: str) -> tuple[list[int] | None, int]:
    """The two values' bits in a format and its width; None where a value does not fit it."""
    words = [int(word) & 0xFFFFFFFF for word in values.view(torch.int32)]
    if fmt == "fp32":
        return words, 32
    if fmt == "bf16":
        return (None if any(word & 0xFFFF for word in words) else [word >> 16 for word in words]), 16
    format_ = formats.get(fmt)
    assert isinstance(format_, formats.FloatFormat)
    codes = format_.encode(values.numpy())
    fits = torch.equal(torch.from_numpy(format_.decode(codes)).nan_to_num(0.0), values.nan_to_num(0.0))
    return ([int(code) for code in codes] if fits else None), format_.bits


def _ordinal(code: int, width: int) -> int:
    """A sign-and-magnitude code's place on the line of numbers; both zeros one step apart."""
    sign = 1 << (width - 1)
    return -(code - sign) - 1 if code & sign else code
