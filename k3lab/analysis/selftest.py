"""The self-test of a backend: every kernel there is, whole and stage by stage, against its twin bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from k3lab.analysis.bisect import StageCheck, check_stages, units
from k3lab.analysis.compare import compare
from k3lab.analysis.report import Report
from k3lab.analysis.words import plural
from k3lab.backends import Run, run
from k3lab.backends.session import KERNELS, check_kernel
from k3lab.backends.sim import Options
from k3lab.cases import Case, make_case
from k3lab.errors import BackendUnavailable, InternalFault, expect
from k3lab.files import write_text
from k3lab.geometry import Geometry
from k3lab.kernels.lowered import flydsl_version, has_kernel
from k3lab.launches import LAUNCHES

VERSION = 1
Progress = Callable[[str], None]

CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "k1": (
        {"tokens": 4, "qlen": 4, "nblocks": 4},
        {"tokens": 4, "qlen": 1, "nblocks": 8, "delta": False, "values": "specials"},
        {"tokens": 16, "qlen": 16, "nblocks": 8, "write_idx": 8, "null": "none", "values": "ties"},
    ),
    "m1a": (
        {"tokens": 4, "nblocks": 4, "ranks": 1},
        {"tokens": 1, "nblocks": 8, "ranks": 1, "values": "specials"},
        {"tokens": 16, "nblocks": 3, "ranks": 2},
    ),
    "k2a": (
        {"tokens": 4, "nblocks": 4, "ranks": 1},
        {"tokens": 4, "nblocks": 4, "ranks": 2, "values": "specials"},
        {"tokens": 16, "nblocks": 8, "ranks": 2},
    ),
}
"""By launch, the cases it is tested on."""
ONE_RANK = ("gfx950",)
"""Backends that run one rank in this version."""


@dataclass(frozen=True)
class Row:
    """One comparison: a launch, its case in words, what ran (`whole` or stages), and what came of it.

    Attributes:
        stopped: whether a fault ended it.
        report: the page of its report, in the self-test's folder; empty for a stage.
    """

    launch: str
    case: str
    what: str
    equal: bool
    outcome: str
    seconds: float
    stopped: bool = False
    report: str = ""


@dataclass(frozen=True)
class SelfTest:
    """What a self-test found; `reports` by folder, `without` the launches that have no kernel."""

    backend: str
    device: str
    created: str
    versions: dict[str, str]
    rows: Sequence[Row]
    reports: dict[str, Report]
    without: Sequence[str]

    @property
    def passed(self) -> bool:
        """Whether everything that ran is the twin's, bit for bit."""
        return all(row.equal for row in self.rows)

    @property
    def stopped(self) -> bool:
        """Whether a fault ended some run."""
        return any(row.stopped for row in self.rows)

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        failed = [f"{row.launch} {row.what}" for row in self.rows if not row.equal]
        if failed:
            return (
                f"{len(failed)} of {plural(len(self.rows), 'comparison')} failed: {', '.join(dict.fromkeys(failed))}."
            )
        return f"All {plural(len(self.rows), 'comparison')} are equal to the twin, bit for bit."

    def to_dict(self) -> dict[str, Any]:
        """What `selftest.json` holds; the reports lie in folders of their own."""
        held = {name: getattr(self, name) for name in ("backend", "device", "created", "versions", "verdict", "passed")}
        return {"version": VERSION, **held, "without": list(self.without), "rows": [asdict(row) for row in self.rows]}

    def save(self, folder: str | Path) -> Path:
        """Write selftest.html and selftest.json into `folder`, and every launch's report into one below; the page.

        Raises:
            BadInput: when the folder cannot be written.
        """
        from k3lab.analysis.html import selftest

        folder = Path(folder)
        for name, report in self.reports.items():
            report.save(folder / name)
        write_text(folder / "selftest.json", json.dumps(self.to_dict(), indent=1))
        return write_text(folder / "selftest.html", selftest(self.to_dict()))


