"""What this machine has, and which backends work on it."""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from k3lab import __version__

PACKAGES = {
    "torch": "torch",
    "numpy": "numpy",
    "matplotlib": "matplotlib",
    "safetensors": "safetensors",
    "flydsl": "flydsl",
    "aiter": "amd-aiter",
    "jupyterlab": "jupyterlab",
}
"""Module names and the distributions they come in."""


def examine() -> dict[str, Any]:
    """Versions, GPU, launches and backends; imports neither flydsl nor aiter."""
    from k3lab.launches import LAUNCHES

    return {
        "k3lab": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "packages": {name: version_of(name, distribution) for name, distribution in PACKAGES.items()},
        "gpu": _gpu_text(),
        "launches": list(LAUNCHES),
        "backends": backends(),
        "lowering": lowering(),
    }


def backends() -> list[dict[str, Any]]:
    """Every backend, whether it works here, and what it is or why not."""
    from k3lab.backends.twin import TWINS

    devices = "cpu and cuda devices" if _gpus() else "cpu"
    twins = [{"name": name, "works": True, "why": f"{about}; on {devices}"} for name, about in TWINS.items()]
    checks = {"sim": simulator_here, "gfx950": gfx950_here, "cuda": cuda_here}
    return [*twins, *(kernel_backend(name, check) for name, check in checks.items())]


def kernel_backend(name: str, check: Callable[[], str]) -> dict[str, Any]:
    """A backend that runs kernels: `check` says what is there, or raises what is missing."""
    from k3lab.backends.session import KERNELS
    from k3lab.errors import BackendUnavailable
    from k3lab.kernels.lowered import has_kernel
    from k3lab.launches import LAUNCHES

    able = [launch.name for launch in LAUNCHES.values() if has_kernel(launch)]
    without = [name for name in LAUNCHES if name not in able]
    try:
        here = check()
    except BackendUnavailable as error:
        return {"name": name, "works": False, "why": str(error)}
    why = f"{KERNELS[name]}; {here}; kernels of {', '.join(able) or 'no launch'}"
    return {"name": name, "works": bool(able), "why": why + (f", none of {', '.join(without)} yet" if without else "")}


def simulator_here() -> str:
    """FlyDSL's version.

    Raises:
        BackendUnavailable: when it is not installed.
    """
    from k3lab.lowering import codegen

    return f"ready, lowered by FlyDSL {codegen.version()}"


def gfx950_here() -> str:
    """The device.

    Raises:
        BackendUnavailable: when there is no gfx950 that torch can use, or FlyDSL is missing.
    """
    import torch

    from k3lab.backends import gfx950
    from k3lab.geometry import Geometry
    from k3lab.lowering import codegen

    gfx950.check_torch()
    properties = torch.cuda.get_device_properties(0)
    gfx950.check_device(properties, Geometry.k3().blocks)
    return f"ready on {properties.name} with FlyDSL {codegen.version()}; nobody has run it on one yet"


def cuda_here() -> str:
    """The device, and the compiler.

    Raises:
        BackendUnavailable: when there is no NVIDIA GPU that torch can use, or NVRTC is missing.
    """
    from k3lab.backends.cuda import compiler, device

    device.check_torch()
    return f"ready on {device.limits(0).name} with NVRTC {compiler.version()}"


def lowering() -> list[dict[str, Any]]:
    """What `k3lab compile` can make of a launcher here."""
    from k3lab.errors import BackendUnavailable
    from k3lab.lowering import codegen

    facts = []
    for name, about, check in (
        ("isa", "IR and gfx950 assembly by FlyDSL {}", codegen.version),
        ("object", "code objects, linked by {}", codegen.find_linker),
    ):
        try:
            facts.append({"name": name, "works": True, "why": about.format(check())})
        except BackendUnavailable as error:
            facts.append({"name": name, "works": False, "why": str(error)})
    return facts


def version_of(module: str, distribution: str) -> str | None:
    """The installed version, found without importing; None where the module is not installed."""
    if find_spec(module) is None:
        return None
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def _gpus() -> list[str]:
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.cuda.get_device_name(place) for place in range(count)]


def _gpu_text() -> str:
    import torch

    versions = {"CUDA": torch.version.cuda, "ROCm": torch.version.hip}
    builds = [f"{name} {version}" for name, version in versions.items() if version]
    found = ", ".join(_gpus()) or "none that torch can use"
    return f"{found} (torch built for {', '.join(builds) or 'the CPU only'})"
