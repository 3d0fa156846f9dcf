"""The command line: `k3lab ...`. Heavy packages are imported inside the commands, so that `--help` is instant."""

from __future__ import annotations

from k3lab.cli.bench import bench
from k3lab.cli.cases import case
from k3lab.cli.chain import chain
from k3lab.cli.commands import bisect, budget, doctor, lab, report, run
from k3lab.cli.compile import compile_
from k3lab.cli.orders import orders
from k3lab.cli.program import cli
from k3lab.cli.render import render
from k3lab.cli.replay import replay
from k3lab.cli.selftest import selftest
from k3lab.cli.timeline import timeline

for command in (
    bench,
    doctor,
    run,
    report,
    render,
    bisect,
    timeline,
    selftest,
    budget,
    orders,
    chain,
    case,
    replay,
    compile_,
    lab,
):
    cli.add_command(command)


def main() -> None:
    """Entry point of the console script."""
    cli(prog_name="k3lab")


__all__ = ["cli", "main"]