def self_test(
    backend: str = "sim",
    names: Sequence[str] = (),
    geometry: str | Geometry = "",
    progress: Progress = lambda what: None,
) -> SelfTest:
    """Run the named launches (all, if none) and each of their stages on `backend`.

    Args:
        geometry: of the cases; full size on a GPU and mini in the simulator, if empty.
        progress: called with what is about to run.

    Raises:
        BadInput: for an unknown launch or backend.
        BackendUnavailable: when the backend cannot run here.
    """
    expect(backend in KERNELS, "backend", f"one that runs kernels: {', '.join(KERNELS)}", repr(backend))
    tested, without = chosen(names)
    check_kernel(LAUNCHES[tested[0]], backend, None, None, Options().mfma)
    rows: list[Row] = []
    reports: dict[str, Report] = {}
    device, versions = "", {"flydsl": flydsl_version()}
    for folder, case, about in cases(tested, backend, geometry):
        progress(f"{folder}, whole")
        twin = run(case.launch, case)
        made = _whole(case, twin, backend, about, folder, rows, reports)
        if made is not None:
            device, versions = made.provenance["device"], made.provenance["versions"]
        for stages in units(case):
            progress(f"{folder}, {'+'.join(stages)}")
            check, ran = check_stages(case, twin, stages, backend)
            rows.append(_row(case, about, check, ran))
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return SelfTest(backend, device or backend, created, versions, rows, reports, without)


def chosen(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Launches to test, and those that have no kernel.

    Raises:
        BadInput: for an unknown name.
        BackendUnavailable: when no launch that was named has a kernel.
    """
    for name in names:
        expect(name in LAUNCHES, "launch", f"one of {', '.join(LAUNCHES)}", repr(name))
    wanted = [name for name in LAUNCHES if not names or name in names]
    tested = [name for name in wanted if has_kernel(LAUNCHES[name])]
    if not tested:
        raise BackendUnavailable(f"selftest: expected a launch with a kernel, got {', '.join(wanted)} with none.")
    return tested, [name for name in wanted if name not in tested]


def cases(names: Sequence[str], backend: str, geometry: str | Geometry = "") -> Iterator[tuple[str, Case, str]]:
    """(folder, case, the case in words) of every case of the named launches."""
    size = geometry or ("mini" if backend == "sim" else "k3")
    for name in names:
        for number, options in enumerate(CASES[name]):
            if backend in ONE_RANK and options.get("ranks", 1) > 1:
                continue
            about = ", ".join(f"{option}={value}" for option, value in options.items())
            yield f"{name}-{number}", make_case(name, geometry=size, **options), about


def steps(names: Sequence[str], backend: str, geometry: str | Geometry = "") -> int:
    """How often `self_test` calls `progress`."""
    return sum(1 + len(units(case)) for _, case, _ in cases(chosen(names)[0], backend, geometry))


def _whole(
    case: Case, twin: Run, backend: str, about: str, folder: str, rows: list[Row], reports: dict[str, Report]
) -> Run | None:
    """The whole launch: its row and its report; its run, unless a fault ended it."""
    try:
        made = run(case.launch, case, backend, dumps=True)
    except InternalFault as fault:
        rows.append(Row(case.launch, about, "whole", False, f"stopped: {str(fault).rstrip('.')}", 0.0, True))
        return None
    report = reports[folder] = compare(made, twin)
    differ = [f"{row.name} in {row.difference.differ} values" for row in report.tensors if row.difference.differ]
    outcome = f"differs: {', '.join(differ)}" if differ else f"equal in all {len(report.tensors)} tensors"
    page = f"{folder}/report.html"
    rows.append(Row(case.launch, about, "whole", not differ, outcome, made.seconds, report=page))
    return made


def _row(case: Case, about: str, check: StageCheck, ran: Run | None) -> Row:
    seconds = ran.seconds if ran else 0.0
    return Row(case.launch, about, check.name, check.equal, check.outcome, seconds, bool(check.stopped))
