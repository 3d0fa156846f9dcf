"""MI355X as a backend: a launch's kernel through FlyDSL's own launcher, on the same buffers as in the simulator.

Nobody has run this on a gfx950 yet; `k3lab selftest --backend gfx950` is the one command that changes that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

from k3lab.errors import BackendUnavailable
from k3lab.kernels.host import Buffers
from k3lab.kernels.lowered import lowered, roles
from k3lab.launches.declaration import Launch
from k3lab.launches.key import LaunchKey
from k3lab.lowering.capture import ARCH
from k3lab.lowering.isa import cached_isa

_compiled: dict[tuple[str, LaunchKey, frozenset[str]], tuple[Callable[..., Any], Callable[..., Any]]] = {}
"""FlyDSL's compiled functions of this process and the types of their argument, by what they are builds of."""


def check_torch() -> None:
    """Whether torch was built for ROCm and sees a GPU.

    Raises:
        BackendUnavailable: saying which is missing.
    """
    if not torch.version.hip:
        built = f"one for CUDA {torch.version.cuda}" if torch.version.cuda else "one for the CPU only"
        raise BackendUnavailable(f"gfx950: expected a ROCm build of torch, got {built}; install torch for ROCm.")
    if not torch.cuda.is_available():
        raise BackendUnavailable("gfx950: expected a GPU, but torch for ROCm finds none here.")


def check_device(properties: Any, blocks: int) -> None:
    """Whether a device is a gfx950 with a compute unit for every workgroup of a launch.

    Args:
        properties: as `torch.cuda.get_device_properties` gives them.

    Raises:
        BackendUnavailable: with what was expected and what the device has.
    """
    arch = str(getattr(properties, "gcnArchName", "unknown")).split(":")[0]
    if arch != ARCH:
        raise BackendUnavailable(f"gfx950: expected an AMD {ARCH} device, got {properties.name} ({arch}).")
    units = properties.multi_processor_count
    if units < blocks:
        raise BackendUnavailable(
            f"gfx950: expected {blocks} compute units, one a workgroup, got {units} of {properties.name}; the launch's "
            "workgroups wait for each other, so all must run at once."
        )


def check_resident(launch: Launch, key: LaunchKey, stages: frozenset[str], units: int) -> None:
    """Whether registers and LDS let all workgroups of a build run at once.

    Raises:
        BackendUnavailable: with the numbers.
    """
    blocks = key.geometry.blocks
    for kernel in cached_isa(lowered(launch, key, stages)).resources.values():
        room = kernel.blocks_per_cu * units
        if room < blocks:
            raise BackendUnavailable(
                f"gfx950: expected room for all {blocks} workgroups of {launch.name} at once, got {room}: "
                f"{kernel.blocks_per_cu} on each of {units} compute units ({kernel.vgpr} vector registers, "
                f"{kernel.lds + kernel.dynamic_lds} bytes of LDS, {kernel.threads} threads)."
            )


def check(launch: Launch, key: LaunchKey, stages: frozenset[str], device: str) -> None:
    """Everything above, for one build on one device.

    Raises:
        BackendUnavailable: in one sentence.
    """
    check_torch()
    count = torch.cuda.device_count()
    if (torch.device(device).index or 0) >= count:
        raise BackendUnavailable(f"gfx950: expected one of {count} devices, got {device!r}.")
    properties = torch.cuda.get_device_properties(device)
    check_device(properties, key.geometry.blocks)
    check_resident(launch, key, stages, properties.multi_processor_count)


def launched(ranks: Sequence[Buffers], device: str = "cuda") -> list[Buffers]:
    """One launch on copies of the buffers on `device`; returns what came back, on the CPU.

    Raises:
        BackendUnavailable: for several ranks, whose hand-offs between GPUs have no buffers yet.
    """
    if len(ranks) > 1:
        raise BackendUnavailable(
            f"gfx950: this version runs {ranks[0].launch.name} on one rank, got {len(ranks)} ranks; use backend='twin'."
        )
    held = [buffers.to(device) for buffers in ranks]
    with torch.cuda.device(device):
        for buffers in held:
            call(buffers)
        torch.cuda.synchronize()
    return [buffers.to("cpu") for buffers in held]


def call(buffers: Buffers) -> None:
    """Launch one rank on buffers that lie on the device; their addresses are the launcher's arguments."""
    if "peers" in buffers.tensors:
        buffers.tensors["peers"].fill_(buffers.tensors["peer_buffer"].data_ptr())
    names = [argument.name for argument in buffers.arguments]
    values = dict(zip(names, buffers.bound(torch.Tensor.data_ptr), strict=True))
    which = (buffers.launch.name, buffers.key, buffers.stages)
    if which in _compiled:
        compiled, args_type = _compiled[which]
        compiled(args_type(**values))
        return
    made = roles(buffers.launch)
    build = import_module("k3lab.kernels.build").build
    lds = made.lds_bytes(buffers.key)
    launcher, placeholders = build(buffers.launch, buffers.key, buffers.stages, made.body, lds)
    args_type = type(placeholders)
    # Compiling with live arguments also launches, once.
    _compiled[which] = (import_module("flydsl.compiler").compile(launcher, args_type(**values)), args_type)
