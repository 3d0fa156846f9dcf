"""`k3lab case`: make and inspect case files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from k3lab.cli import options


@click.group()
def case() -> None:
    """Make and inspect case files: all inputs of a launch."""


@case.command()
@click.argument("launch")
@click.option("-o", "--out", type=Path, required=True, metavar="FILE", help="Where to write the case.")
@options.case_options
def make(launch: str, out: Path, **described: Any) -> None:
    """Draw the inputs of LAUNCH and write them to a file."""
    from k3lab import cases

    made = options.make_case(launch, described)
    cases.save(made, out)
    click.echo(f"{out}: {made!r}")


@case.command()
@click.argument("file", type=Path)
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
def info(file: Path, as_json: bool) -> None:
    """Say what a case FILE holds; its checksums are verified."""
    from k3lab import cases
    from k3lab.cli import show

    loaded = cases.load(file)
    if as_json:
        click.echo(json.dumps(show.case_facts(loaded), indent=1))
        return
    console = show.console()
    console.print(repr(loaded), soft_wrap=True)
    console.print(show.case_table(loaded))
