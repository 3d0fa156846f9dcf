"""A clock that measures nothing, and the translated kernel on this machine's processor in the place of a GPU's."""

from __future__ import annotations

import itertools

import torch

from k3lab.backends.cuda import hostbuild
from k3lab.backends.cuda.emit import Source
from k3lab.bench.samples import Samples


class FakeClock:
    """Makes every call once for the warm-up and once for each repetition, and says what times it was told to say."""

    device = "cpu"

    def __init__(self, seconds=(1e-6,), graphs=True):
        self.told, self.graphs = itertools.cycle(seconds), graphs
        self.made = []

    def describe(self):
        versions = {"torch": torch.__version__, "nvrtc": "0"}
        return {
            "name": "fake",
            "units": 132,
            "l2_bytes": self.l2_bytes(),
            "memory_bytes": 1,
            "driver": "0.0",
            "versions": versions,
            "clock": "told times, nothing was measured",
        }

    def l2_bytes(self):
        return 1 << 20

    def units(self):
        return 132

    def bandwidth(self):
        return 1e9

    def wait(self):
        pass

    def calls(self, calls, repeats, before, queued=False):
        self.made.append(("queued" if queued else "calls", len(calls), repeats))
        return self._told(calls, repeats, before)

    def graph(self, calls, repeats, before):
        if not self.graphs:
            raise RuntimeError("no capture here\nand more lines")
        self.made.append(("graph", len(calls), repeats))
        return self._told(calls, repeats, before)

    def _told(self, calls, repeats, before):
        seconds = []
        for _ in range(repeats):
            before()
            for call in calls:
                call()
            seconds.append(next(self.told))
        return Samples(tuple(seconds), len(calls))


class FiberLauncher:
    """What `Step` and the benchmark use of a launcher; launches run here and now, in the exact build."""

    def __init__(self, ranks, device="cpu", fast=False):
        self.ranks = [buffers.to("cpu") for buffers in ranks]
        self.live = self.ranks
        self.launches = 0
        self.kernel = Kernel()

    def launch(self):
        self.launches += 1
        hostbuild.launched(self.live)

    def advance(self):
        for buffers in self.ranks:
            buffers.tensors["epoch"].add_(1)


class Kernel:
    registers, spilled, blocks = 64, 0, 48
    source = Source("fake", "", "", 512, 1, 100, 200)
