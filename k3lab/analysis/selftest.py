"""The self-test of a backend: every kernel there is, whole and stage by stage, against its twin bit for bit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from k3lab.analysis import aiter
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
from k3lab.geometry import TP_SIZES, Geometry
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
ON_A_GPU: dict[str, dict[str, tuple[dict[str, Any], ...]]] = {
    "cuda": {
        "m1a": ({"tokens": 4, "nblocks": 4, "ranks": 8},),
        "k2a": ({"tokens": 4, "nblocks": 4, "ranks": 8}, {"tokens": 16, "nblocks": 4, "ranks": 8}),
    }
}
"""By backend and launch, more cases: ranks that do not all fit one GPU, so that one runs beside the twin's words."""
ONE_RANK = ("gfx950",)
"""Backends that run one rank in this version."""
SHARED_GPU = ("cuda",)
"""Backends on which all ranks run on one GPU at once."""
TOKEN_TILE = 4
"""Token rows in shared memory there: as many as leave room for two workgroups on a multiprocessor."""
WITH_AITER = ("gfx950",)
"""Backends beside which AITER can run."""


@dataclass(frozen=True)
class Row:
    """One comparison: a launch, its case in words, what ran (`whole` or stages), and what came of it.

    Attributes:
        stopped: whether a fault ended it.
        report: the page of its report, in the self-test's folder; empty for a stage.
        judged: whether it must be equal; what AITER makes is shown beside, for information.
    """

    launch: str
    case: str
    what: str
    equal: bool
    outcome: str
    seconds: float
    stopped: bool = False
    report: str = ""
    judged: bool = True


@dataclass(frozen=True)
class SelfTest:
    """What a self-test found.

    Attributes:
        reports: by folder.
        without: launches that have no kernel.
        notes: sentences on what was left out.
    """

    backend: str
    device: str
    created: str
    versions: dict[str, str]
    rows: Sequence[Row]
    reports: dict[str, Report]
    without: Sequence[str]
    notes: Sequence[str] = ()

    @property
    def judged(self) -> list[Row]:
        """The rows that must be equal."""
        return [row for row in self.rows if row.judged]

    @property
    def passed(self) -> bool:
        """Whether every kernel's run is the twin's, bit for bit."""
        return all(row.equal for row in self.judged)

    @property
    def stopped(self) -> bool:
        """Whether a fault ended some run."""
        return any(row.stopped for row in self.rows)

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        failed = [f"{row.launch} {row.what}" for row in self.judged if not row.equal]
        comparisons = plural(len(self.judged), "comparison")
        if failed:
            return f"{len(failed)} of {comparisons} failed: {', '.join(dict.fromkeys(failed))}."
        return f"All {comparisons} are equal to the twin, bit for bit."

    def to_dict(self) -> dict[str, Any]:
        """What `selftest.json` holds; the reports lie in folders of their own."""
        held = {name: getattr(self, name) for name in ("backend", "device", "created", "versions", "verdict", "passed")}
        lists = {"without": list(self.without), "notes": list(self.notes), "rows": [asdict(row) for row in self.rows]}
        return {"version": VERSION, **held, **lists}

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
    notes = aiter_missing() if backend in WITH_AITER else []
    if backend in WITH_AITER and not notes:
        rows += beside(progress)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return SelfTest(backend, device or backend, created, versions, rows, reports, without, notes)


def aiter_missing() -> list[str]:
    """Why AITER cannot be shown beside; nothing where it can."""
    try:
        aiter.check_here()
    except BackendUnavailable as error:
        return [str(error)]
    return []


def beside(progress: Progress) -> list[Row]:
    """AITER's operators beside ours: rows that are not judged."""
    about, rows = ", ".join(f"{option}={value}" for option, value in aiter.CASE.items()), []
    for what, check in aiter.CHECKS.items():
        progress(f"AITER, {what}")
        start = time.perf_counter()
        try:
            equal, outcome = check()
        except Exception as error:  # whatever AITER raises must not end the self-test
            equal, outcome = False, f"stopped: {type(error).__name__}: {error}"
        rows.append(Row("AITER", about, what, equal, outcome, time.perf_counter() - start, judged=False))
    return rows


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
        for number, options in enumerate((*CASES[name], *ON_A_GPU.get(backend, {}).get(name, ()))):
            if backend in ONE_RANK and options.get("ranks", 1) > 1:
                continue
            about = ", ".join(f"{option}={value}" for option, value in options.items())
            knobs: dict[str, Any] = {"geometry": size}
            if backend in SHARED_GPU and size == "k3":
                sizes = Geometry.k3()
                ranks = options.get("ranks", 1)
                blocks = sizes.blocks // (1 if ranks == max(TP_SIZES) else ranks)
                knobs = {"geometry": replace(sizes, blocks=blocks), "token_tile": TOKEN_TILE}
            yield f"{name}-{number}", make_case(name, **knobs, **options), about


def steps(names: Sequence[str], backend: str, geometry: str | Geometry = "") -> int:
    """How often `self_test` calls `progress`."""
    kernels = sum(1 + len(units(case)) for _, case, _ in cases(chosen(names)[0], backend, geometry))
    return kernels + (len(aiter.CHECKS) if backend in WITH_AITER and not aiter_missing() else 0)


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
