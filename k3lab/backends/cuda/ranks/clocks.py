"""Times of several GPUs on one clock: how far two GPUs' global timers are apart, by round trips between them.

In round i one GPU stores at a_i and sees the answer at b_i on its clock; the other sees the question at c_i on its
own, and answers after that. So a_i <= c_i - offset <= b_i, whatever the two ways take: every round bounds the offset,
and all of them together bound it best. A timer moves on in steps, so each reading may be older by one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from k3lab.errors import InternalFault

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Offset:
    """How far another GPU's clock is ahead, in nanoseconds.

    Attributes:
        ns: the middle of the bounds; the truth is at most `within` away.
        one_way: half of a round trip, on average over the rounds: a store, the link, and the poll that sees it.
        step: of the coarser clock.
    """

    ns: float
    within: float
    one_way: float
    step: int

    @classmethod
    def of(cls, asked: torch.Tensor, answered: torch.Tensor) -> Offset:
        """From both sides' logs, int64 [rounds, 2], as `probes.ping` gives them.

        Raises:
            InternalFault: for a round without an answer, or bounds that contradict each other.
        """
        asked_, answered_ = asked.numpy(), answered.numpy()
        done = int((asked_.all(axis=1) & answered_.all(axis=1)).sum())
        if done < max(len(asked_), 2):
            raise InternalFault(f"clocks: expected an answer in every one of {len(asked_)} rounds, got {done}.")
        sent, back, seen = asked_[:, 0], asked_[:, 1], answered_[:, 1]
        step = max(_step(asked_), _step(answered_))
        low, high = int((seen - back).max()) - step, int((seen - sent).min()) + step
        if low > high:
            raise InternalFault(f"clocks: expected bounds of the offset that agree, got {low} .. {high} ns.")
        rounds = slice(1, None)  # the first waits for the other side to start
        one_way = float((back - sent)[rounds].mean()) / 2
        return cls((low + high) / 2, (high - low) / 2, one_way, step)


def _step(times: I64) -> int:
    """By how much a clock moves on at least, as its readings show."""
    steps = np.diff(np.unique(times))
    return int(steps.min()) if len(steps) else 0


@dataclass(frozen=True)
class Clocks:
    """Every GPU's offset from GPU 0, before and after what was timed.

    Attributes:
        before, after: by GPU; GPU 0's own are zero.
    """

    before: Sequence[Offset]
    after: Sequence[Offset]

    def offset(self, gpu: int) -> int:
        """To take from a GPU's times; the mean of both measurements."""
        return round((self.before[gpu].ns + self.after[gpu].ns) / 2)

    @property
    def within(self) -> float:
        """Nanoseconds that a time may be off by, drift between the two measurements included."""
        pairs = list(zip(self.before, self.after, strict=True))
        return max(max(old.within, new.within) + abs(new.ns - old.ns) / 2 for old, new in pairs)

    def on_one_clock(self, gpu: int, stamps: torch.Tensor) -> torch.Tensor:
        """Stamps of a GPU, int64, on GPU 0's clock; 0 stays 0."""
        return torch.where(stamps != 0, stamps - self.offset(gpu), stamps)

    def described(self) -> dict[str, Any]:
        """What provenance says."""
        far = max(gpu.one_way for gpu in self.before)
        offsets = [self.offset(gpu) for gpu in range(len(self.before))]
        return {
            "said": sentence(offsets, self.within, far),
            "offsets_ns": offsets,
            "within_ns": self.within,
            "one_way_ns": far,
            "step_ns": max(gpu.step for gpu in self.before),
        }


def sentence(offsets: Sequence[int], within: float, far: float) -> str:
    """What a reader of the times must know.

    Args:
        offsets: by GPU, nanoseconds that were taken from its times.
        within: nanoseconds that a time may be off by; `far`, those of one way over the link.
    """
    taken = ", ".join(f"{ns:,} ns from GPU {gpu}'s" for gpu, ns in enumerate(offsets) if gpu)
    return (
        f"Times of {len(offsets)} GPUs are on GPU 0's clock ({taken} were taken); another's may be off by "
        f"{within:.0f} ns (bounded by round trips through peer memory; one way takes {far:.0f} ns)."
    )
