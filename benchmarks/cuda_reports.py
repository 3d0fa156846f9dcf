"""Reports and timelines of all three launches on an NVIDIA GPU, at full K3 size.

    python -m benchmarks.cuda_reports FOLDER [--out OUT]     measures; without flydsl, FOLDER holds what --lower wrote
    python -m benchmarks.cuda_reports FOLDER --lower         lowers the builds into FOLDER (needs flydsl)

Writes OUT/LAUNCH-report.html, LAUNCH-report.json and LAUNCH-timeline.html.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click

import k3lab
from benchmarks.cuda_items import FULL, GPU_BLOCKS
from k3lab.analysis.timeline import run_timeline
from k3lab.files import write_text
from k3lab.geometry import Geometry
from k3lab.kernels.lowered import ARTEFACTS, keep

RANKS = 2
"""Of K2a: as many as the launch of one GPU holds in one grid, with half the CTAs each."""


def cases() -> Iterator[k3lab.Case]:
    """A case of each launch that fits one GPU: S = 4, NB = 4."""
    some = {"tokens": 4, "nblocks": 4, **FULL}
    yield k3lab.make_case("k1", qlen=4, **some)
    yield k3lab.make_case("m1a", ranks=1, **some)
    yield k3lab.make_case("k2a", geometry=replace(Geometry.k3(RANKS), blocks=GPU_BLOCKS // RANKS), ranks=RANKS, **some)


def written(case: k3lab.Case, out: Path) -> Iterator[str]:
    """A case's report and timeline, in `out`."""
    name = case.launch
    with tempfile.TemporaryDirectory() as folder:
        report = k3lab.make_report(name, case, backend="cuda", budget=False, spread=False)
        report.save(folder)
        for kind in ("html", "json"):
            text = Path(folder, f"report.{kind}").read_text(encoding="utf-8")
            yield str(write_text(out / f"{name}-report.{kind}", text))
        if not report.passed:
            raise SystemExit(f"{name}: a bound of the report does not hold")
        page = run_timeline(name, case, backend="cuda").save(Path(folder), ceilings="h200")
        yield str(write_text(out / f"{name}-timeline.html", page.read_text(encoding="utf-8")))


@click.command(help=__doc__)
@click.argument("folder", type=Path)
@click.option("--out", type=Path, default="cuda-check", show_default=True)
@click.option("--lower", "lower_it", is_flag=True)
def main(folder: Path, out: Path, lower_it: bool) -> None:
    os.environ[ARTEFACTS] = str(folder)
    for case in cases():
        if lower_it:
            for built in ({"dumps": True}, {"timeline": True}):
                click.echo(str(keep(folder, case.declaration, replace(case.key, **built))))
        else:
            for path in written(case, out):
                click.echo(path)


if __name__ == "__main__":
    main()
