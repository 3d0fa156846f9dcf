"""The reference's tests can fail: each mutant of `mutants.py`, made in a copy of the sources, fails the quick ones."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import k3lab
from tests.reference.mutants import CAUGHT, EQUIVALENT, Mutant

PACKAGE = Path(k3lab.__file__).parent
TESTS = Path(__file__).parent
ALL = CAUGHT + EQUIVALENT


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """A folder with copies of the package and of these tests: nothing else of k3lab is on the path there."""
    folder = tmp_path_factory.mktemp("mutants")
    leave = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, folder / "k3lab", ignore=leave)
    shutil.copytree(TESTS, folder / "tests" / "reference", ignore=leave)
    shutil.copy(TESTS.parent / "conftest.py", folder / "tests")
    shutil.copy(TESTS.parents[1] / "pyproject.toml", folder)
    return folder


def quick_tests(folder: Path, chosen: str) -> subprocess.CompletedProcess:
    """The chosen quick tests on the package in `folder`, up to the first that fails."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PYTHONPATH"))}
    environment |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading them takes longer than most mutants last
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not full and not slow"]
    command += ["-k", f"({chosen}) and not covers", "tests/reference/test_against_reference.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def run_with(folder: Path, mutant: Mutant) -> subprocess.CompletedProcess:
    """The quick tests with the mutant's change in the copy, which is whole again afterwards."""
    path = folder / "k3lab" / mutant.file
    source = path.read_text(encoding="utf-8")
    path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        return quick_tests(folder, mutant.tests)
    finally:
        path.write_text(source, encoding="utf-8")


def named(mutant: Mutant) -> str:
    return mutant.name.replace(" ", "_")


@pytest.mark.parametrize("mutant", ALL, ids=named)
def test_a_mutant_changes_one_place(mutant):
    source = (PACKAGE / mutant.file).read_text(encoding="utf-8")
    assert source.count(mutant.old) == 1
    compile(source.replace(mutant.old, mutant.new), mutant.file, "exec")


@pytest.mark.slow
def test_the_copy_is_what_is_tested(copy):
    """A package that cannot be imported, in the copy alone, stops the tests there."""
    path = copy / "k3lab" / "stages" / "tensors.py"
    source = path.read_text(encoding="utf-8")
    path.write_text("raise ImportError('the copy')\n", encoding="utf-8")
    found = quick_tests(copy, "k1")
    path.write_text(source, encoding="utf-8")
    assert found.returncode != 0 and "the copy" in found.stdout


@pytest.mark.slow
@pytest.mark.parametrize("mutant", CAUGHT, ids=named)
def test_a_mutant_is_caught(mutant, copy):
    """By values that differ, not by an error of another kind."""
    found = run_with(copy, mutant)
    assert found.returncode == 1, found.stdout[-2000:]
    assert re.search("""assert \\[['"]rank""", found.stdout), found.stdout[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", EQUIVALENT, ids=named)
def test_an_equivalent_change_passes(mutant, copy):
    """Which also shows that the copy, as it is, passes."""
    found = run_with(copy, mutant)
    assert found.returncode == 0, found.stdout[-2000:]
