"""What times: a GPU's own events around many launches, in a CUDA graph or put one after the other.

Timed is what lies between two events on the stream: in a graph, one replay of all its launches; without one, the
launches as the host puts them, so that work the device ends sooner than the host asks for more shows the host's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import torch

from k3lab.backends.cuda import compiler, device
from k3lab.backends.run import versions
from k3lab.bench.samples import Samples

COPY_BYTES = 1 << 30
"""Of a copy whose bandwidth is taken: far more than any cache."""
COPIES = 20
WARM = 3
"""Repetitions that are not counted."""
MOST_HERTZ = 2e9
"""No GPU of today's clock is quicker: cycles of a wait count on it."""
DRIVER = Path("/proc/driver/nvidia/version")

Call = Callable[[], object]


class Clock(Protocol):
    """Times calls that put work on a device."""

    device: str

    def describe(self) -> dict[str, Any]:
        """What was measured on, and with what."""

    def l2_bytes(self) -> int:
        """Of the device's last cache."""

    def units(self) -> int:
        """Multiprocessors."""

    def bandwidth(self) -> float:
        """Bytes a second of a large copy on the device, read and written ones."""

    def calls(self, calls: Sequence[Call], repeats: int, before: Call, queued: bool = False) -> Samples:
        """The calls one after the other; `before` is called ahead of each repetition, outside what is timed.

        Args:
            queued: keep the device busy until all calls are in its queue, so that it never waits for the host.
        """

    def graph(self, calls: Sequence[Call], repeats: int, before: Call) -> Samples:
        """The calls captured once, in a graph that is replayed."""

    def wait(self) -> None:
        """Until all work is done."""


class DeviceClock:
    """The events of GPU number `index`."""

    def __init__(self, index: int = 0) -> None:
        """Look for the GPU.

        Raises:
            BackendUnavailable: when torch finds none, or the bindings or NVRTC are missing.
        """
        self.limits = device.limits(index)
        compiler.version()
        self.index, self.device = index, f"cuda:{index}"
        torch.cuda.set_device(index)

    def describe(self) -> dict[str, Any]:
        made = torch.cuda.get_device_properties(self.index)
        return {
            "name": made.name,
            "units": made.multi_processor_count,
            "l2_bytes": self.l2_bytes(),
            "memory_bytes": made.total_memory,
            "driver": driver(),
            "versions": {**versions(), "cuda": str(torch.version.cuda), "nvrtc": compiler.version(), **_triton()},
            "clock": "events of the device, CUDA",
        }

    def l2_bytes(self) -> int:
        return int(torch.cuda.get_device_properties(self.index).L2_cache_size)

    def units(self) -> int:
        return self.limits.units

    def bandwidth(self) -> float:
        source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        source.zero_()
        timed = self.calls([lambda: target.copy_(source)], COPIES, nothing)
        return 2 * COPY_BYTES / timed.median

    def calls(self, calls: Sequence[Call], repeats: int, before: Call, queued: bool = False) -> Samples:
        def put() -> None:
            for call in calls:
                call()

        if not queued:
            return self._timed(put, len(calls), repeats, before)
        before()
        begun = time.perf_counter()
        put()
        self.wait()
        cycles = int(2 * MOST_HERTZ * (time.perf_counter() - begun))  # twice what the host took for it

        def busy() -> None:
            before()
            torch.cuda._sleep(cycles)

        return self._timed(put, len(calls), repeats, busy)

    def graph(self, calls: Sequence[Call], repeats: int, before: Call) -> Samples:
        made = torch.cuda.CUDAGraph()
        self.wait()
        with torch.cuda.graph(made):
            kept = [call() for call in calls]  # outputs live as long as the graph writes them
        timed = self._timed(made.replay, len(calls), repeats, before)
        del kept
        return timed

    def wait(self) -> None:
        torch.cuda.synchronize(self.index)

    def _timed(self, put: Call, launches: int, repeats: int, before: Call) -> Samples:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        seconds = []
        for _ in range(WARM + repeats):
            before()
            start.record()
            put()
            end.record()
            end.synchronize()
            seconds.append(start.elapsed_time(end) / 1e3 / launches)
        return Samples(tuple(seconds[WARM:]), launches)


def nothing() -> None:
    """Ahead of repetitions that need nothing."""


def driver() -> str:
    """The kernel driver's version, as it says itself."""
    try:
        words = DRIVER.read_text(encoding="utf-8").splitlines()[0].split()
    except (OSError, IndexError):
        return "unknown"
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")


def _triton() -> dict[str, str]:
    """What torch.compile makes its kernels with."""
    try:
        return {"triton": version("triton")}
    except PackageNotFoundError:
        return {}
