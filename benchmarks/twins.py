"""Measures the twins: wall time of making a case and of a run in each order, and what an idle rounding seam costs.

    python benchmarks/twins.py [--tokens 8] [--repeat 5]

Prints medians measured on this host; asserts nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import click
import torch
from rich.console import Console
from rich.table import Table

import k3lab
from k3lab.backends.run import device_name
from k3lab.rounding import Probe, pass_through

LAUNCHES = (("k1", {"qlen": 4}), ("m1a", {"ranks": 1}), ("m1a", {"ranks": 8}), ("k2a", {"ranks": 8}))
WAYS = {"kernel order": {}, "torch order": {"order": "torch"}, "oracle": {"backend": "oracle"}}


def seconds(work: Callable[[], object], repeat: int) -> float:
    """Median wall time of `work`, after one run to warm up."""
    work()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times)


def idle_seam(point: str, value: torch.Tensor, passes: int = 2000) -> float:
    """Seconds one passing of the seam costs beyond the rounding it does, with the keeper that every run has."""
    with Probe(record="k1.*", keep=True, stats=False) as probe:
        start = time.perf_counter()
        for _ in range(passes):
            pass_through(point, value, "fp32")
            probe.values.clear()
        with_seam = time.perf_counter() - start
    return with_seam / passes


@click.command()
@click.option("--tokens", default=8, show_default=True)
@click.option("--repeat", default=5, show_default=True)
def main(tokens: int, repeat: int) -> None:
    """Print the table."""
    table = Table(title=f"Twins at full K3 size, S = {tokens}: median seconds, measured on {device_name('cpu')}")
    for column in ("launch", "options", "make case", *WAYS, "rounding points", "idle seam, share of torch order"):
        table.add_column(column, justify="right" if column in WAYS else "left")
    for launch, options in LAUNCHES:
        make = seconds(lambda: k3lab.make_case(launch, tokens=tokens, **options), 1)  # noqa: B023
        case = k3lab.make_case(launch, tokens=tokens, **options)
        times = {name: seconds(lambda: k3lab.run(launch, case, **way), repeat) for name, way in WAYS.items()}  # noqa: B023
        passes = sum(len(passed) for passed in k3lab.run(launch, case, order="torch").points.values())
        share = passes * idle_seam("k1.mix.x", torch.zeros(1)) / times["torch order"]
        shown = ", ".join(f"{name} {value}" for name, value in options.items())
        table.add_row(launch, shown, f"{make:.2f}", *(f"{t:.2f}" for t in times.values()), str(passes), f"{share:.3%}")
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
