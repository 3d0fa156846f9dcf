"""Launches lowered for gfx950: built and lowered once, kept on disk under the hash of all they depend on."""

from __future__ import annotations

import json
import os
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType

from k3lab.errors import BackendUnavailable
from k3lab.kernels.abi import stage_names
from k3lab.launches.declaration import Launch
from k3lab.launches.key import LaunchKey
from k3lab.lowering import store
from k3lab.lowering.capture import MISSING, lower_text
from k3lab.lowering.ir import Module
from k3lab.lowering.parse import parse

SOURCES = ("device", "kernels", "launches", "stages", "geometry.py", "layout.py", "lowering/capture.py")
"""What a launch's IR is made from, within the package."""
KEPT = 64
ARTEFACTS = "K3LAB_ARTEFACTS"
"""The environment variable that names a folder of modules lowered before, elsewhere perhaps (`keep` writes them)."""

_parsed: dict[str, Module] = {}
"""Modules of this process, by what they were lowered from; the oldest make room."""


def lowered(launch: Launch, key: LaunchKey, stages: frozenset[str] | None = None) -> Module:
    """The module of `launch` for `key`, whole or of some `stages`.

    Raises:
        BackendUnavailable: when the launch has no kernel, or flydsl is missing and the module not cached.
        BadInput: when FlyDSL cannot compile it.
    """
    stages = stage_names(launch) if stages is None else stages
    about = _about(launch, key, stages)
    if about not in _parsed:
        while len(_parsed) >= KEPT:
            _parsed.pop(next(iter(_parsed)))
        _parsed[about] = _made(launch, key, stages, about)
    return _parsed[about]


def _made(launch: Launch, key: LaunchKey, stages: frozenset[str], about: str) -> Module:
    """The module from an artefact, from the cache, or lowered now."""
    if (kept := _kept(about)) is not None:
        return store.load(kept).module
    parts = [flydsl_version(), sources(), about]
    return parse(store.cached("kernels", parts, lambda: _text(launch, key, stages).encode()).decode())


def keep(folder: str | Path, launch: Launch, key: LaunchKey, stages: frozenset[str] | None = None) -> Path:
    """Write the module as an artefact that `lowered` finds without flydsl, where $K3LAB_ARTEFACTS names the folder.

    Its name depends on the sources of the kernels: others do not find it.

    Raises:
        BackendUnavailable, BadInput: as `lowered`; or when the folder cannot be written.
    """
    stages = stage_names(launch) if stages is None else stages
    said = {"target": launch.name, "key": json.dumps(key.to_dict()), "stages": sorted(stages)}
    module = lowered(launch, key, stages)
    return store.save(
        store.Artefact(module, {**said, "flydsl": flydsl_version()}), Path(folder, file_of(launch, key, stages))
    )


def file_of(launch: Launch, key: LaunchKey, stages: frozenset[str] | None = None) -> str:
    """The name of the file that `keep` writes."""
    return _file(_about(launch, key, stage_names(launch) if stages is None else stages))


def _about(launch: Launch, key: LaunchKey, stages: frozenset[str]) -> str:
    return json.dumps([launch.name, key.to_dict(), sorted(stages)], sort_keys=True)


def _file(about: str) -> str:
    return f"{store.digest(sources(), about)[:32]}.mlir"


def _kept(about: str) -> Path | None:
    """The artefact of a module that was lowered before, if there is one."""
    folder = os.environ.get(ARTEFACTS)
    path = Path(folder, _file(about)) if folder else None
    return path if path and path.is_file() else None


def roles(launch: Launch) -> ModuleType:
    """The module that holds the launch's roles. Importing it imports flydsl.

    Raises:
        BackendUnavailable: when there is none, or flydsl is missing.
    """
    try:
        return import_module(f"k3lab.kernels.{launch.name}")
    except ModuleNotFoundError as error:
        if error.name == f"k3lab.kernels.{launch.name}":
            raise BackendUnavailable(f"{launch.name}: this version has no kernel of it, only its twins.") from None
        if error.name is not None and error.name.split(".")[0] == "flydsl":
            raise BackendUnavailable(MISSING) from None
        raise


def has_kernel(launch: Launch) -> bool:
    """Whether this version has a kernel of the launch."""
    return (Path(__file__).parent / f"{launch.name}.py").is_file()


def _text(launch: Launch, key: LaunchKey, stages: frozenset[str]) -> str:
    made = roles(launch)
    build = import_module("k3lab.kernels.build")
    launcher, placeholders = build.build(launch, key, stages, made.body, made.lds_bytes(key))
    return lower_text(launcher, placeholders)


@cache
def sources() -> str:
    """The hash of every source file that kernels are made from."""
    root = Path(__file__).parents[1]
    files = [
        path for name in SOURCES for path in ([root / name] if name.endswith(".py") else (root / name).rglob("*.py"))
    ]
    return store.digest(*(part for path in sorted(files) for part in (str(path.relative_to(root)), path.read_text())))


def flydsl_version() -> str:
    """FlyDSL's version, or none."""
    try:
        return version("flydsl")
    except PackageNotFoundError:
        return "none"
