"""What this machine has, and which backends work on it: for its user, and as JSON for a bug report."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from k3lab import __version__

VERSION = 1
PACKAGES = {
    "torch": "torch",
    "numpy": "numpy",
    "matplotlib": "matplotlib",
    "safetensors": "safetensors",
    "jsonschema": "jsonschema",
    "jinja2": "jinja2",
    "click": "click",
    "rich": "rich",
    "flydsl": "flydsl",
    "cuda": "cuda-bindings",
    "nvidia": "nvidia-cuda-nvrtc",
    "aiter": "amd-aiter",
    "jupyterlab": "jupyterlab",
    "ipywidgets": "ipywidgets",
}
"""Module names and the distributions they come in."""
SETTINGS = ("K3LAB_", "ROCM_", "CUDA_", "OMP_NUM_THREADS", "XDG_CACHE_HOME")
"""How the environment variables begin that change what k3lab does."""
PRIVATE = re.compile(r"(?<![\w.~-])(?:~|[A-Za-z]:)?[/\\][^\s'\"<>|;,()]+(?: [^\s'\"]*[/\\][^\s'\"]*)*")
HIDDEN = "<path>"


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema of `k3lab doctor --json`."""
    text = resources.files("k3lab.cli").joinpath("doctor.schema.json").read_text(encoding="utf-8")
    return dict(json.loads(text))


def examine(paths: bool = False) -> dict[str, Any]:
    """Versions, devices, launches, backends and caches; imports neither flydsl nor aiter.

    Args:
        paths: whether folders are named. Without, nothing here says who the user is: absolute paths, also those inside
            sentences, are `<path>`, and of environment variables there are the names alone.
    """
    from k3lab.launches import LAUNCHES

    facts: dict[str, Any] = {
        "version": VERSION,
        "k3lab": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "cores": os.cpu_count() or 1,
        "memory_bytes": _memory(),
        "packages": {name: version_of(name, distribution) for name, distribution in PACKAGES.items()},
        "gpu": _gpu_text(),
        "devices": _devices(),
        "launches": list(LAUNCHES),
        "backends": backends(),
        "lowering": lowering(),
        "caches": caches(),
        "settings": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)},
    }
    return facts if paths else {**hidden(facts), "settings": dict.fromkeys(facts["settings"], "set")}


def hidden(value: Any) -> Any:
    """`value` without the absolute paths in its texts."""
    match value:
        case str():
            return PRIVATE.sub(HIDDEN, value)
        case dict():
            return {name: hidden(inner) for name, inner in value.items()}
        case list():
            return [hidden(inner) for inner in value]
    return value


def caches() -> list[dict[str, Any]]:
    """Folders that k3lab keeps things in: what they are for, how full they are, whether they can be written."""
    from k3lab.kernels.lowered import ARTEFACTS
    from k3lab.lowering.store import CACHE, cache_dir

    found = []
    with suppress(RuntimeError):  # a user without a home has no cache
        named = CACHE if os.environ.get(CACHE) else "the default"
        found.append(_folder("lowered and compiled kernels", named, cache_dir()))
    if folder := os.environ.get(ARTEFACTS):
        found.append(_folder("kernels lowered elsewhere", ARTEFACTS, Path(folder)))
    return found


def _folder(about: str, named: str, folder: Path) -> dict[str, Any]:
    from k3lab.errors import BadInput
    from k3lab.files import check_writable

    writable = True
    try:
        check_writable(folder)
    except BadInput:
        writable = False
    sizes = list(_sizes(folder))
    return {
        "about": about,
        "named_by": named,
        "folder": str(folder),
        "writable": writable,
        "files": len(sizes),
        "bytes": sum(sizes),
    }


def _sizes(folder: Path) -> Iterator[int]:
    """Bytes of every file under `folder`, but for those that are renamed or removed meanwhile; none where it cannot be
    read."""
    for place, _, names in os.walk(folder):
        for path in (os.path.join(place, name) for name in names):
            with suppress(OSError):
                if os.path.isfile(path):
                    yield os.path.getsize(path)


def _memory() -> int | None:
    """Bytes of main memory, where the system says."""
    with suppress(AttributeError, ValueError, OSError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def _devices() -> list[dict[str, Any]]:
    """Every GPU that torch can use."""
    import torch

    found = []
    for place in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        held = torch.cuda.get_device_properties(place)
        architecture = getattr(held, "gcnArchName", "") if torch.version.hip else f"sm_{held.major}{held.minor}"
        found.append({"name": held.name, "architecture": architecture, "memory_bytes": held.total_memory})
    return found


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
