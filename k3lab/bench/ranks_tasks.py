"""What a process of a team does for a benchmark over several GPUs: tasks, each a function that takes the worker first.

Of launches in a row each is timed alone, between two marks on its GPU's stream. The row is put once to see how long the
host takes, then again behind a delay of twice that: so the device never waits for the host, and what is timed is the
device's. What a GPU waits for another's words is part of its time.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from k3lab.backends.cuda.compiler import binding, called
from k3lab.backends.cuda.ranks.worker import Worker

FIRST = 10
"""One in so many, the first ones of a row, is not counted: the GPUs' delays do not end at the same time."""
LONGEST_DELAY = 2.0
"""Seconds."""

Put = Callable[[], object]


class Mark(Protocol):
    """A moment on a stream."""

    def record(self) -> object:
        """Put it there."""

    def elapsed_time(self, other: Any) -> float:
        """Milliseconds until another one."""


class HostMark:
    """The same on this machine's processor, where a launch is over when it returns."""

    at = 0.0

    def record(self) -> None:
        """Note the time."""
        self.at = time.perf_counter()

    def elapsed_time(self, other: HostMark) -> float:
        """Milliseconds until another one."""
        return 1e3 * (other.at - self.at)


def mark(worker: Worker) -> Mark:
    """A mark that is not put yet."""
    return HostMark() if worker.gpu is None else torch.cuda.Event(enable_timing=True)


def row(
    worker: Worker, put: Put, count: int, before: Put | None = None, queued: bool = True
) -> tuple[list[float], float]:
    """Seconds of each of `count` puts, and from one to the next.

    Args:
        before: put ahead of each, outside what is timed.
        queued: all are in the queue before the first runs; else the device takes them as the host puts them.
    """
    first = -(-count // FIRST)
    pairs = [(mark(worker), mark(worker)) for _ in range(first + count)]

    def every() -> None:
        for start, end in pairs:
            if before is not None:
                before()
            start.record()
            put()
            end.record()

    worker.fence()
    begun = time.perf_counter()
    every()
    host = time.perf_counter() - begun
    worker.settle()
    worker.fence()
    if queued and worker.gpu is not None:
        worker.running.delay(min(2 * host, LONGEST_DELAY))
    every()
    worker.settle()
    worker.fence()
    counted = pairs[first:]
    step = counted[0][0].elapsed_time(counted[-1][1]) / 1e3 / count
    return [start.elapsed_time(end) / 1e3 for start, end in counted], step


def launches(worker: Worker, count: int) -> dict[str, Any]:
    """`count` launches of what is loaded, each in an epoch of its own: seconds of each and of a step, the kernel."""
    seconds, step = row(worker, worker.running.launch, count, worker.running.advance)
    return {"seconds": seconds, "step": step, "kernel": _kernel(worker)}


def _kernel(worker: Worker) -> dict[str, int]:
    if worker.gpu is None:
        return {}
    made = worker.running.kernel
    return {"registers": made.registers, "spilled": made.spilled, "shared": made.source.shared, "blocks": made.blocks}


def copies(worker: Worker, nbytes: int, times: int) -> dict[str, float]:
    """Bytes a second of copies into this GPU's memory: from its own, and over the link from the next GPU's.

    As the copy engine moves them; on the host, as its processor does.
    """
    mine, table = worker.addresses("copy", nbytes)
    other, found = torch.empty(nbytes, dtype=torch.uint8, device=mine.device), {}
    for name, source in (("own", mine.data_ptr()), ("peer", table[(worker.setup.me + 1) % len(table)])):
        start, end = mark(worker), mark(worker)
        worker.fence()
        for i in range(times + 1):
            if i == 1:  # one ahead
                start.record()
            _copy(worker, other.data_ptr(), source, nbytes)
        end.record()
        _wait(worker)
        found[name] = nbytes * times / (start.elapsed_time(end) / 1e3)
    worker.fence()
    return found


def _copy(worker: Worker, target: int, source: int, nbytes: int) -> None:
    if worker.gpu is None:
        ctypes.memmove(target, source, nbytes)
        return
    stream = torch.cuda.current_stream().cuda_stream
    done = binding("driver").cuMemcpyDtoDAsync(target, source, nbytes, stream)
    if int(done[0]):
        called((*done, None), "cuMemcpyDtoDAsync")


def _wait(worker: Worker) -> None:
    if worker.gpu is not None:
        torch.cuda.synchronize()
