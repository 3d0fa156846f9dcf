"""What this machine has, and which backends work on it."""

from __future__ import annotations

import platform
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

LATER = {
    "sim": "the launches' kernels in the simulator (which runs other FlyDSL kernels: k3lab.sim.launch.simulate)",
    "gfx950": "the kernels on an MI355X",
    "cuda": "the kernels' code translated for NVIDIA GPUs",
}


def examine() -> dict[str, Any]:
    """Versions, GPU, launches and backends; imports neither flydsl nor aiter."""
    from k3lab.backends import BACKENDS
    from k3lab.launches import LAUNCHES

    devices = "cpu and cuda devices" if _gpus() else "cpu"
    works = [{"name": name, "works": True, "why": f"{about}; on {devices}"} for name, about in BACKENDS.items()]
    missing = [
        {"name": name, "works": False, "why": f"not part of this version: {about}"}
        for name, about in LATER.items()
        if name not in BACKENDS
    ]
    return {
        "k3lab": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "packages": {name: version_of(name, distribution) for name, distribution in PACKAGES.items()},
        "gpu": _gpu_text(),
        "launches": list(LAUNCHES),
        "backends": [*works, *missing],
        "lowering": lowering(),
    }


def lowering() -> list[dict[str, Any]]:
    """What `k3lab compile` can make of a launcher here."""
    from k3lab.errors import BackendUnavailable
    from k3lab.lowering import codegen

    facts = []
    for name, about, check in (
        ("simulator", "FlyDSL kernels, lowered by FlyDSL {}, on this CPU", codegen.version),
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
