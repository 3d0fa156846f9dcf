"""K1's tests can fail: each wrong kernel of `k1_mutants.py`, built in a copy of the sources, fails the test it names.

A sample runs always; all of them with --slow.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.kernels.k1_mutants import CAUGHT, EQUIVALENT, PAIR
from tests.mutation import Mutant, make_copy, named, run_with

SAMPLE = ("columns in pairs", "tag of the epoch before", "no drain before the flag")
ALL = CAUGHT + EQUIVALENT


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    return make_copy(tmp_path_factory.mktemp("mutants"), "cover.py", "kernels", "device", "sim")


def outcome(copy: Path, mutant: Mutant) -> subprocess.CompletedProcess:
    file = "device/test_mailbox.py" if mutant.tests == PAIR else "kernels/test_k1.py"
    return run_with(copy, mutant, file, mutant.tests, "not full and not slow")


@pytest.mark.parametrize("mutant", ALL, ids=named)
def test_a_mutant_changes_one_place(mutant):
    assert mutant.source.count(mutant.old) == 1
    compile(mutant.source.replace(mutant.old, mutant.new), mutant.file, "exec")


@pytest.mark.parametrize("mutant", [m for m in CAUGHT if m.name in SAMPLE], ids=named)
def test_a_mutant_of_the_sample_is_caught(mutant, copy):
    found = outcome(copy, mutant)
    assert found.returncode == 1, found.stdout[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [m for m in CAUGHT if m.name not in SAMPLE], ids=named)
def test_a_mutant_is_caught(mutant, copy):
    """By bits that differ or by a finding of the simulator's checks: nothing else is an error here."""
    found = outcome(copy, mutant)
    assert found.returncode == 1, found.stdout[-2000:]
    assert "BadInput" not in found.stdout, found.stdout[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("mutant", EQUIVALENT, ids=named)
def test_an_equivalent_change_passes(mutant, copy):
    """Which also shows that the copy, as it is, passes."""
    found = outcome(copy, mutant)
    assert found.returncode == 0, found.stdout[-2000:]
