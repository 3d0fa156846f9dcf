"""Runs translated kernels at test size under NVIDIA's compute-sanitizer: bounds, races, barriers, unwritten memory.

    python -m benchmarks.cuda_sanitize FOLDER [--out OUT]     FOLDER as `python -m benchmarks.cuda_items` wrote it

Writes OUT/sanitizer.json: by tool and item, what the tool says in its last line, and whether it found nothing.

racecheck runs over the kernels as they are and over builds that pass every workgroup barrier twice; the builds with two
barriers are the ones that are judged. With single barriers it reports shared memory that is stored before a workgroup
barrier and loaded after it. The control (`cuda_control`) shows it report the same of a small kernel that is known
right, where one wave meets at its own named barrier while the others wait at the workgroup's, which is how the
translated kernels wait; with every workgroup barrier passed twice it reports nothing there. Nothing is accessed between
the two barriers, so a race of the kernel is a race of that build too.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click

from benchmarks import cuda_control
from benchmarks.cuda_items import Item, load
from k3lab.files import write_text

CONTROL = "racecheck, control"
TWICE = ", barriers twice"
TOOLS = ("memcheck", "synccheck", "racecheck", f"racecheck{TWICE}", CONTROL, "initcheck")
MORE = {"memcheck": ("--report-api-errors", "no")}  # which asks the driver for functions that it may not have
SUMMARY = ("ERROR SUMMARY", "RACECHECK SUMMARY")
NOTHING = re.compile(r"SUMMARY: 0 (errors|hazards)\b")


def chosen(items: list[Item]) -> list[str]:
    """A launch's first small item that writes everything out."""
    wanted: dict[str, str] = {}
    for item in items:
        small = item.options["tokens"] <= 2 and item.geometry["hidden"] <= 2048
        if item.kind == "whole" and small and not item.options.get("bounded"):  # nothing is on time here
            wanted.setdefault(item.launch, item.name)
    return list(wanted.values())


def command(folder: Path, tool: str, name: str) -> list[str]:
    """The program that a tool watches: one item, or one kind of control kernel."""
    if tool == CONTROL:
        return [sys.executable, "-m", "benchmarks.cuda_control", name]
    build = ["--racecheck"] if tool.endswith(TWICE) else []
    return [sys.executable, "-m", "benchmarks.cuda_check", str(folder), "--lines", *build, "--work", json.dumps([name])]


def sanitized(folder: Path, tool: str, limit: int, name: str) -> dict[str, object]:
    """What a tool finds in one item or control kernel, whose results must be right too."""
    kind = tool.partition(",")[0]
    check = ["compute-sanitizer", "--tool", kind, *MORE.get(kind, ()), *command(folder, tool, name)]
    try:
        done = subprocess.run(check, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"clean": False, "said": f"not done after {limit} s"}
    lines = done.stdout.splitlines()
    said = [line.removeprefix("=========").strip() for line in lines if any(word in line for word in SUMMARY)]
    found = [line.removeprefix("=========").strip() for line in lines if line.startswith("=========")]
    equal = '"equal": true' in done.stdout
    clean = bool(said) and all(NOTHING.search(line) for line in said) and equal
    return {"clean": clean, "said": said, "equal": equal, **({} if clean else {"found": found[:40]})}


@click.command(help=__doc__)
@click.argument("folder", type=Path)
@click.option("--out", type=Path, default="cuda-check", show_default=True)
@click.option("--limit", default=100, show_default=True, help="Seconds for a tool and an item.")
@click.option("--at-once", default=4, show_default=True, help="Items that a tool is run on at a time.")
def main(folder: Path, out: Path, limit: int, at_once: int) -> None:
    found: dict[str, dict[str, object]] = {}
    items = chosen(load(folder))
    with ThreadPoolExecutor(at_once) as pool:
        for tool in TOOLS:
            names = list(cuda_control.KINDS) if tool == CONTROL else items
            for name, made in zip(names, pool.map(partial(sanitized, folder, tool, limit), names), strict=True):
                found.setdefault(tool, {})[name] = made
                click.echo(f"{tool} {name}: {made['said']} {made.get('found', '')}")
                write_text(out / "sanitizer.json", json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
