"""Which ranks of a launch run, and on which GPU of this host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from k3lab.errors import expect

OTHERS = "do not run: their words are the kernel-order twin's"


@dataclass(frozen=True)
class Plan:
    """Rank r's memory lies on GPU r mod `gpus`, where its kernel runs if it does: a GPU's live ranks in one launch.

    Attributes:
        ranks: of the launch; `live` are those that run, in ascending order.
        fast: the build with tensor cores, in place of the exact one.
        why: the refusal of a launch of all ranks, where that is why not all of them run.
    """

    ranks: int
    live: tuple[int, ...]
    gpus: int = 1
    fast: bool = False
    why: str = ""

    @property
    def whole(self) -> bool:
        """Whether every rank runs."""
        return len(self.live) == self.ranks

    @property
    def most_live(self) -> int:
        """Ranks that run on the GPU that has most of them."""
        return max(len(self.live_on(gpu)) for gpu in range(self.gpus))

    def on(self, gpu: int) -> tuple[int, ...]:
        """The ranks whose memory lies on a GPU."""
        return tuple(range(gpu, self.ranks, self.gpus))

    def live_on(self, gpu: int) -> tuple[int, ...]:
        """Those of them that run."""
        return tuple(rank for rank in self.on(gpu) if rank in self.live)

    @property
    def text(self) -> str:
        """`rank 0 of 8 live`, in a label; empty where there is nothing to say."""
        which = f"rank {self.live[0]}" if len(self.live) == 1 else f"ranks {', '.join(map(str, self.live))}"
        parts = [] if self.whole else [f"{which} of {self.ranks} live"]
        return ", ".join([*parts, *([f"{self.gpus} GPUs"] if self.gpus > 1 else [])])

    def described(self) -> dict[str, Any]:
        """What provenance says of it."""
        others = {} if self.whole else {"others": OTHERS}
        why = {"because": self.why} if self.why else {}
        return {"of": self.ranks, "live": list(self.live), "gpus": self.gpus, **others, **why}


def checked(live: Sequence[int], ranks: int) -> tuple[int, ...]:
    """Numbers of live ranks in ascending order.

    Raises:
        BadInput: for none, one twice, or one that the launch does not have.
    """
    found = tuple(sorted(live))
    fine = found and len(set(found)) == len(found) and all(0 <= rank < ranks for rank in found)
    expect(fine, "live", f"ranks of 0 .. {ranks - 1}, each once", list(live))
    return found


def check_gpus(gpus: int, ranks: int, live: Sequence[int] | None = None) -> None:
    """Whether so many GPUs have something to run.

    Raises:
        BadInput: for fewer than one, more than there are ranks, or one without a live rank.
    """
    expect(1 <= gpus <= ranks, "gpus", f"1 .. {ranks}, as the launch has {ranks} ranks", gpus)
    idle = [gpu for gpu in range(gpus) if live is not None and not any(rank % gpus == gpu for rank in live)]
    fix = "rank r runs on GPU r mod gpus"
    expect(not idle, "live", f"a rank on each of {gpus} GPUs", f"{list(live or ())}, none on GPU {idle[:1]}", fix)
