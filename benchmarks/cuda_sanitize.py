"""Runs translated kernels at test size under NVIDIA's compute-sanitizer: bounds, races, barriers, unwritten memory.

    python -m benchmarks.cuda_sanitize FOLDER [--out OUT]     FOLDER as `python -m benchmarks.cuda_items` wrote it

Writes OUT/sanitizer.json: by tool and item, what the tool says in its last line, and whether it found nothing.

racecheck looks twice: at the kernels as they are, and at builds that pass every workgroup barrier twice. With single
barriers it reports shared memory that is stored before a barrier and loaded after it; a barrier alone, named ones too,
it knows (tried on small kernels), so what it loses is not known. Nothing is accessed between the two barriers, so
whatever they order one alone orders as well: a race of the kernel would be one of the build with two.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click

from benchmarks.cuda_items import Item, load
from k3lab.files import write_text

TOOLS = ("memcheck", "synccheck", "racecheck", "racecheck, barriers twice", "initcheck")
MORE = {"memcheck": ("--report-api-errors", "no")}  # which asks the driver for functions that it may not have
TWICE = ", barriers twice"
SUMMARY = ("ERROR SUMMARY", "RACECHECK SUMMARY")


def chosen(items: list[Item]) -> list[str]:
    """A launch's first small item that writes everything out."""
    wanted = {}
    for item in items:
        small = item.options["tokens"] <= 2 and item.geometry["hidden"] <= 2048
        if item.kind == "whole" and small and not item.options.get("bounded"):  # nothing is on time here
            wanted.setdefault(item.launch, item.name)
    return list(wanted.values())


def sanitized(folder: Path, tool: str, name: str, limit: int) -> dict[str, object]:
    """What a tool finds in one item."""
    build = ["--racecheck"] if tool.endswith(TWICE) else []
    run = [sys.executable, "-m", "benchmarks.cuda_check", str(folder), "--lines", *build, "--work", json.dumps([name])]
    check = ["compute-sanitizer", "--tool", tool.removesuffix(TWICE), *MORE.get(tool, ()), *run]
    try:
        done = subprocess.run(check, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"clean": False, "said": f"not done after {limit} s"}
    lines = done.stdout.splitlines()
    said = [line.removeprefix("=========").strip() for line in lines if any(word in line for word in SUMMARY)]
    found = [line.removeprefix("=========").strip() for line in lines if line.startswith("=========")]
    equal = '"equal": true' in done.stdout
    clean = bool(said) and all("0 errors" in line or "0 hazards" in line for line in said) and equal
    return {"clean": clean, "said": said, "equal": equal, **({} if clean else {"found": found[:40]})}


@click.command(help=__doc__)
@click.argument("folder", type=Path)
@click.option("--out", type=Path, default="cuda-check", show_default=True)
@click.option("--limit", default=100, show_default=True, help="Seconds for a tool and an item.")
def main(folder: Path, out: Path, limit: int) -> None:
    found: dict[str, dict[str, object]] = {}
    for tool in TOOLS:
        for name in chosen(load(folder)):
            made = found.setdefault(tool, {})[name] = sanitized(folder, tool, name, limit)
            click.echo(f"{tool} {name}: {made['said']} {made.get('found', '')}")
            write_text(out / "sanitizer.json", json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
