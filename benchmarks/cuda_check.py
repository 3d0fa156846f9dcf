"""Holds translated kernels on an NVIDIA GPU against their twins: every item of `cuda_items`, each with a time limit.

    python -m benchmarks.cuda_check FOLDER --out OUT     FOLDER as `python -m benchmarks.cuda_items` wrote it

Where there is no such FOLDER it is made first, which needs flydsl. Writes OUT/cuda.json: an outcome an item, with what
the kernel takes of the device. A worker process runs the items one after the other; one that does not end in time is
killed with its worker, and a new worker goes on after it.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from benchmarks.cuda_items import LIST, Item, load, lower
from benchmarks.cuda_items import items as all_items
from benchmarks.cuda_kinds import KINDS, Found
from k3lab.backends.cuda import compiler, device
from k3lab.backends.cuda.emit import translate
from k3lab.backends.cuda.residency import Limits, check_shape, per_unit
from k3lab.backends.run import device_name, versions
from k3lab.errors import K3LabError
from k3lab.files import write_text
from k3lab.kernels.lowered import ARTEFACTS, file_of
from k3lab.launches import get
from k3lab.lowering import store

LIMIT = 90
"""Seconds for an item."""


def work(folder: Path, names: Sequence[str]) -> None:
    """A worker: the items of those names, a line of JSON before and after each."""
    wanted = {item.name: item for item in load(folder)}
    for name in names:
        print(json.dumps({"begun": name}), flush=True)
        start = time.perf_counter()
        try:
            found = KINDS[wanted[name].kind](wanted[name])
        except Exception as error:
            found = {"equal": False, "said": f"{type(error).__name__}: {error}"[:600]}
        found["wall"] = time.perf_counter() - start
        print(json.dumps({"done": name, "found": found}), flush=True)
        if "CUDA" in str(found.get("said", "")) and "Error" in str(found.get("said", "")):
            sys.exit(1)  # the context is lost


def supervised(folder: Path, names: list[str], limit: float) -> Iterator[tuple[str, Found]]:
    """Outcomes by name as they come; a worker that says nothing for too long is killed."""
    while names:
        command = [sys.executable, "-m", "benchmarks.cuda_check", str(folder), "--work", json.dumps(names)]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        lines: queue.Queue[str] = queue.Queue()
        assert worker.stdout
        threading.Thread(target=_read, args=(worker.stdout, lines), daemon=True).start()
        now = names[0]
        while names:
            try:
                line = lines.get(timeout=limit)
            except queue.Empty:
                worker.kill()
                line = ""
            if not line:
                yield now, {"equal": False, "said": f"ended or killed after {limit} s without a word"}
                names.remove(now)
                break
            said = json.loads(line)
            now = said.get("begun", now)
            if "done" in said:
                names.remove(said["done"])
                now = names[0] if names else now
                yield said["done"], said["found"]
        worker.wait()


def _read(stream: Any, lines: queue.Queue[str]) -> None:
    for line in stream:
        if line.startswith("{"):
            lines.put(line)
    lines.put("")


Build = tuple[Path, int, bool]
"""An artefact, the ranks of its launches, and whether it is the fast build."""


def builds(folder: Path, items: Sequence[Item]) -> list[Build]:
    """What the items run, and every other artefact in the folder in the exact build, on all its ranks."""
    found: set[Build] = set()
    for item in items:
        launch, key = get(item.launch), item.key()
        path = folder / file_of(launch, key, item.built())
        found.add((path, 1 if item.kind == "one-rank" else key.rank_count, item.kind.startswith("fast")))
        if item.kind == "fast":
            found.add((path, key.rank_count, False))
    known = {folder / file_of(get(item.launch), item.key(), item.built()) for item in load(folder)}
    return sorted(found) + [(path, 0, False) for path in sorted(set(folder.glob("*.mlir")) - known)]


def compile_all(made: list[Build], limits: Limits, processes: int) -> None:
    """Every build's kernel into the cache, several at a time."""
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        list(pool.map(_compile, made, [limits] * len(made)))


def _compile(build: Build, limits: Limits) -> None:
    path, ranks, fast = build
    artefact = store.load(path)
    key = get(artefact.about["target"]).key_type.from_dict(json.loads(artefact.about["key"]))
    ranks = ranks or key.rank_count
    try:
        source, blocks = translate(artefact.module, fast), key.geometry.blocks * ranks
        check_shape(limits, source, blocks)
        each = per_unit(limits, blocks)
        compiler.binary(source, limits.arch, ranks, each, device.places(blocks, each, fast))
    except K3LabError:
        return  # the item itself will say so


@click.command(help=__doc__)
@click.argument("folder", type=Path)
@click.option("--out", type=Path, default="cuda-check", show_default=True)
@click.option("--only", default="", help="Items whose name has one of these in it, with commas between.")
@click.option("--limit", default=LIMIT, show_default=True, help="Seconds an item may say nothing.")
@click.option("--lines", is_flag=True, help="Compile with line information, for tools that name places.")
@click.option("--racecheck", is_flag=True, help="Pass every workgroup barrier twice (`cuda_sanitize` says why).")
@click.option("--work", "names", default="", hidden=True)
def main(folder: Path, out: Path, only: str, limit: int, lines: bool, racecheck: bool, names: str) -> None:
    os.environ[ARTEFACTS] = str(folder)
    if lines:
        compiler.FLAGS = (*compiler.FLAGS, "--generate-line-info")
    if racecheck:
        compiler.FLAGS = (*compiler.FLAGS, "--define-macro=K3_RACECHECK")
    if names:
        work(folder, json.loads(names))
        return
    if not (folder / LIST).is_file():
        click.echo(f"lowered {len(list(lower(folder, all_items())))} items")
    items = [item for item in load(folder) if any(part in item.name for part in only.split(","))]
    here, begun = device.limits(0), time.perf_counter()
    compile_all(builds(folder, items), here, max(1, (os.cpu_count() or 1) - 1))
    click.echo(f"compiled in {time.perf_counter() - begun:.0f} s")
    outcomes: dict[str, Found] = {}
    about = {
        "device": device_name("cuda"),
        "versions": {**versions(), "nvrtc": compiler.version()},
    }
    for name, found in supervised(folder, [item.name for item in items], limit):
        outcomes[name] = found
        mark = "equal " if found["equal"] else "WRONG "
        click.echo(f"{mark}{name}: {found.get('said') or found.get('differ') or ''} {found.get('wall', 0):.1f} s")
        write_text(out / "cuda.json", json.dumps({**about, "items": outcomes}, indent=1))
    equal = sum(found["equal"] for found in outcomes.values())
    click.echo(f"{equal} of {len(outcomes)} items as they must be, {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
