"""Reports and timelines of all three launches on an NVIDIA GPU, at full K3 size.

    python -m benchmarks.cuda_reports FOLDER [--out OUT]     measures; without flydsl, FOLDER holds what --lower wrote
    python -m benchmarks.cuda_reports FOLDER --lower         lowers the builds into FOLDER (needs flydsl)

Writes OUT/LAUNCH-report.html and .json, LAUNCH-timeline.html and .json of the exact build; LAUNCH-fast-timeline.html
and .json of the fast one with the knobs that `k3lab bench` chose; `k3lab render` draws a page from its JSON. The fast
timeline is of the last of many launches in a graph, on inputs in turn, as `k3lab bench` times them: in a first launch
the GPU fetches the kernel's code as well.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

import k3lab
from benchmarks.cuda_items import FULL, GPU_BLOCKS, QUICK_GEOMETRY, quick
from k3lab.analysis.timeline import Timeline, run_timeline
from k3lab.analysis.timeline.make import timeline_of, with_stamps
from k3lab.backends.cuda import compiler
from k3lab.backends.cuda.device import Launcher
from k3lab.backends.cuda.replay import Step
from k3lab.backends.run import device_name, versions
from k3lab.bench.clock import DeviceClock
from k3lab.bench.sets import rotation
from k3lab.files import write_text
from k3lab.geometry import Geometry
from k3lab.kernels import peers
from k3lab.kernels.host import Buffers
from k3lab.kernels.lowered import ARTEFACTS, keep

RANKS = 2
"""Of K2a: as many as the launch of one GPU holds in one grid, with half the CTAs each."""
REPLAYS = 3


def cases() -> Iterator[k3lab.Case]:
    """A case of each launch that fits one GPU: S = 4, NB = 4."""
    some = {"tokens": 4, "nblocks": 4, **FULL}
    yield k3lab.make_case("k1", qlen=4, **some)
    yield k3lab.make_case("m1a", ranks=1, **some)
    yield k3lab.make_case("k2a", geometry=replace(Geometry.k3(RANKS), blocks=GPU_BLOCKS // RANKS), ranks=RANKS, **some)


def quick_cases() -> Iterator[k3lab.Case]:
    """The same for the fast build, K2a on one rank, with an H200's quickest knobs."""
    some = {"tokens": 4, "nblocks": 4, "null": "none", "geometry": QUICK_GEOMETRY}
    for launch, options in {"k1": {"qlen": 4}, "m1a": {"ranks": 1}, "k2a": {"ranks": 1}}.items():
        yield k3lab.make_case(launch, **options, **some, **quick(launch))


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
    yield from drawn(times, out / f"{name}-timeline")


def in_a_row(case: k3lab.Case) -> Timeline:
    """The last of many launches of the fast build."""
    case, clock = with_stamps(case), DeviceClock()
    turn = rotation(case, clock.l2_bytes())
    ranks = [Buffers.of(case.declaration, case.key, tensors) for tensors in case.ranks]
    if case.declaration.peers(case.key):
        peers.join(ranks)
    step = Step(Launcher(ranks, fast=True), turn.sets, turn.launches)
    clock.graph([partial(step.put, number) for number in range(step.launches)], REPLAYS, step.advance)
    stamps = [held.tensors["tl"].cpu() for held in step.launcher.live]
    facts = {
        "versions": versions(),
        "backend": "cuda",
        "order": "kernel",
        "device": device_name("cuda"),
        "case": case.describe(),
        "translation": {"build": "fast", "clock": "global timer, ns", "nvrtc": compiler.version()},
        "launches": f"the last of {step.launches} in a graph that was replayed before",
    }
    return timeline_of(k3lab.Run(case, "cuda", "kernel", "fused", facts["device"], (), {}, 0.0, facts, stamps))


def drawn(times: Timeline, out: Path) -> Iterator[str]:
    """A timeline as `out`.html and .json."""
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
            for path in drawn(in_a_row(case), out / f"{case.launch}-fast-timeline"):
                click.echo(path)


if __name__ == "__main__":
    main()
