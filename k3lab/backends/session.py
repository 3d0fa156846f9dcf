"""Kernels' launches: a build's memory, the steps that run on it, and the runs these leave."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from k3lab.arith import make
from k3lab.backends import gfx950
from k3lab.backends import sim as simulator
from k3lab.backends.chain import simulated_chain
from k3lab.backends.cuda import device as nvidia
from k3lab.backends.cuda.ranks import launch as teams
from k3lab.backends.cuda.ranks.plan import Plan
from k3lab.backends.run import Run, device_name, versions
from k3lab.cases.case import Case
from k3lab.errors import BackendUnavailable, BadInput, expect
from k3lab.kernels import peers
from k3lab.kernels.abi import stage_names
from k3lab.kernels.host import Buffers, puts
from k3lab.kernels.lowered import flydsl_version, has_kernel, lowered
from k3lab.launches.declaration import Launch
from k3lab.launches.eager import run_twins
from k3lab.launches.key import LaunchKey
from k3lab.rounding import probing
from k3lab.sim.options import Options

KERNELS = {
    "sim": "the launch's kernel as FlyDSL lowers it for gfx950, simulated on this CPU",
    "gfx950": "the launch's kernel on an MI355X",
    "cuda": "the launch's kernel, lowered for gfx950 and translated to CUDA C++, on an NVIDIA GPU",
}
"""Backends that run kernels, with what they are."""
GPUS = {"gfx950": gfx950, "cuda": nvidia}
"""Those that run them on a GPU: the modules that check and launch."""
WAIT_TICKS = {"sim": simulator.WAIT_TICKS, "cuda": nvidia.WAIT_TICKS}
"""How long bounded builds wait, on backends whose clock is not gfx950's."""
BUILDS = {"exact": "as the models define it, bit for bit", "fast": "tensor cores and the GPU's own approximations"}
"""Builds of a translation, with what they are."""

Values = Sequence[Mapping[str, torch.Tensor]]


