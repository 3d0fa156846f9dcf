"""Half-layers in a row: K1, or M1a and a decode attention, then K2a, on twins or in the simulator.

    case = k3lab.make_chain("kda", geometry="mini")
    kernels = k3lab.run_chain("kda", case, backend="sim")
    twins = k3lab.run_chain("kda", case)
    kernels.differing(twins)  # {}: equal bit for bit, in every exposed tensor of both launches and every rank

A decode attention is torch's, so this is above the backends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from k3lab.analysis.attention import decode_attention
from k3lab.analysis.chain_run import ChainRun
from k3lab.backends import sim as simulator
from k3lab.backends.half_layer import HalfLayerMemory, Values
from k3lab.backends.run import Run, device_name, versions
from k3lab.backends.session import check_kernel
from k3lab.backends.twin import TWINS, run_twin_backend
from k3lab.cases.case import Case
from k3lab.cases.chain import ChainCase
from k3lab.cases.make import stored
from k3lab.errors import BackendUnavailable, InternalFault, expect
from k3lab.kernels.lowered import flydsl_version
from k3lab.launches.chain import FIRST_SLOT, LAST_SLOT, half_layer
from k3lab.sim.options import Options

BACKENDS = (*TWINS, "sim")


def run_chain(
    kind: str,
    case: ChainCase,
    backend: str = "twin",
    order: str = "kernel",
    mfma: str = "fused",
    device: str | None = None,
    sim: Options | None = None,
    dumps: bool | None = None,
) -> ChainRun:
    """Run a half-layer of `kind` once, as epoch 1; the case is never changed. Arguments and errors as in `k3lab.run`.

    In the simulator the launches share memory: a KDA layer's two launches run on all ranks in one simulation. A decode
    attention is computed in torch, on what M1a left.
    """
    layer = half_layer(kind)
    expect(isinstance(case, ChainCase), "case", "a k3lab.ChainCase", type(case).__name__)
    expect(case.kind == kind, "case", f"inputs of a {kind} layer", f"inputs of a {case.kind} layer")
    if backend not in BACKENDS:
        raise BackendUnavailable(f"backend: expected one that runs a half-layer, of {BACKENDS}, got {backend!r}.")
    if backend == "sim":
        expect(order == "kernel", "order", "'kernel' beside backend='sim'", repr(order))
        return ChainSession(case, mfma=mfma, device=device, sim=sim, dumps=dumps).step()
    expect(sim is None, "sim", "none beside a twin, which is not simulated", "options of the simulator")
    expect(dumps is None, "dumps", "none beside a twin, which exposes every local", repr(dumps))
    case.check()
    first = tuple(run_twin_backend(each, backend, order, mfma, device) for each in case.first)
    timing = {f"{layer.first.name}'s twins": sum(run.seconds for run in first)}
    handed = hand_over(case, first, timing)
    last = run_twin_backend(_after(case, handed), backend, order, mfma, device, handed=handed)
    timing[f"{layer.last.name}'s twins"] = last.seconds
    facts = {**last.provenance, "case": case.describe()}
    return ChainRun(case, backend, {layer.first.name: first, layer.last.name: (last,)}, timing, facts)


class ChainSession:
    """Steps of a half-layer in the simulator, in a row on the same memory.

        session = ChainSession(case)
        first = session.step()  # epoch 1
        second = session.step(another_case_of_the_same_keys)  # epoch 2

    Every step starts from its case's inputs; scratch and peer buffers stay as the step before left them.
    """

    def __init__(
        self,
        case: ChainCase,
        *,
        mfma: str = "fused",
        device: str | None = None,
        sim: Options | None = None,
        dumps: bool | None = None,
    ) -> None:
        """Make the memory of builds for the case's keys; arguments and errors as of `k3lab.Session`."""
        for launch in case.declaration.launches:
            check_kernel(launch, "sim", device, sim, mfma)
        case.check()
        self.case, self.mfma = case, mfma
        self.options = simulator.merged(sim, mfma)
        self.memory = HalfLayerMemory(case, dumps)

    def step(self, case: ChainCase | None = None, epoch: int | None = None) -> ChainRun:
        """Both launches once.

        Args:
            case: the step's inputs; those of the session's case, if None.
            epoch: of the step, the one after the last if None; the first is 1.

        Raises:
            BadInput: for a case with other keys, or an epoch out of range.
            InternalFault: when the simulator finds a fault, or a region's pairs do not carry the launch's tag.
        """
        case = case or self.case
        same = _keys(case) == _keys(self.case)
        expect(same, "case", "inputs of the session's kind, keys and qlen", repr(case))
        case.check()
        self.memory.begin(case, epoch)
        return self._apart(case) if case.declaration.computed else self._joined(case)

    def _joined(self, case: ChainCase) -> ChainRun:
        layer = case.declaration
        done, first, last = self.memory.both(self.options)
        what = f"{layer.first.name} and {layer.last.name}, simulated together"
        runs = self._runs(case.first, first, done, FIRST_SLOT)
        after = _after(case, hand_over(case, runs, {}))
        return self._made(case, runs, self._runs((after,), last, done, LAST_SLOT), {what: done.seconds}, {what: done})

    def _apart(self, case: ChainCase) -> ChainRun:
        layer, computed = case.declaration, case.declaration.computed
        assert computed is not None
        before, after = (f"{launch.name}, simulated" for launch in layer.launches)
        done, left = self.memory.alone(self.memory.first, self.options)
        runs, timing, simulations = (
            self._runs(case.first, left, done, FIRST_SLOT),
            {before: done.seconds},
            {before: done},
        )
        handed = hand_over(case, runs, timing)
        self.memory.put([{computed.target: values[computed.target]} for values in handed])
        done, left = self.memory.alone(self.memory.last, self.options)
        timing[after], simulations[after] = done.seconds, done
        return self._made(case, runs, self._runs((_after(case, handed),), left, done, LAST_SLOT), timing, simulations)

    def _made(
        self,
        case: ChainCase,
        first: tuple[Run, ...],
        last: tuple[Run, ...],
        timing: Mapping[str, float],
        simulations: Mapping[str, simulator.Simulated],
    ) -> ChainRun:
        names = [launch.name for launch in case.declaration.launches]
        facts = {**last[0].provenance, "case": case.describe()}
        return ChainRun(case, "sim", dict(zip(names, (first, last), strict=True)), timing, facts, simulations)

    def _runs(
        self, cases: Sequence[Case], left: Sequence[Values], done: simulator.Simulated, slot: int
    ) -> tuple[Run, ...]:
        """The runs of a launch: `left` is what it left, rank after rank."""
        ranks = self.memory.last if slot == LAST_SLOT else self.memory.first
        stamps = [held for buffers in ranks if (held := buffers.stamps()) is not None]
        made, start = [], 0
        for case in cases:
            mine = slice(start, start + case.key.rank_count)
            facts = self._provenance(case, done, slot)
            start = mine.stop
            made.append(Run(case, "sim", "kernel", self.mfma, "cpu", left[mine], {}, done.seconds, facts, stamps[mine]))
        return tuple(made)

    def _provenance(self, case: Case, done: simulator.Simulated, slot: int) -> dict[str, Any]:
        build = {
            "stages": [stage.name for stage in case.declaration.stages],
            "dumps": self.memory.last[0].key.dumps,
            "epoch": self.memory.epoch,
            "slot": slot,
            "seconds": done.seconds,
            "seconds_are": "wall seconds on this host of the simulation this launch was part of, on all ranks",
        }
        return {
            "versions": {**versions(), "flydsl": flydsl_version()},
            "backend": "sim",
            "order": "kernel",
            "mfma": self.mfma,
            "device": f"simulator on {device_name('cpu')}",
            "probes": [],
            "case": case.describe(),
            "build": build,
            "simulation": simulator.described(self.options, done),
        }


