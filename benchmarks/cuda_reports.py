"""Reports and timelines of all three launches on an NVIDIA GPU, at full K3 size.

    python -m benchmarks.cuda_reports FOLDER [--out OUT]     measures; without flydsl, FOLDER holds what --lower wrote
    python -m benchmarks.cuda_reports FOLDER --lower         lowers the builds into FOLDER (needs flydsl)

Writes OUT/LAUNCH-report.html and .json, LAUNCH-timeline.html and .json of the exact build; LAUNCH-fast-timeline.html
and .json of the fast one with the knobs that `k3lab bench` chose; `k3lab render` draws a page from its JSON.
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


def quick_cases() -> Iterator[k3lab.Case]:
    """The same for the fast build, K2a on one rank, with an H200's quickest BLOCKS and prefetch."""
    some = {"tokens": 4, "nblocks": 4, "prefetch": 1, **FULL}
    beside, alone = (replace(Geometry.k3(), blocks=blocks) for blocks in (188, 132))
    yield k3lab.make_case("k1", geometry=beside, qlen=4, **some)
    yield k3lab.make_case("m1a", geometry=alone, ranks=1, **some)
    yield k3lab.make_case("k2a", geometry=alone, ranks=1, **some)


def written(case: k3lab.Case, out: Path) -> Iterator[str]:
    """A case's report and timeline, in `out`."""
    name = case.launch
    with tempfile.TemporaryDirectory() as folder:
        report = k3lab.make_report(name, case, backend="cuda", budget=False, spread=False)
        times = run_timeline(name, case, backend="cuda")
        report.save(folder, timeline=times)
        for kind in ("html", "json"):
            text = Path(folder, f"report.{kind}").read_text(encoding="utf-8")
            yield str(write_text(out / f"{name}-report.{kind}", text))
        if not report.passed:
            raise SystemExit(f"{name}: a bound of the report does not hold")
    yield from timed(case, out / f"{name}-timeline", "exact")


def timed(case: k3lab.Case, out: Path, build: str) -> Iterator[str]:
    """A case's timeline, as `out`.html and .json."""
    times = run_timeline(case.launch, case, backend="cuda", build=build)
    with tempfile.TemporaryDirectory() as folder:
        page = times.save(Path(folder), ceilings="h200")
        for kind in (".html", ".json"):
            yield str(write_text(out.with_suffix(kind), page.with_suffix(kind).read_text(encoding="utf-8")))


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
    for case in quick_cases():
        if lower_it:
            click.echo(str(keep(folder, case.declaration, replace(case.key, timeline=True))))
        else:
            for path in timed(case, out / f"{case.launch}-fast-timeline", "fast"):
                click.echo(path)


if __name__ == "__main__":
    main()
