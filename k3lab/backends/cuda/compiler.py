"""A translated kernel as a binary: NVRTC, and a cache on disk by content, compute capability and compiler version."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from k3lab.backends.cuda.emit import Source
from k3lab.errors import BackendUnavailable, InternalFault
from k3lab.lowering import store

MISSING = "cuda: expected the package cuda-bindings and NVRTC, got {}; install k3lab[cuda]."
FLAGS = ("--std=c++17", "--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false")
"""Floats as the translation says: nothing contracted, `/` a true division, subnormals kept."""


def binding(name: str) -> Any:
    """A module of cuda-bindings.

    Raises:
        BackendUnavailable: when it is not installed, or what it loads is not.
    """
    try:
        return import_module(f"cuda.bindings.{name}")
    except (ImportError, RuntimeError) as error:
        raise BackendUnavailable(MISSING.format(str(error) or type(error).__name__)) from None


def called(result: tuple[Any, ...], what: str) -> Any:
    """What a call of the bindings gave besides its status.

    Raises:
        InternalFault: naming the call, when the status is an error.
    """
    status, *values = result
    if int(status):
        raise InternalFault(f"cuda: expected {what} to succeed, got {getattr(status, 'name', status)}.")
    return values[0] if len(values) == 1 else values


def version() -> str:
    """NVRTC's version."""
    nvrtc = binding("nvrtc")
    try:
        major, minor = called(nvrtc.nvrtcVersion(), "nvrtcVersion")
    except RuntimeError as error:  # the library is loaded by the first call
        raise BackendUnavailable(MISSING.format(error)) from None
    return f"{major}.{minor}"


def entry(source: Source, per_unit: int) -> str:
    """How the kernel is declared, for `per_unit` workgroups on a multiprocessor."""
    bounds = f"__launch_bounds__({source.threads}, {per_unit})"
    return f'extern "C" __global__ void {bounds} k3_kernel(const __grid_constant__ K3Launch launch)'


def binary(source: Source, arch: str, ranks: int, per_unit: int, places: int = 0) -> bytes:
    """The kernel for a GPU of `arch` (`sm_90`), for launches of `ranks` ranks.

    Args:
        places: workgroups of all ranks, where each is told its number.

    Raises:
        BackendUnavailable: without NVRTC.
        InternalFault: when it refuses the translation.
    """
    defined = (f"K3_PLACES {places}",) if places else ()
    return compiled(source.complete("device.cuh", entry(source, per_unit), ranks, defined), arch)


def compiled(text: str, arch: str) -> bytes:
    """A binary of CUDA C++, from the cache where it was compiled before.

    Raises:
        BackendUnavailable, InternalFault: as `binary`.
    """
    return store.cached("cuda", [version(), arch, " ".join(FLAGS), text], lambda: _compiled(text, arch))


def _compiled(text: str, arch: str) -> bytes:
    nvrtc = binding("nvrtc")
    program = called(nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], []), "nvrtcCreateProgram")
    options = [option.encode() for option in (f"--gpu-architecture={arch}", *FLAGS)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status):
        size = called(nvrtc.nvrtcGetProgramLogSize(program), "nvrtcGetProgramLogSize")
        log = bytearray(size)
        called(nvrtc.nvrtcGetProgramLog(program, log), "nvrtcGetProgramLog")
        raise InternalFault(f"cuda: expected NVRTC to compile the translation, got: {log.decode()[:2000]}")
    made = bytearray(called(nvrtc.nvrtcGetCUBINSize(program), "nvrtcGetCUBINSize"))
    called(nvrtc.nvrtcGetCUBIN(program, made), "nvrtcGetCUBIN")
    called(nvrtc.nvrtcDestroyProgram(program), "nvrtcDestroyProgram")
    return bytes(made)