def hand_over(case: ChainCase, first: Sequence[Run], timing: dict[str, float]) -> list[dict[str, torch.Tensor]]:
    """By rank, K2a's inputs as the first launch's runs left them, in their working dtype.

    Args:
        timing: gets the seconds of what is computed.

    Raises:
        InternalFault: when ranks differ in what all of them should have alike.
    """
    layer = case.declaration
    ranks = [values for run in first for values in run.ranks]
    handed: list[dict[str, torch.Tensor]] = [{} for _ in ranks]
    for hand in layer.handed:
        if hand.made_of:
            start = time.perf_counter()
            values = COMPUTED[hand.source]([_own_memory(run, hand.made_of) for run in first], case.qlen)
            timing[f"{hand.source} in torch"] = time.perf_counter() - start
        elif hand.source not in ranks[0]:
            continue  # the launch does not write it
        elif layer.last.input(hand.target).per_rank:
            values = [each[hand.source] for each in ranks]
        else:
            values = [_alike(hand.source, [each[hand.source] for each in ranks])] * len(ranks)
        for into, value in zip(handed, values, strict=True):
            into[hand.target] = value
    return handed


def _attention(runs: Sequence[Run], qlen: int) -> list[torch.Tensor]:
    """Core rows of every rank: of ranks that gathered their heads, or of each by itself."""
    return [core for run in runs for core in decode_attention(run, qlen)]


COMPUTED: Mapping[str, Callable[[Sequence[Run], int], list[torch.Tensor]]] = {"attention": _attention}
"""What torch computes between launches, by the name that a half-layer's declaration has for it."""


def _own_memory(run: Run, names: Sequence[str]) -> Run:
    """The run with the tensors `names` in memory that torch aligned: BLAS may sum in another order where it is not."""
    ranks = [{**values, **{name: values[name].clone() for name in names}} for values in run.ranks]
    return replace(run, ranks=ranks)


def _alike(name: str, values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rank 0's, which every other rank's equals bit for bit."""
    for rank, value in enumerate(values):
        if value is not values[0] and not torch.equal(_bits(value), _bits(values[0])):
            raise InternalFault(f"{name} of rank {rank}: expected the bits of rank 0's, got others.")
    return values[0]


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.uint8)


def _after(case: ChainCase, handed: Sequence[Values]) -> Case:
    """K2a's case with what it was handed."""
    launch = case.declaration.last
    once: dict[int, torch.Tensor] = {}  # what ranks share stays shared

    def put(name: str, value: torch.Tensor) -> torch.Tensor:
        if id(value) not in once:
            held = value.cpu().float()
            held = held.masked_fill(held.isnan(), torch.nan)  # alike to K2a: so that equal hand-overs are equal cases
            once[id(value)] = stored(launch.input(name), held.numpy())
        return once[id(value)]

    return case.after([{name: put(name, value) for name, value in values.items()} for values in handed])


def _keys(case: ChainCase) -> tuple[Any, ...]:
    return case.kind, case.qlen, len(case.first), case.first[0].key, case.last.key