class Session:
    """Launches in a row on the same memory, whole or of some stages: scratch stays as the launch before left it.

        session = Session(case, backend="sim")
        first = session.step()  # epoch 1
        second = session.step(another_case_of_the_same_key, slot=3)  # epoch 2

    Every step starts from its case's inputs. What stages outside of the build would have written, and what they would
    have changed in place, is taken from the kernel-order twin.
    """

    def __init__(
        self,
        case: Case,
        backend: str = "sim",
        *,
        stages: Collection[str] | None = None,
        mfma: str = "fused",
        device: str | None = None,
        sim: Options | None = None,
        dumps: bool | None = None,
        live: Sequence[int] | None = None,
        build: str | None = None,
        gpus: int | None = None,
    ) -> None:
        """Make the memory of a build for the case's key.

        Args:
            stages: names of the stages to run; all, if None.
            mfma: accumulation model of the simulator's matrix instructions, and of the twin that fills in.
            sim: how to simulate.
            dumps: whether to write the locals out; as the key says, if None.
            live: on cuda, the ranks that run, beside words of the others that the twin says they send; if None, all,
                or where these do not fit, the first of each GPU.
            build: on cuda, `exact` (if None) or `fast`.
            gpus: on cuda, how many GPUs of this host the ranks are spread over: rank r on GPU r mod gpus; 1, if None.

        Raises:
            BadInput: for a case that fails its checks, an unknown stage, or options that do not fit the backend.
            BackendUnavailable: when the launch has no kernel, or the backend cannot run here.
        """
        self.case, self.backend, self.mfma = case, backend, mfma
        self.launch: Launch = case.declaration
        self.key: LaunchKey = case.key if dumps is None else replace(case.key, dumps=dumps)
        self.stages = stage_names(self.launch) if stages is None else frozenset(stages)
        self.whole = self.stages == stage_names(self.launch)
        check_kernel(self.launch, backend, device, sim, mfma)
        cuda = _for_cuda(backend, live=live, build=build, gpus=gpus)
        self.options = simulator.merged(sim, mfma)
        case.check()
        self.device = device or ("cpu" if backend == "sim" else "cuda")
        self.plan = Plan(self.key.rank_count, tuple(range(self.key.rank_count)))
        if backend == "cuda":
            self.plan = nvidia.check(self.launch, self.key, self.stages, self.device, **cuda)
        elif backend in GPUS:
            GPUS[backend].check(self.launch, self.key, self.stages, self.device)
        self.ranks = [Buffers.of(self.launch, self.key, tensors, self.stages) for tensors in case.ranks]
        if self.launch.peers(self.key):
            peers.join(self.ranks)
        self._stepped = False
        if backend in WAIT_TICKS:
            for buffers in self.ranks:
                buffers.numbers["wait_ticks"] = WAIT_TICKS[backend]

    def step(
        self, case: Case | None = None, epoch: int | None = None, slot: int = 0, twin: Values | None = None
    ) -> Run:
        """One launch; returns what it left.

        Args:
            case: its inputs; those of the session's case, if None.
            epoch: of the step, the one after the last if None; the first is 1.
            twin: by rank, the kernel-order twin's exposed tensors for this case, where the caller has them.

        Raises:
            BadInput: for a case with another key, or an epoch or slot out of range.
            GaveUp: when a wait of a bounded build took too long.
            InternalFault: when the simulator finds a fault, or a region's pairs do not carry the launch's tag.
        """
        case = case or self.case
        same = (case.launch, case.key) == (self.case.launch, self.case.key)
        expect(same, "case", "inputs of the session's launch and key", repr(case))
        case.check()
        epoch = 1 if epoch is None and not self._stepped else epoch
        for buffers, tensors in zip(self.ranks, case.ranks, strict=True):
            buffers.next_step(tensors, epoch=epoch, slot=slot)
        self._stepped = True
        if not (self.whole and self.plan.whole):
            self._fill(twin if twin is not None else twin_values(case, self.mfma))
        seconds, said, done = self._execute()
        live = [self.ranks[rank] for rank in self.plan.live]
        for buffers in live:
            buffers.check_health()
        exposed = peers.exposed(self.ranks, self.plan.live)
        stamps = [held for buffers in live if (held := buffers.stamps()) is not None]
        order = tuple(stage.name for stage in self.launch.stages if stage.name in self.stages)
        facts = self._provenance(case, seconds, said)
        model, stages = facts["mfma"], None if self.whole else order
        run = Run(case, self.backend, "kernel", model, self.device, exposed, {}, seconds, facts, stamps, stages)
        if not self.plan.whole:
            run = replace(run, live=self.plan.live)
        return run if done is None else replace(run, clock=done.clock, traffic=done.traffic)

    def _fill(self, twin: Values) -> None:
        """What stages outside of the build would have written, and what ranks that do not run would have sent."""
        if not self.whole:
            peers.fill(self.ranks, [filled(self.launch, self.stages, values) for values in twin])
        if not self.plan.whole:
            peers.fill_others(self.ranks, self.plan.live, twin)

    def _execute(self) -> tuple[float, dict[str, Any], simulator.Simulated | None]:
        """Seconds, what the backend says of the run, and how the simulation went, if it was one."""
        if self.backend == "sim":
            if "peers" not in self.ranks[0].tensors:
                done = simulator.simulated(self.ranks[0], self.options)
            else:  # lowered first, so that the seconds are the simulation's
                for buffers in self.ranks:
                    lowered(buffers.launch, buffers.key, buffers.stages)
                done = simulator.timed(lambda: simulated_chain([self.ranks], self.options))
            return done.seconds, {"simulation": simulator.described(self.options, done)}, done
        start = time.perf_counter()
        said: dict[str, Any] = {}
        if self.backend == "gfx950":
            self.ranks = gfx950.launched(self.ranks, self.device)
        elif self.plan.gpus == 1:
            self.ranks = nvidia.launched(self.ranks, self.device, self.plan)
        else:
            self.ranks, said = teams.launched(self.ranks, self.plan)
        seconds = time.perf_counter() - start
        if self.backend == "cuda":
            how = nvidia.described(self.launch, self.key, self.stages, self.device, self.plan)
            said = {"translation": how, **said}
            if self.key.timeline and len(self.plan.live) > self.plan.gpus == 1:
                said["clocks"] = {"said": "All ranks ran on one GPU: its one clock measures all times."}
        if self.plan.text:
            said["ranks"] = self.plan.described()
        return seconds, said, None

    def _provenance(self, case: Case, seconds: float, said: Mapping[str, Any]) -> dict[str, Any]:
        buffers = self.ranks[0]
        on_sim = self.backend == "sim"
        where = f"simulator on {device_name('cpu')}" if on_sim else device_name(self.device)
        what = "wall seconds of the simulation on this host" if on_sim else "wall seconds, copies to and fro included"
        return {
            "versions": {**versions(), "flydsl": flydsl_version()},
            "backend": self.backend,
            "order": "kernel",
            "mfma": "none" if self.backend == "gfx950" else self.mfma,
            "device": where,
            "probes": [],
            "case": case.describe(),
            "build": {
                "stages": [stage.name for stage in self.launch.stages if stage.name in self.stages],
                "dumps": self.key.dumps,
                "epoch": int(buffers.tensors["epoch"][0]),
                "slot": buffers.numbers["slot"],
                "seconds": seconds,
                "seconds_are": what,
            },
            **said,
        }


