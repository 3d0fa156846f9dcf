"""What is timed on a case: our kernel in both builds, torch in three ways, and public kernels of a part."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from k3lab.backends.cuda.device import Launcher
from k3lab.backends.cuda.replay import Step
from k3lab.bench.baselines import BASELINES, fla, prepared
from k3lab.bench.baselines.k1 import recurrence, unit
from k3lab.bench.check import MARGIN_DB, Reference, checked, values_of
from k3lab.bench.clock import Call, Clock, nothing
from k3lab.bench.result import OURS, TORCH_GRAPH, Row, decibels
from k3lab.bench.samples import Samples
from k3lab.bench.sets import Rotation, weight_bytes
from k3lab.bench.tune import knobs_of
from k3lab.cases.case import Case
from k3lab.errors import BackendUnavailable, InternalFault, K3LabError
from k3lab.geometry import HEAD_DIM
from k3lab.kernels import peers
from k3lab.kernels.host import Buffers
from k3lab.launches import LaunchKey
from k3lab.stats import error_stats

REPEATS = 50
COMPILE_MODES = ("max-autotune-no-cudagraphs", "default")
"""Of torch.compile: kernels chosen by measuring them, and by rule, which are quicker at times; the graph is ours, so
that the sets can rotate."""
BF16_DB = -20 * math.log10(2.0**-7 / math.sqrt(12))
"""Least signal to noise of one bf16 rounding: an ulp is at most 2^-7 of the value, its error's rms 1 / sqrt(12) ulp."""


@dataclass(frozen=True)
class Job:
    """A case to time.

    Attributes:
        key: of our kernel's build: the case's with knobs chosen.
        against: None where outputs are not to be looked at.
    """

    case: Case
    key: LaunchKey
    rotation: Rotation
    against: Reference | None
    clock: Clock
    repeats: int = REPEATS


class Subject(Protocol):
    """One way to do a launch's work."""

    @property
    def name(self) -> str: ...

    @property
    def about(self) -> str: ...

    def row(self, job: Job) -> Row:
        """Time it, or raise a K3LabError that says why not."""


def timed(subject: Subject, job: Job) -> Row:
    """The subject's row; one that cannot be timed says why."""
    try:
        return subject.row(job)
    except K3LabError as error:
        return Row(subject.name, subject.about, note=str(error))


@dataclass(frozen=True)
class Kernel:
    """The launch, translated for this GPU."""

    fast: bool = True

    @property
    def name(self) -> str:
        return f"{OURS}, {'fast' if self.fast else 'exact'} build"

    @property
    def about(self) -> str:
        how = "tensor cores, approximate exp2, rsq and quotients" if self.fast else "the twin's bits, no speed meant"
        return f"one launch: {how}"

    def row(self, job: Job) -> Row:
        step, kernel = _step(job, self.fast)
        step.put(0)  # its inputs are still the case's
        job.clock.wait()
        values = [values_of(job.case, held.tensors) for held in step.sets[0]]
        samples, mode, note = timed_step(job, step)
        return Row(
            self.name,
            self.about,
            mode,
            samples.seconds,
            samples.launches,
            note,
            knobs=knobs_of(job.key),
            weights=weight_bytes(job.case),
            kernel=kernel,
            **_looked_at(job, values),
        )


def timed_step(job: Job, step: Step) -> tuple[Samples, str, str]:
    """A step's launches in a graph; where none can be captured, in a queue that is filled first. Mode, and why."""
    calls: list[Call] = [partial(step.put, number) for number in range(step.launches)]
    try:
        return job.clock.graph(calls, job.repeats, step.advance), "graph", ""
    except (InternalFault, RuntimeError) as error:
        note = f"not captured in a graph ({_first_line(error)}): launches in a queue that was full before the first ran"
        return job.clock.calls(calls, job.repeats, step.advance, queued=True), "stream", note


def median_of(job: Job, key: LaunchKey) -> float:
    """Seconds of a launch of the fast build with `key`.

    Raises:
        K3LabError: when the build is not to be had, or does not fit.
    """
    step, _ = _step(replace(job, key=key), fast=True)
    return timed_step(job, step)[0].median


def _step(job: Job, fast: bool) -> tuple[Step, dict[str, int]]:
    """The launches of the job's build on its sets, and what the kernel takes."""
    case = job.case
    ranks = [Buffers.of(case.declaration, job.key, tensors) for tensors in case.ranks]
    if case.declaration.peers(job.key):
        peers.join(ranks)
    launcher = Launcher(ranks, job.clock.device, fast=fast)
    made = launcher.kernel
    took = {"registers": made.registers, "spilled": made.spilled, "shared": made.source.shared, "blocks": made.blocks}
    return Step(launcher, job.rotation.sets, job.rotation.launches), took


