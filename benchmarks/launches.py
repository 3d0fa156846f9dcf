"""Times each launch's kernel in the simulator at full K3 size, and what it takes to lower and decode it.

    python benchmarks/launches.py [--tokens 4] [--repeat 3] [LAUNCH ...]

Prints seconds measured on this host (of simulating, not a device's time) and peak memory so far; asserts only that
every exposed tensor equals the kernel-order twin's, bit for bit.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from statistics import median

import click
import torch
from rich.console import Console
from rich.table import Table

import k3lab
from k3lab.backends.run import device_name
from k3lab.kernels.lowered import lowered
from k3lab.launches import get
from k3lab.sim.decode.program import decode


def timed_lowering(case: k3lab.Case) -> tuple[float, float]:
    """(seconds to lower with FlyDSL and parse, seconds to decode) with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["K3LAB_CACHE"] = folder
        start = time.perf_counter()
        module = lowered(get(case.launch), case.key)
        lowering = time.perf_counter() - start
    start = time.perf_counter()
    decode(module, module.launches[0].kernel)
    return lowering, time.perf_counter() - start


def simulated(case: k3lab.Case, twin: k3lab.Run) -> float:
    """Seconds of one simulated launch on all its ranks."""
    run = k3lab.run(case.launch, case, backend="sim")
    for rank, values in enumerate(run.ranks):
        for name, value in values.items():
            ours, theirs = (v.float().contiguous().view(torch.int32) for v in (value, twin.ranks[rank][name]))
            assert torch.equal(ours, theirs), f"{name} of rank {rank} differs from the twin"
    return run.seconds


@click.command(help=__doc__)
@click.option("--tokens", default=4, show_default=True)
@click.option("--repeat", default=3, show_default=True)
@click.argument("names", nargs=-1)
def main(tokens: int, repeat: int, names: tuple[str, ...]) -> None:
    table = Table(title=f"Kernels in the simulator, K3 size, S = {tokens}, measured on {device_name('cpu')}")
    for heading in ("launch", "ranks", "lower s", "decode s", "simulate s (median)", "least", "peak GiB"):
        table.add_column(heading, justify="right")
    for name in names or ("k1", "m1a", "k2a"):
        case = k3lab.make_case(name, tokens=tokens, nblocks=4)
        twin = k3lab.run(name, case)
        lowering, decoding = timed_lowering(case)
        seconds = [simulated(case, twin) for _ in range(repeat)]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        row = (lowering, decoding, median(seconds), min(seconds), peak)
        table.add_row(name, str(len(case.ranks)), *(f"{value:.2f}" for value in row))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
