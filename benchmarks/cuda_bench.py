"""`k3lab bench` on a GPU machine without flydsl: its builds are found in FOLDER, and compiled several at a time first.

    python -m benchmarks.cuda_bench FOLDER [OPTIONS OF k3lab bench]

FOLDER as `k3lab bench ... --lower FOLDER` wrote it elsewhere, with the same options and the same sources. With --tune
the builds of the search's first round are compiled ahead, the others when it comes to them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click

from benchmarks.cuda_check import Build, compile_all
from k3lab.backends.cuda.device import limits
from k3lab.bench import tune
from k3lab.bench.make import Plan, key_of
from k3lab.cli import cli
from k3lab.errors import K3LabError
from k3lab.kernels.lowered import ARTEFACTS, file_of
from k3lab.launches import get

command = import_module("k3lab.cli.bench")  # the package has the command itself under that name


def builds(folder: Path, plan: Plan, units: int) -> Iterator[Build]:
    """What the plan runs, of what is in the folder: every default in both builds, and the first round of a search."""
    for name, tokens in plan.cases():
        launch, key = get(name), key_of(plan, name, tokens)
        first, *others = tune.candidates(key, units, plan.fields)
        for knobs in (first, *others) if plan.tune else [first]:
            path = folder / file_of(launch, tune.with_knobs(key, knobs))
            same = all(knobs[other] == first[other] for other in first if other not in tune.SEARCHED[0])
            if same and path.is_file():
                exact = knobs == first and "exact" not in plan.without
                yield from ((path, key.rank_count, fast) for fast in ((True, False) if exact else (True,)))


@click.command(help=__doc__, context_settings={"ignore_unknown_options": True})
@click.argument("folder", type=Path)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def main(folder: Path, options: tuple[str, ...]) -> None:
    os.environ[ARTEFACTS] = str(folder)
    given = command.bench.make_context("bench", list(options)).params
    try:
        here = limits(given["gpu"])
        made = sorted(set(builds(folder, command.plan_of(given), here.units)))
    except K3LabError as error:
        click.echo(f"cuda_bench: {error}", err=True)
        raise SystemExit(error.exit_code) from None
    begun = time.perf_counter()
    compile_all(made, here, os.cpu_count() or 1)
    click.echo(f"{len(made)} builds compiled in {time.perf_counter() - begun:.0f} s", err=True)
    cli(["bench", *options], prog_name="k3lab")


if __name__ == "__main__":
    main()