def _for_cuda(backend: str, **given: Any) -> dict[str, Any]:
    """What `nvidia.check` takes, of options that only cuda has.

    Raises:
        BadInput: for one beside another backend, or an unknown build.
    """
    held = {name: value for name, value in given.items() if value is not None}
    expect(not held or backend == "cuda", ", ".join(held), "backend='cuda' beside it", f"backend={backend!r}")
    build = held.pop("build", "exact")
    expect(build in BUILDS, "build", f"one of {', '.join(BUILDS)}", repr(build))
    return {**held, "fast": build == "fast"}


def check_kernel(launch: Launch, backend: str, device: str | None, sim: Options | None, mfma: str) -> None:
    """Refuse what a kernel's run cannot be asked for, before anything is computed.

    Raises:
        BadInput: for probes, a device, or options of another backend.
        BackendUnavailable: for an unknown backend, a launch without a kernel, or a GPU that torch cannot use.
    """
    if backend not in KERNELS:
        raise BackendUnavailable(f"backend: expected one that runs kernels, of {sorted(KERNELS)}, got {backend!r}.")
    if probing():
        raise BadInput(f"probe: expected none around a run on {backend}, got one; probes act on twin and oracle only.")
    if not has_kernel(launch):
        raise BackendUnavailable(f"{launch.name}: this version has no kernel of it; use backend='twin'.")
    Options(mfma=mfma)
    make("kernel", launch.name, mfma)
    if backend == "sim":
        here = device in (None, "cpu")
        expect(here, "device", "'cpu' or none (the simulator runs on this machine's processor)", repr(device))
        fits = sim is None or sim.mfma in (Options().mfma, mfma)
        expect(fits, "sim.mfma", f"the run's own {mfma!r}", repr(sim and sim.mfma), "leave it out, and give mfma")
        return
    expect(device is None or device.startswith("cuda"), "device", "'cuda' or 'cuda:N', as torch has it", repr(device))
    expect(sim is None, "sim", f"none beside backend={backend!r}", "options of the simulator")
    expect(mfma == Options().mfma, "mfma", f"none beside backend={backend!r}", repr(mfma))
    GPUS[backend].check_torch()


def twin_values(case: Case, mfma: str) -> Values:
    """By rank, what the kernel-order twin exposes."""
    return run_twins(case.declaration, case.key, case.ranks, make("kernel", case.launch, mfma))[0]


def filled(launch: Launch, stages: Collection[str], twin: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Of the twin's values, those that a build of `stages` finds instead of making them.

    Of tensors that are changed in place, only those that a stage outside the build changes before one inside reads
    them: any other starts as the case has it.
    """
    made = set().union(*(puts(launch, stage) for stage in launch.stages if stage.name in stages))
    missing = set().union(*(puts(launch, stage) for stage in launch.stages if stage.name not in stages))
    handed = {r.name for r in launch.regions} | {r.name for r in launch.rows} | {local.name for local in launch.locals}
    wanted = missing & handed - made
    changed: set[str] = set()
    for stage in launch.stages:
        if stage.name in stages:
            wanted |= changed & set(stage.reads) - handed
        else:
            changed |= set(stage.writes)
    return {name: value for name, value in twin.items() if name in wanted}
