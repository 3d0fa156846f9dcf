"""K2a's tests can fail: each wrong kernel of `k2a_mutants.py`, built in a copy of the sources, fails the test it names.

A sample runs always; all of them with --slow.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.kernels.k2a_mutants import CAUGHT, CHAINS, EQUIVALENT
from tests.mutation import Mutant, make_copy, named, run_with

SAMPLE = ("sum from the own rank", "no re-arm", "half by use alone")
PYTHON = ("BadInput", "NameError", "TypeError", "AttributeError", "SyntaxError", "ValueError", "MLIRError")
"""Errors that a wrong kernel may not be caught by: they say nothing about the tests."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    return make_copy(tmp_path_factory.mktemp("mutants"), "cover.py", "kernels")


def outcome(copy: Path, mutant: Mutant) -> subprocess.CompletedProcess:
    file = "kernels/test_k2a_chains.py" if mutant.tests in CHAINS else "kernels/test_k2a.py"
    return run_with(copy, mutant, file, mutant.tests, "not full and not slow")


@pytest.mark.parametrize("mutant", CAUGHT + EQUIVALENT, ids=named)
def test_a_mutant_changes_one_place(mutant):
    assert mutant.source.count(mutant.old) == 1
    compile(mutant.source.replace(mutant.old, mutant.new), mutant.file, "exec")


@pytest.mark.parametrize(
    "mutant", [pytest.param(m, marks=[pytest.mark.slow] * (m.name not in SAMPLE), id=named(m)) for m in CAUGHT]
)
def test_a_mutant_is_caught(mutant, copy):
    """By bits that differ or by a finding of the simulator's checks: nothing else is an error here."""
    found = outcome(copy, mutant)
    assert found.returncode == 1, found.stdout[-2000:]
    assert not any(f"{error}:" in found.stdout for error in PYTHON), found.stdout[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", EQUIVALENT, ids=named)
def test_an_equivalent_change_passes(mutant, copy):
    """Which also shows that the copy, as it is, passes."""
    found = outcome(copy, mutant)
    assert found.returncode == 0, found.stdout[-2000:]
