"""The reference's tests can fail: each mutant of `mutants.py`, made in a copy of the sources, fails the quick ones."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.mutation import Mutant, make_copy, named, run_tests, run_with
from tests.reference.mutants import CAUGHT, EQUIVALENT

ALL = CAUGHT + EQUIVALENT
QUICK = ("reference/test_against_reference.py", "not full and not slow")


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    return make_copy(tmp_path_factory.mktemp("mutants"), "cover.py", "reference")


def quick_tests(folder: Path, chosen: str, mutant: Mutant | None = None) -> subprocess.CompletedProcess:
    """The chosen quick tests on the package in `folder`, up to the first that fails."""
    file, marks = QUICK
    chosen = f"({chosen}) and not covers"
    return run_with(folder, mutant, file, chosen, marks) if mutant else run_tests(folder, file, chosen, marks)


@pytest.mark.parametrize("mutant", ALL, ids=named)
def test_a_mutant_changes_one_place(mutant):
    assert mutant.source.count(mutant.old) == 1
    compile(mutant.source.replace(mutant.old, mutant.new), mutant.file, "exec")


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
    found = quick_tests(copy, mutant.tests, mutant)
    assert found.returncode == 1, found.stdout[-2000:]
    assert re.search("""assert \\[['"]rank""", found.stdout), found.stdout[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", EQUIVALENT, ids=named)
def test_an_equivalent_change_passes(mutant, copy):
    """Which also shows that the copy, as it is, passes."""
    found = quick_tests(copy, mutant.tests, mutant)
    assert found.returncode == 0, found.stdout[-2000:]
