"""Small kernels, known right, to hold racecheck against: waves meet while others wait at the workgroup's barrier.

    python -m benchmarks.cuda_control KIND     one kernel on an NVIDIA GPU; ends in 1 where a value is wrong

A workgroup of four waves hands values over through shared memory, in rounds: every thread stores one, all pass the
workgroup's barrier, every thread loads another thread's, all pass the barrier again. Between a round's store and the
barrier waves may meet at their own named barriers, as in a translated kernel a wave does that polls for all. That
orders nothing that the workgroup's barrier does not order. Every value loaded is kept and compared.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping

import click
import torch

from k3lab.backends.cuda.compiler import binding, called, compiled
from k3lab.backends.cuda.device import limits

THREADS = 256
BLOCKS, ROUNDS, MEETINGS = 4, 32, 3
ALONE = "one wave meets while others wait"
TWICE = ", barriers twice"
ONCE = "__syncthreads()"
KINDS: Mapping[str, tuple[str, str]] = {
    "no wave meets": ("false", ONCE),
    "every wave meets": ("true", ONCE),
    ALONE: ("wave == 0", ONCE),
    ALONE + TWICE: ("wave == 0", f"{ONCE}; {ONCE}"),
}
"""Which waves meet, and how all pass the workgroup's barrier."""
TEXT = """
extern "C" __global__ void __launch_bounds__({threads}) k3_control(int* out) {{
  __shared__ int held[{threads}];
  const int thread = threadIdx.x, wave = thread / 64;
#pragma unroll 1
  for (int round = 0; round < {rounds}; ++round) {{
    const int first = ((int)blockIdx.x * {rounds} + round) * {threads};
    held[thread] = first + thread;
    if ({meets}) {{
#pragma unroll 1  // a branch as in a wait, no predicated barriers
      for (int meeting = 0; meeting < {meetings}; ++meeting)
        asm volatile("bar.sync %0, 64;" ::"r"(1 + wave) : "memory");
    }}
    {barrier};
    out[first + thread] = held[{threads} - 1 - thread];
    {barrier};
  }}
}}
"""


def text(kind: str, rounds: int = ROUNDS) -> str:
    """The kernel of a kind as CUDA C++."""
    meets, barrier = KINDS[kind]
    return TEXT.format(threads=THREADS, rounds=rounds, meetings=MEETINGS, meets=meets, barrier=barrier)


def right(out: torch.Tensor) -> bool:
    """Whether every round of every workgroup loaded what its threads stored in that round."""
    stored = torch.arange(out.numel(), dtype=out.dtype).view(-1, THREADS)
    return torch.equal(out.view(-1, THREADS), stored.flip(1))


def launched(kind: str, blocks: int, rounds: int) -> torch.Tensor:
    """What the kernel's threads loaded, in one launch on the first GPU."""
    driver, arch = binding("driver"), limits(0).arch
    out = torch.full((blocks * rounds * THREADS,), -1, dtype=torch.int32, device="cuda:0")
    torch.cuda.synchronize()  # torch's context is the current one
    library = called(driver.cuModuleLoadData(compiled(text(kind, rounds), arch)), "cuModuleLoadData")
    function = called(driver.cuModuleGetFunction(library, b"k3_control"), "cuModuleGetFunction")
    address = ctypes.c_uint64(out.data_ptr())
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(address))
    stream = torch.cuda.current_stream().cuda_stream
    how = (blocks, 1, 1, THREADS, 1, 1, 0, stream, ctypes.addressof(pointers), 0)
    called(driver.cuLaunchKernel(function, *how), "the launch")
    return out.cpu()


@click.command(help=__doc__)
@click.argument("kind", type=click.Choice(tuple(KINDS)))
@click.option("--blocks", default=BLOCKS, show_default=True, help="Workgroups of the launch.")
@click.option("--rounds", default=ROUNDS, show_default=True, help="Rounds of a workgroup.")
def main(kind: str, blocks: int, rounds: int) -> None:
    equal = right(launched(kind, blocks, rounds))
    click.echo(json.dumps({"kind": kind, "equal": equal}))
    raise SystemExit(0 if equal else 1)


if __name__ == "__main__":
    main()
