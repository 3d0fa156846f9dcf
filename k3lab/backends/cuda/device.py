"""Translated kernels on an NVIDIA GPU: loaded through the driver, checked for residency, launched on tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from k3lab.backends.cuda.arguments import blocks_of, packed
from k3lab.backends.cuda.compiler import binary, binding, called, version
from k3lab.backends.cuda.emit import Source, translate
from k3lab.backends.cuda.fast.alignment import check_aligned
from k3lab.backends.cuda.fast.places import dealt, where
from k3lab.backends.cuda.ranks.plan import Plan, check_gpus, checked
from k3lab.backends.cuda.residency import Limits, check_shape, per_unit, too_few
from k3lab.errors import BackendUnavailable, expect
from k3lab.kernels.host import Buffers
from k3lab.kernels.lowered import lowered
from k3lab.kernels.peers import Sent, half_of
from k3lab.launches.declaration import Launch
from k3lab.launches.key import LaunchKey
from k3lab.layout import step_tag
from k3lab.lowering.ir import Module

WAIT_TICKS = 2_000_000_000
"""How long a bounded build waits here: two seconds of the global timer, which counts nanoseconds."""
NEEDED = (9, 0)
"""The compute capability that the translation is made for: it has been run on no older one."""


def check_torch() -> None:
    """Whether torch was built for CUDA and sees a GPU.

    Raises:
        BackendUnavailable: saying which is missing.
    """
    if not torch.version.cuda:
        built = f"one for ROCm {torch.version.hip}" if torch.version.hip else "one for the CPU only"
        raise BackendUnavailable(f"cuda: expected a CUDA build of torch, got {built}; install torch for CUDA.")
    if not torch.cuda.is_available():
        raise BackendUnavailable("cuda: expected an NVIDIA GPU, but torch for CUDA finds none here.")


@cache
def limits(index: int) -> Limits:
    """What the device number `index` has.

    Raises:
        BackendUnavailable: for a device that there is not, or one too old.
    """
    check_torch()
    count = torch.cuda.device_count()
    if not 0 <= index < count:
        raise BackendUnavailable(f"cuda: expected one of {count} devices, got number {index}.")
    made = torch.cuda.get_device_properties(index)
    if (made.major, made.minor) < NEEDED:
        needed = ".".join(map(str, NEEDED))
        raise BackendUnavailable(
            f"cuda: expected compute capability {needed} or newer, got {made.major}.{made.minor} of {made.name}."
        )
    return Limits(
        made.name,
        f"sm_{made.major}{made.minor}",
        made.multi_processor_count,
        made.max_threads_per_multi_processor,
        _attribute(index, "MAX_REGISTERS_PER_MULTIPROCESSOR"),
        _attribute(index, "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        _attribute(index, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
    )


def _attribute(index: int, name: str) -> int:
    driver = binding("driver")
    called(driver.cuInit(0), "cuInit")
    which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(called(driver.cuDeviceGetAttribute(which, called(driver.cuDeviceGet(index), "cuDeviceGet")), name))


@dataclass(frozen=True)
class Loaded:
    """A kernel ready to launch; `registers` are a thread's, `spilled` its bytes of local memory.

    Attributes:
        places: the number that each workgroup takes on; its own, if empty.
    """

    source: Source
    function: Any
    blocks: int
    registers: int
    spilled: int
    places: tuple[int, ...] = ()


def load(module: Module, blocks: int, ranks: int, index: int, fast: bool = False, attention: int = 0) -> Loaded:
    """The kernel of `module` for launches of `blocks` workgroups on each of `ranks` ranks, on device `index`.

    Args:
        attention: how many of a rank's first workgroups are attention workgroups: the fast build deals them out.

    Raises:
        BadInput: for operations that are not translated.
        BackendUnavailable: when not all workgroups fit at once, or something is missing here.
    """
    source, here, total = translate(module, fast), limits(index), blocks * ranks
    check_shape(here, source, total)
    each = per_unit(here, total)
    told = places(total, each, fast and attention > 0)
    made = _loaded(binary(source, here.arch, ranks, each, told), source, total, index)
    fit = _fitting(made)
    if fit * here.units < total:
        raise too_few(here, source, total, fit, made.registers)
    if not told:
        return made
    found = where(index, here.arch, total, source.threads, each, source.shared)
    return replace(made, places=dealt(found, blocks, attention))


def places(blocks: int, each: int, fast: bool) -> int:
    """How many workgroups are told their numbers: in the fast build all, where multiprocessors hold several."""
    return blocks if fast and each > 1 else 0


def load_own(source: Source, index: int) -> Loaded:
    """A kernel that is not translated, of one workgroup, on device `index`.

    Raises:
        BackendUnavailable: as `load`.
    """
    return _loaded(binary(source, limits(index).arch, 1, 1), source, 1, index)


_kept: dict[tuple[bytes, int], Loaded] = {}
"""Kernels of this process: a module that is unloaded takes its function with it."""


def _loaded(image: bytes, source: Source, blocks: int, index: int) -> Loaded:
    if (image, index) not in _kept:
        torch.cuda.init()
        driver = binding("driver")
        with torch.cuda.device(index):
            torch.cuda.synchronize()  # makes torch's context the current one
            library = called(driver.cuModuleLoadData(image), "cuModuleLoadData")
            function = called(driver.cuModuleGetFunction(library, b"k3_kernel"), "cuModuleGetFunction")
            what = driver.CUfunction_attribute
            most = what.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            called(driver.cuFuncSetAttribute(function, most, source.shared), "cuFuncSetAttribute")
            registers, spilled = (
                called(driver.cuFuncGetAttribute(getattr(what, f"CU_FUNC_ATTRIBUTE_{name}"), function), name)
                for name in ("NUM_REGS", "LOCAL_SIZE_BYTES")
            )
        _kept[image, index] = Loaded(source, function, blocks, registers, spilled)
    return _kept[image, index]


def _fitting(kernel: Loaded) -> int:
    """Workgroups that run on a multiprocessor at once."""
    ask = binding("driver").cuOccupancyMaxActiveBlocksPerMultiprocessor
    return int(called(ask(kernel.function, kernel.source.threads, kernel.source.shared), "the occupancy"))


def start(kernel: Loaded, blocks: int, words: Sequence[int], index: int) -> None:
    """Put one launch of all of a kernel's workgroups on the current stream of device `index`.

    Args:
        blocks: workgroups of a rank.
        words: the arguments of all ranks, one after the other.

    Raises:
        BadInput: for an address that is not aligned as the fast build takes it to be.
    """
    check_aligned(kernel.source.name, kernel.source.aligned, words, kernel.source.parameters)
    numbers = kernel.places

    class Words(ctypes.Structure):
        """`K3Launch` of the run time."""

        _fields_ = (
            ("blocks", ctypes.c_uint32),
            ("args", ctypes.c_uint64 * len(words)),
            ("places", ctypes.c_uint16 * len(numbers)),
        )

    given = Words(blocks, (ctypes.c_uint64 * len(words))(*words), (ctypes.c_uint16 * len(numbers))(*numbers))
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(given))
    source = kernel.source
    with torch.cuda.device(index):
        stream = torch.cuda.current_stream().cuda_stream
        how = (kernel.blocks, 1, 1, source.threads, 1, 1, source.shared, stream, ctypes.addressof(pointers))
        called(binding("driver").cuLaunchCooperativeKernel(kernel.function, *how), "the launch")


class Launcher:
    """Launches one build again and again on all ranks' buffers, which lie on the device.

    One cooperative launch runs all ranks: workgroup i of the r-th live rank is number r blocks + i.

    Attributes:
        ranks: the buffers on the device; `live` are those of the ranks that run.
        epoch: of the next launch.
    """

    def __init__(
        self,
        ranks: Sequence[Buffers],
        device: str = "cuda",
        live: Sequence[int] | None = None,
        fast: bool = False,
        *,
        sent: Sequence[Sequence[Sent]] = (),
        table: Sequence[int] = (),
    ) -> None:
        """Copy the buffers to the device, and make the kernel ready.

        Args:
            live: places in `ranks` of those that run; all, if None. What the others send must be there before.
            fast: the build with tensor cores and the GPU's own approximations, in place of the exact one.
            sent: for each of `ranks`, what others send it (`peers.sent_by_others`): `advance` puts it there anew.
            table: addresses of every rank's peer buffer, where some are another process's: `ranks` are then those of
                this process, and what they hold as `peer_buffer` is on the device already, and stays where it is.

        Raises:
            BadInput, BackendUnavailable: as `load`.
        """
        self.index = torch.device(device).index or 0
        check_torch()
        here = f"cuda:{self.index}"
        self.ranks = [buffers.to(here) for buffers in ranks]
        self.live = self.ranks if live is None else [self.ranks[rank] for rank in live]
        self.epoch = int(ranks[0].tensors["epoch"][0])
        self.sent = [[each.to(here) for each in given] for given in sent]
        if "peers" in self.live[0].tensors:
            if table:
                for buffers, given in zip(self.ranks, ranks, strict=True):
                    buffers.tensors["peer_buffer"] = given.tensors["peer_buffer"]
            else:
                table = [buffers.tensors["peer_buffer"].data_ptr() for buffers in self.ranks]
            for buffers in self.live:
                buffers.tensors["peers"].copy_(torch.tensor(table, dtype=torch.int64))
        build = self.live[0]
        self.module = lowered(build.launch, build.key, build.stages)
        self.blocks = blocks_of(self.module, build.bound(torch.Tensor.data_ptr))
        self.kernel = load(self.module, self.blocks, len(self.live), self.index, fast, build.key.geometry.na)

    def launch(self) -> None:
        """Put one launch on the device's current stream.

        Raises:
            BadInput: as `start`.
        """
        words = [w for held in self.live for w in packed(self.module, held.bound(torch.Tensor.data_ptr))]
        start(self.kernel, self.blocks, words, self.index)

    def advance(self) -> None:
        """Count the epoch on by one, and put what other ranks send there, on the device and in the stream's order."""
        self.epoch += 1
        for buffers in self.ranks:
            buffers.tensors["epoch"].add_(1)
        self.put_sent()

    def put_sent(self) -> None:
        """What ranks that do not run send in the next launch, into the half that it takes."""
        for buffers, given in zip(self.ranks, self.sent, strict=False):
            numbers = buffers.numbers
            half = half_of(self.epoch, numbers["uses"], numbers["use"])
            for each in given:
                each.put(buffers.tensors["peer_buffer"][half], step_tag(self.epoch, numbers["slot"]))

    def finish(self) -> None:
        """Wait for all launches.

        Raises:
            RuntimeError: what torch says of a launch that failed.
        """
        with torch.cuda.device(self.index):
            torch.cuda.synchronize()

    def fetch(self) -> list[Buffers]:
        """The buffers as they are now, on the CPU."""
        self.finish()
        return [buffers.to("cpu") for buffers in self.ranks]


