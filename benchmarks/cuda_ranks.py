"""Holds launches on several GPUs of this host against their twins, and times them: part by part, each with a limit.

    python -m benchmarks.cuda_ranks FOLDER --lower             writes the kernels into FOLDER (needs flydsl)
    python -m benchmarks.cuda_ranks FOLDER --out OUT           runs every part on the first two GPUs
    python -m benchmarks.cuda_ranks FOLDER --out OUT --parts equal,steps --gpus 4

Parts: `link` (what the link between the GPUs carries, how far their clocks are apart), `equal` (every kind of hand-off
against the twin, bit for bit on every rank), `steps` (thousands of steps at unequal paces), `killed` (a rank is killed
in a step), `stamped` (a timeline on one clock), `timed` (beside NCCL and torch's symmetric memory). Each runs in a
process of its own and writes OUT/PART.json item by item; one that takes too long is ended with all it started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import click

from benchmarks.cuda_check import Build
from benchmarks.cuda_items import Item, lower
from benchmarks.cuda_ranks_items import is_fast, items, plan_of
from benchmarks.cuda_ranks_parts import PARTS, Bench
from k3lab.backends.cuda import compiler, device
from k3lab.backends.cuda.emit import translate
from k3lab.backends.cuda.residency import Limits, per_unit
from k3lab.files import write_text
from k3lab.kernels.lowered import ARTEFACTS, file_of
from k3lab.launches import get
from k3lab.lowering import store

LIMITS = {"link": 40, "equal": 150, "steps": 300, "killed": 70, "stamped": 40, "timed": 90}
"""Seconds by part."""
COUNT = 10_000
"""Steps of an item of the part `steps`."""


def compile_items(folder: Path, chosen: Sequence[Item], gpus: int) -> None:
    """Every item's kernel into the cache, several at a time."""
    from k3lab.backends.cuda import device

    found = set()
    for item in chosen:
        path = folder / file_of(get(item.launch), item.key(), item.built())
        plan = plan_of(item, gpus, is_fast(item))
        found |= {(path, len(plan.live_on(gpu)), plan.fast) for gpu in range(plan.gpus)}
    begun = time.perf_counter()
    here, processes = device.limits(0), max(1, (os.cpu_count() or 1) - 1)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        list(pool.map(_compile, sorted(found), [here] * len(found)))
    click.echo(f"compiled {len(found)} kernels in {time.perf_counter() - begun:.0f} s")


def _compile(build: Build, limits: Limits) -> None:
    """A kernel as `device.load` makes it, which says so if it does not fit."""
    path, ranks, fast = build
    artefact = store.load(path)
    key = get(artefact.about["target"]).key_type.from_dict(json.loads(artefact.about["key"]))
    source, total = translate(artefact.module, fast), key.geometry.blocks * ranks
    each = per_unit(limits, total)
    compiler.binary(source, limits.arch, ranks, each, device.places(total, each, fast))


def run_part(part: str, arguments: Sequence[str], limit: float, out: Path) -> None:
    """One part in a process of its own, in a group that is ended whole when time is up; `out`, its results, says so."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.cuda_ranks", *arguments, "--work", part], process_group=0
    )
    try:
        worker.wait(limit)
    except subprocess.TimeoutExpired:
        click.echo(f"WRONG {part}: ended after {limit:.0f} s")
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        if out.is_file():
            found = json.loads(out.read_text())
            write_text(out, json.dumps({**found, "ended": f"ended by its limit of {limit:.0f} s"}, indent=1))


@click.command(help=__doc__)
@click.argument("folder", type=Path)
@click.option("--lower", "lowering", is_flag=True, help="Only write the kernels into FOLDER.")
@click.option("--out", type=Path, default="cuda-ranks", show_default=True)
@click.option("--parts", default=",".join(PARTS), show_default=True)
@click.option("--gpus", default=2, show_default=True)
@click.option("--only", default="", help="Items whose name has one of these in it, with commas between.")
@click.option("--steps", "count", default=COUNT, show_default=True)
@click.option(
    "--engine", default="gpu", type=click.Choice(["gpu", "host"]), help="host: to try the script, without GPUs."
)
@click.option("--slower", default=1.0, help="Every limit times that.")
@click.option("--work", default="", hidden=True)
def main(
    folder: Path,
    lowering: bool,
    out: Path,
    parts: str,
    gpus: int,
    only: str,
    count: int,
    engine: str,
    slower: float,
    work: str,
) -> None:
    chosen = [item for item in items() if any(words in item.name for words in only.split(","))]
    if lowering:
        for item in lower(folder, chosen):
            click.echo(item.name)
        return
    os.environ[ARTEFACTS] = str(folder.absolute())
    out.mkdir(parents=True, exist_ok=True)
    if work:
        PARTS[work](Bench(folder, out, work, gpus, engine, count, only))
        return
    begun = time.perf_counter()
    wanted = parts.split(",")
    if engine == "gpu":
        kinds = {part: f"ranks-{part}" for part in wanted}
        compile_items(folder, [item for item in chosen if item.kind in kinds.values()], gpus)
    results = {part: out / f"{part}.json" for part in wanted}
    arguments = [str(folder), "--out", str(out), "--gpus", str(gpus), "--only", only, "--steps", str(count)]
    for part in wanted:
        run_part(part, [*arguments, "--engine", engine], slower * LIMITS[part], results[part])
    rows = [
        row for path in results.values() if path.is_file() for row in json.loads(path.read_text())["items"].values()
    ]
    click.echo(
        f"{sum(row['equal'] for row in rows)} of {len(rows)} items as they must be, {time.perf_counter() - begun:.0f} s"
    )


if __name__ == "__main__":
    main()
