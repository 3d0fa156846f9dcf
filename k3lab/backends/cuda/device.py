"""Translated kernels on an NVIDIA GPU: loaded through the driver, checked for residency, launched on tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from k3lab.backends.cuda.arguments import blocks_of, packed
from k3lab.backends.cuda.compiler import binary, binding, called, version
from k3lab.backends.cuda.emit import Source, translate
from k3lab.backends.cuda.residency import Limits, check_shape, per_unit, too_few
from k3lab.errors import BackendUnavailable
from k3lab.kernels.host import Buffers
from k3lab.kernels.lowered import lowered
from k3lab.launches.declaration import Launch, LaunchKey
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
    """A kernel ready to launch; `registers` are a thread's, `spilled` its bytes of local memory."""

    source: Source
    function: Any
    blocks: int
    registers: int
    spilled: int


def load(module: Module, blocks: int, ranks: int, index: int, fast: bool = False) -> Loaded:
    """The kernel of `module` for launches of `blocks` workgroups on each of `ranks` ranks, on device `index`.

    Raises:
        BadInput: for operations that are not translated.
        BackendUnavailable: when not all workgroups fit at once, or something is missing here.
    """
    source, here, total = translate(module, fast), limits(index), blocks * ranks
    check_shape(here, source, total)
    made = _loaded(binary(source, here.arch, ranks, per_unit(here, total)), source, total, index)
    fit = _fitting(made)
    if fit * here.units < total:
        raise too_few(here, source, total, fit, made.registers)
    return made


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


class Launcher:
    """Launches one build again and again on all ranks' buffers, which lie on the device.

    One cooperative launch runs all ranks: workgroup i of rank r is number r blocks + i.

    Attributes:
        ranks: by rank, the buffers on the device; `live` are those of the ranks that run.
    """

    def __init__(
        self, ranks: Sequence[Buffers], device: str = "cuda", live: Sequence[int] | None = None, fast: bool = False
    ) -> None:
        """Copy the buffers to the device, and make the kernel ready.

        Args:
            live: numbers of the ranks that run; all, if None. What the others send must be there before.
            fast: the build with tensor cores and the GPU's own approximations, in place of the exact one.

        Raises:
            BadInput, BackendUnavailable: as `load`.
        """
        self.index = torch.device(device).index or 0
        check_torch()
        self.ranks = [buffers.to(f"cuda:{self.index}") for buffers in ranks]
        self.live = self.ranks if live is None else [self.ranks[rank] for rank in live]
        if "peers" in self.ranks[0].tensors:
            table = [buffers.tensors["peer_buffer"].data_ptr() for buffers in self.ranks]
            for buffers in self.ranks:
                buffers.tensors["peers"].copy_(torch.tensor(table, dtype=torch.int64))
        build = self.ranks[0]
        self.module = lowered(build.launch, build.key, build.stages)
        self.blocks = blocks_of(self.module, build.bound(torch.Tensor.data_ptr))
        self.kernel = load(self.module, self.blocks, len(self.live), self.index, fast)

    def launch(self) -> None:
        """Put one launch on the device's current stream."""
        words = [w for held in self.live for w in packed(self.module, held.bound(torch.Tensor.data_ptr))]

        class Words(ctypes.Structure):
            """`K3Launch` of the run time."""

            _fields_ = (("blocks", ctypes.c_uint32), ("args", ctypes.c_uint64 * len(words)))

        given = Words(self.blocks, (ctypes.c_uint64 * len(words))(*words))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(given))
        driver, source = binding("driver"), self.kernel.source
        with torch.cuda.device(self.index):
            stream = torch.cuda.current_stream().cuda_stream
            grid, block = (self.blocks * len(self.live), 1, 1), (source.threads, 1, 1)
            how = (*grid, *block, source.shared, stream, ctypes.addressof(pointers))
            called(driver.cuLaunchCooperativeKernel(self.kernel.function, *how), "the launch")

    def advance(self) -> None:
        """Count the epoch on by one, on the device and in the stream's order."""
        for buffers in self.ranks:
            buffers.tensors["epoch"].add_(1)

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


def launched(ranks: Sequence[Buffers], device: str = "cuda") -> list[Buffers]:
    """One launch on copies of the buffers on `device`; returns what came back, on the CPU.

    Raises:
        BadInput, BackendUnavailable: as `load`.
    """
    made = Launcher(ranks, device)
    made.launch()
    return made.fetch()


def check(launch: Launch, key: LaunchKey, stages: frozenset[str], device: str) -> None:
    """Whether a build can run on `device`: translated, compiled, and all its workgroups at once.

    Raises:
        BadInput, BackendUnavailable: in one sentence.
    """
    _build(launch, key, stages, device)


def described(launch: Launch, key: LaunchKey, stages: frozenset[str], device: str) -> dict[str, Any]:
    """What provenance says of a build that ran."""
    kernel = _build(launch, key, stages, device)
    return {
        "build": "fast" if kernel.source.fast else "exact",
        "nvrtc": version(),
        "registers": kernel.registers,
        "local_bytes": kernel.spilled,
        "shared_bytes": kernel.source.shared,
        "clock": "global timer, ns",
    }


def _build(launch: Launch, key: LaunchKey, stages: frozenset[str], device: str) -> Loaded:
    index = torch.device(device).index or 0
    limits(index)
    return load(lowered(launch, key, stages), key.geometry.blocks, key.rank_count, index)