@dataclass(frozen=True)
class Torch:
    """The same work in torch: `eager`, `graph` (eager in a CUDA graph) or `compiled` (torch.compile, then a graph)."""

    how: str
    mode: str = COMPILE_MODES[0]

    @property
    def name(self) -> str:
        compiled = f"torch.compile {self.mode.removesuffix('-no-cudagraphs')}, graph"
        return {"eager": "torch, eager", "graph": TORCH_GRAPH, "compiled": compiled}[self.how]

    @property
    def about(self) -> str:
        return {
            "eager": "calls from Python as they come",
            "graph": "the eager calls, captured",
            "compiled": f"one compiled function ({self.mode}), captured",
        }[self.how]

    def row(self, job: Job) -> Row:
        case, device = job.case, job.clock.device
        sets = [prepared(case, device) for _ in range(job.rotation.sets)]
        run = self._function(case)
        try:
            made = run(sets[0])
        except K3LabError:
            raise
        except Exception as error:  # whatever a compiler may raise ends in this row alone
            raise BackendUnavailable(f"{self.name}: {type(error).__name__}: {_first_line(error)}") from None
        job.clock.wait()
        values = [values_of(case, {**held, **new}) for held, new in zip(sets[0], made, strict=True)]
        calls: list[Call] = [partial(run, sets[number % len(sets)]) for number in range(job.rotation.launches)]
        time = job.clock.calls if self.how == "eager" else job.clock.graph
        samples = time(calls, job.repeats, nothing)
        names = BASELINES[case.launch].weights
        weights = sum(held[name].numel() * held[name].element_size() for held in sets[0] for name in names)
        mode = "stream" if self.how == "eager" else "graph"
        found = _looked_at(job, values)
        return Row(self.name, self.about, mode, samples.seconds, samples.launches, weights=weights, **found)

    def _function(self, case: Case) -> Callable[..., Any]:
        step, key = BASELINES[case.launch].step, case.key
        if self.how != "compiled":
            return partial(step, key)
        torch.compiler.reset()  # other sizes' functions would count towards the compiler's limit
        return torch.compile(lambda ranks: step(key, ranks), fullgraph=True, dynamic=False, mode=self.mode)


PART = "recurrence with its l2 norms"


@dataclass(frozen=True)
class Recurrence:
    """The recurrence of K1 alone: in torch, or by the public kernel."""

    public: bool

    @property
    def name(self) -> str:
        return f"part: {fla.NAME}" if self.public else "part: the same in torch, graph"

    @property
    def about(self) -> str:
        kept = "one final state a request, in its own layout" if self.public else "a state a token, as K1 keeps them"
        return f"{PART}; {kept}"

    def row(self, job: Job) -> Row:
        run = fla.kernel() if self.public else None
        key, device = job.key, job.clock.device
        drawn = [fla.drawn(key, seed, device) for seed in range(job.rotation.sets)]
        held = [self._states(job.case, device) for _ in drawn]
        calls = [partial(self._once, run, key, *pair) for pair in zip(drawn, held, strict=True)]
        got = calls[0]().float().cpu()
        job.clock.wait()
        rotated: list[Call] = [calls[number % len(calls)] for number in range(job.rotation.launches)]
        samples = job.clock.graph(rotated, job.repeats, nothing)
        wide = {name: tensor.double().cpu() for name, tensor in drawn[0].items()}
        exact = _in_torch(key, wide, self._exact_states(job.case))
        snr = error_stats(exact, got.double(), "bf16").snr_db
        return Row(
            self.name,
            self.about,
            "graph",
            samples.seconds,
            samples.launches,
            part=PART,
            snr={"o": decibels(snr)},
            fine=snr >= BF16_DB - MARGIN_DB,
        )

    def _exact_states(self, case: Case) -> dict[str, torch.Tensor]:
        (ready,) = prepared(case, "cpu")
        return {"rstate": ready["rstate"].double(), "first": ready["first"], "targets": ready["targets"]}

    def _states(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        (ready,) = prepared(case, device)
        if not self.public:
            return {name: ready[name] for name in ("rstate", "first", "targets")}
        return {"state": ready["rstate"].index_select(0, ready["first"]).mT.contiguous()}

    def _once(self, run: Any, key: Any, inputs: Mapping[str, torch.Tensor], held: Mapping[str, torch.Tensor]) -> Any:
        if run is None:
            return _in_torch(key, inputs, held).bfloat16()
        return fla.part(run, inputs, held["state"])


def _in_torch(key: Any, inputs: Mapping[str, torch.Tensor], held: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The part by the baseline's own functions, in the dtype of the states."""
    wide = held["rstate"].dtype
    q, k = unit(inputs["q"].to(wide)) * HEAD_DIM**-0.5, unit(inputs["k"].to(wide))
    return recurrence(held, inputs["g"].exp().to(wide), inputs["beta"].to(wide), q, k, inputs["v"].to(wide))


def _looked_at(job: Job, values: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
    """What a row says of its outputs."""
    if job.against is None:
        return {}
    found = checked(job.against, values)
    return {"snr": {name: decibels(snr) for name, snr in found.snr.items()}, "fine": found.fine}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def subjects(launch: str, without: Sequence[str] = (), modes: Sequence[str] = COMPILE_MODES) -> list[Subject]:
    """Everything that is timed of a launch, but for `without`: `exact`, `eager`, `graph`, `compile`, `parts`."""
    made: dict[str, list[Subject]] = {
        "fast": [Kernel()],
        "exact": [Kernel(fast=False)],
        "graph": [Torch("graph")],
        "compile": [Torch("compiled", mode) for mode in modes],
        "eager": [Torch("eager")],
        "parts": [Recurrence(public=False), Recurrence(public=True)] if launch == "k1" else [],
    }
    return [subject for name, some in made.items() if name not in without for subject in some]
