"""Measures the simulator: the producer / GEMV launch at full K3 width, and Triton's interpreter on an equivalent GEMV.

    python benchmarks/simulator.py [--repeat 3] [--races]

Prints wall and processor times and lane-instructions a second measured on this host, and peak memory; asserts only that
the result equals the kernel-order twin's. Triton is timed where it is installed (`pip install triton`), on one task of
16 rows, as a whole launch would take it minutes.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import median

import click
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from k3lab.arith import KernelOrder
from k3lab.arith.plans import GEMV
from k3lab.backends.run import device_name
from k3lab.formats import bf16_bits, bf16_values
from k3lab.lowering.capture import lower
from k3lab.sim.decode.program import decode
from k3lab.sim.launch import simulate
from k3lab.sim.memory.regions import SharedRegion
from k3lab.sim.options import Options

TRITON_ROWS = 16


def inputs(hidden: int, rows: int, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """fp32 rows [tokens, hidden] and bf16 weights [rows, hidden], as bits."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((rows, hidden), dtype=np.float32) * np.float32(hidden**-0.5)
    return rng.standard_normal((tokens, hidden), dtype=np.float32), bf16_bits(weights)


@dataclass(frozen=True)
class Measured:
    """Seconds: of lowering and decoding, and of every launch, by the clock and on the processor."""

    lowering: float
    decoding: float
    wall: list[float]
    processor: list[float]
    lane_instructions: int


def simulated(repeat: int, options: Options) -> Measured:
    """Lowers and decodes the launch once, simulates it `repeat` times and checks every output bit."""
    import kernels

    src, weights = inputs(kernels.HIDDEN, kernels.ROWS, kernels.TOKENS)
    x, out = np.zeros((kernels.TOKENS, kernels.HIDDEN), np.uint16), np.zeros((kernels.TOKENS, kernels.ROWS), np.uint16)
    flags = np.zeros(kernels.PRODUCERS, np.int32)
    start = time.perf_counter()
    module = lower(kernels.producer_gemv, *[0] * 6)
    lowered = time.perf_counter()
    for kernel in module.kernels:
        decode(module, kernel)
    decoded = time.perf_counter()
    regions = [
        SharedRegion("x", 1, 0, x.nbytes, "rows", guard="flags"),
        SharedRegion("flags", 2, 0, flags.nbytes, "flags"),
    ]
    wall, processor = [], []
    for _ in range(repeat):
        flags[:], out[:] = 0, 0
        begun, used = time.perf_counter(), time.process_time()
        engine = simulate(module, src, x, flags, weights, out, 1, options=options, regions=regions)
        wall.append(time.perf_counter() - begun)
        processor.append(time.process_time() - used)
    product = KernelOrder("k1").matmul(
        torch.from_numpy(bf16_values(bf16_bits(src * np.float32(0.5)))), _values(weights), GEMV
    )
    assert np.array_equal(out, bf16_bits(product.numpy())), "the simulated launch differs from the twin"
    return Measured(lowered - start, decoded - lowered, wall, processor, engine.lane_instructions)


def _values(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bf16_values(bits))


def interpreted() -> float | None:
    """Seconds Triton's interpreter takes for one task of 16 rows, or None where Triton is not installed."""
    if find_spec("triton") is None:
        return None
    os.environ["TRITON_INTERPRET"] = "1"
    import triton_gemv

    src, weights = inputs(7168, TRITON_ROWS, 4)
    return triton_gemv.seconds(torch.from_numpy(src), _values(weights))


@click.command()
@click.option("--repeat", default=3, show_default=True)
@click.option("--races", is_flag=True, help="With all detectors: races, guards, scopes.")
def main(repeat: int, races: bool) -> None:
    """Print the table."""
    measured = simulated(repeat, Options(races=races, global_races=races, guards=races, scopes=races))
    seconds = median(measured.wall)
    table = Table(title=f"256 x 512 threads, 6288 x 7168 bf16 GEMV, measured on {device_name('cpu')}")
    table.add_column("what")
    table.add_column("measured", justify="right")
    what = "simulated launch, always-on checks" + (", all detectors" if races else "")
    table.add_row(what, f"{seconds:.2f} s (least {min(measured.wall):.2f} s)")
    table.add_row("the same in processor time", f"{median(measured.processor):.2f} s")
    table.add_row("lowering", f"{measured.lowering:.2f} s")
    table.add_row("decoding", f"{measured.decoding:.2f} s")
    table.add_row("lane-instructions a second", f"{measured.lane_instructions / seconds:.3g}")
    table.add_row(
        "peak memory of this process", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB"
    )
    triton = interpreted()
    task = "not installed" if triton is None else f"{triton:.2f} s a task of 16 rows; {triton * 393:.0f} s for all 393"
    table.add_row("Triton's interpreter, equivalent GEMV", task)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