def launched(ranks: Sequence[Buffers], device: str = "cuda", plan: Plan | None = None) -> list[Buffers]:
    """One launch on copies of the buffers on `device`; returns what came back, on the CPU.

    Args:
        plan: which ranks run; all, if None. What the others send must be there.

    Raises:
        BadInput, BackendUnavailable: as `load`.
    """
    made = Launcher(ranks, device, plan.live if plan else None, plan.fast if plan else False)
    made.launch()
    return made.fetch()


def check(
    launch: Launch,
    key: LaunchKey,
    stages: frozenset[str],
    device: str,
    live: Sequence[int] | None = None,
    fast: bool = False,
    gpus: int = 1,
) -> Plan:
    """How a build can run: translated, compiled, and the workgroups of all live ranks of a GPU at once.

    Where not all ranks fit, the first of each GPU runs alone, and the plan says why.

    Args:
        live: the ranks that must run; as many as fit, if None.
        gpus: how many of this host's, from number 0 on, if more than one.

    Raises:
        BadInput, BackendUnavailable: in one sentence.
    """
    ranks = tuple(range(key.rank_count)) if live is None else checked(live, key.rank_count)
    check_gpus(gpus, key.rank_count, ranks)
    one = gpus == 1 or torch.device(device).index is None
    expect(one, "device", f"'cuda' beside {gpus} GPUs, which are the first ones", repr(device))
    plan = Plan(key.rank_count, ranks, gpus, fast)
    try:
        _builds(launch, key, stages, device, plan)
    except BackendUnavailable as refusal:
        if live is not None or plan.most_live == 1:
            raise
        plan = replace(plan, live=tuple(range(gpus)), why=str(refusal))
        _builds(launch, key, stages, device, plan)
    return plan


def described(launch: Launch, key: LaunchKey, stages: frozenset[str], device: str, plan: Plan) -> dict[str, Any]:
    """What provenance says of a build that ran."""
    kernel = _builds(launch, key, stages, device, plan)
    return {
        "build": "fast" if kernel.source.fast else "exact",
        "nvrtc": version(),
        "registers": kernel.registers,
        "local_bytes": kernel.spilled,
        "shared_bytes": kernel.source.shared,
        "clock": "global timer, ns",
    }


def _builds(launch: Launch, key: LaunchKey, stages: frozenset[str], device: str, plan: Plan) -> Loaded:
    """The kernel for the first GPU; on every GPU of the plan it must fit."""
    first = torch.device(device).index or 0
    module = lowered(launch, key, stages)
    made = []
    for gpu in range(plan.gpus):
        limits(first + gpu)
        ranks = len(plan.live_on(gpu))
        made.append(load(module, key.geometry.blocks, ranks, first + gpu, plan.fast, key.geometry.na))
    return made[0]
