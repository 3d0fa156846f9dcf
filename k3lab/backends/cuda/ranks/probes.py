"""Kernels that are no launch of the lab's: round trips between two GPUs, and a delay."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

import torch

from k3lab.backends.cuda import device, hostbuild
from k3lab.backends.cuda.arguments import WORD
from k3lab.backends.cuda.emit import Source

THREADS = 64
ROUNDS = 400
"""Round trips of a measurement."""
MOST_NS = 2_000_000_000
"""How long one answer may take; the first waits for the other process's launch."""
MOST_US = 120_000_000
"""The same on the host, whose clock counts microseconds."""
ARGUMENTS = {"ping": 6, "delay": 1}


def source(name: str) -> Source:
    """The kernel of `NAME.cuh`."""
    sizes = {"LDS": 0, "ROW": 8 * THREADS, "WAVE_BYTES": 8 * THREADS, "SHARED": 8 * THREADS}
    sizes |= {"PARAMETERS": ARGUMENTS[name], "THREADS": THREADS}
    macros = "".join(f"#define K3_{size} {value}\n" for size, value in sizes.items())
    body = files(__package__).joinpath(f"{name}.cuh").read_text(encoding="utf-8")
    return Source(name, macros, body, THREADS, ARGUMENTS[name], 0, 8 * THREADS)


def delay(index: int, ns: int) -> None:
    """Keep the current stream of a GPU busy for so many nanoseconds."""
    device.start(device.load_own(source("delay"), index), 1, [ns], index)


def ping(index: int | None, mine: int, theirs: int, asks: bool, rounds: int = ROUNDS) -> torch.Tensor:
    """One side of `rounds` round trips; int64 [rounds, 2]: when it began to wait, and when it saw the other's word.

    The side that asks stores right after it begins; the other stores right after it has seen. A row of zeros is a round
    that did not come. Both words must be 0 before.

    Args:
        index: the GPU; None: this machine's processor.
        mine, theirs: addresses of the words that this side and the other one read.
    """
    log = torch.zeros(rounds, 2, dtype=torch.int64, device="cpu" if index is None else f"cuda:{index}")
    most = MOST_US if index is None else MOST_NS
    words: Sequence[int] = [word & WORD for word in (mine, theirs, log.data_ptr(), rounds, int(asks), most)]
    if index is None:
        hostbuild.launch(source("ping"), 1, [words], others=True)
    else:
        device.start(device.load_own(source("ping"), index), 1, words, index)
        torch.cuda.synchronize()
    return log.cpu()
