"""What a process of a team launches on: its GPU, or for tests the same translation on this machine's processor."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from k3lab.backends.cuda import hostbuild
from k3lab.backends.cuda.device import Launcher
from k3lab.backends.cuda.emit import translate
from k3lab.backends.cuda.ranks import probes
from k3lab.kernels.host import Buffers
from k3lab.kernels.lowered import lowered
from k3lab.kernels.peers import Sent


class GpuLauncher(Launcher):
    """A launcher of one GPU of several."""

    def delay(self, seconds: float) -> None:
        """Keep the stream busy for a while."""
        probes.delay(self.index, int(seconds * 1e9))


class HostLauncher(GpuLauncher):
    """The same on this machine's processor: a launch is over when `launch` returns."""

    def __init__(
        self,
        ranks: Sequence[Buffers],
        live: Sequence[int] | None = None,
        *,
        sent: Sequence[Sequence[Sent]] = (),
        table: Sequence[int] = (),
    ) -> None:
        """Take the buffers as they are; arguments as of `Launcher`."""
        self.index, self.ranks, self.table, self.places = 0, list(ranks), list(table), live
        self.live = self.ranks if live is None else [self.ranks[place] for place in live]
        self.epoch = int(ranks[0].tensors["epoch"][0])
        self.sent = [list(given) for given in sent]
        build = self.live[0]
        hostbuild.build(translate(lowered(build.launch, build.key, build.stages)), len(self.live), others=True)

    def launch(self) -> None:
        """One launch, to its end."""
        hostbuild.launched(self.ranks, live=self.places, table=self.table, others=True)

    def finish(self) -> None:
        """Nothing is left to wait for."""

    def fetch(self) -> list[Buffers]:
        """Copies of the buffers as they are now."""
        return [buffers.to("cpu") for buffers in self.ranks]

    def delay(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


def on_gpu(
    ranks: Sequence[Buffers],
    live: Sequence[int],
    index: int,
    fast: bool,
    sent: Sequence[Sequence[Sent]],
    table: list[int],
) -> GpuLauncher:
    """A launcher on GPU `index`; arguments as of `Launcher`."""
    return GpuLauncher(ranks, f"cuda:{index}", live, fast, sent=sent, table=table)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory a tensor of any strides lies in, uint8 [bytes]."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    size = last + 1 if tensor.numel() else 0
    return tensor.as_strided((size,), (1,)).view(torch.uint8)
