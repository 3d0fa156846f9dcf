from __future__ import annotations

import pytest

from k3lab.analysis.make import make_report, report_steps
from k3lab.analysis.report import Report
from k3lab.cases import make_case


@pytest.fixture(scope="session")
def made() -> tuple[Report, list[str], int]:
    """A whole report of K1 at mini geometry, the steps it announced and the number promised."""
    case = make_case("k1", geometry="mini")
    steps: list[str] = []
    report = make_report("k1", case, progress=steps.append)
    return report, steps, report_steps(case)


@pytest.fixture
def report(made: tuple[Report, list[str], int]) -> Report:
    return made[0]
