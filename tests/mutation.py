"""Mutants: one expression of k3lab's sources changed each, tried in a copy that is all of k3lab on the path there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import k3lab

PACKAGE = Path(k3lab.__file__).parent
TESTS = Path(__file__).parent


class Mutant(NamedTuple):
    """A change of one source file: `old` occurs once in it; `tests` (pytest's -k) picks what must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str

    @property
    def source(self) -> str:
        return (PACKAGE / self.file).read_text(encoding="utf-8")


def named(mutant: Mutant) -> str:
    return mutant.name.replace(" ", "_")


def make_copy(folder: Path, *tests: str) -> Path:
    """Copies of the package and of the named folders and files of `tests/` in `folder`."""
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, folder / "k3lab", ignore=leave)
    for name in ("conftest.py", *tests):
        source, target = TESTS / name, folder / "tests" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=leave)
        else:
            shutil.copy(source, target)
    shutil.copy(TESTS.parent / "pyproject.toml", folder)
    return folder


def run_tests(folder: Path, file: str, chosen: str, marks: str) -> subprocess.CompletedProcess[str]:
    """The tests of `tests/FILE` that `chosen` and `marks` pick, on the package in `folder`, up to the first failure."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PYTHONPATH"))}
    environment |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading them takes longer than most mutants last
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", marks]
    command += ["-k", chosen, f"tests/{file}"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def run_with(folder: Path, mutant: Mutant, file: str, chosen: str, marks: str) -> subprocess.CompletedProcess[str]:
    """`run_tests` with the mutant's change in the copy, which is whole again afterwards."""
    path = folder / "k3lab" / mutant.file
    source = path.read_text(encoding="utf-8")
    path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        return run_tests(folder, file, chosen, marks)
    finally:
        path.write_text(source, encoding="utf-8")
