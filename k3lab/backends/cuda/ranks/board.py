"""Where the processes of a team stand: a fence they all pass, and who is missing when one does not come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from k3lab.errors import InternalFault

FIELDS = ("process", "fence", "epoch", "gone")
"""What a process says of itself: its number, fences reached, its launches' epoch; and whether it has ended."""
PATIENCE = 60.0
"""Seconds that a fence waits."""
NAP = 20e-6
"""Seconds between two looks."""


class MissingRanks(InternalFault):
    """Some process of a team did not reach a fence; `ranks` are those whose kernels it runs."""

    def __init__(self, said: str, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        super().__init__(said)


class Board:
    """Words in memory that all processes of a team share, int64 [processes, fields]: each writes a row of its own."""

    def __init__(self, path: Path, ranks_on: Sequence[Sequence[int]], me: int = -1) -> None:
        """Open the board in the file `path`, which is made if there is none.

        Args:
            ranks_on: by process, the ranks whose memory lies on its GPU.
            me: this process; none of them, if -1.
        """
        if not path.exists():
            path.write_bytes(bytes(8 * len(FIELDS) * len(ranks_on)))
        self.ranks_on, self.me, self.count = [tuple(ranks) for ranks in ranks_on], me, 0
        self.held = np.memmap(path, np.int64, "r+", shape=(len(ranks_on), len(FIELDS)))

    def say(self, field: str, value: int, who: int | None = None) -> None:
        """Write a field of this process's row, or of `who`'s."""
        self.held[self.me if who is None else who, FIELDS.index(field)] = value

    def read(self, field: str) -> list[int]:
        """A field of every process."""
        return [int(value) for value in self.held[:, FIELDS.index(field)]]

    def fence(self, patience: float = PATIENCE) -> None:
        """Wait until every process has come as often as this one.

        Raises:
            MissingRanks: naming the ranks of those that have ended, or have not come after `patience` seconds.
        """
        self.count += 1
        self.say("fence", self.count)
        until = time.monotonic() + patience
        while missing := self.missing():
            gone = self.read("gone")
            if time.monotonic() > until or any(gone[who] for who in missing):
                raise MissingRanks(self.report(missing), [rank for who in missing for rank in self.ranks_on[who]])
            time.sleep(NAP)

    def missing(self) -> list[int]:
        """Processes that have not come as often as this one."""
        return [who for who, count in enumerate(self.read("fence")) if count < self.count]

    def report(self, missing: Sequence[int]) -> str:
        """Who is missing, and where each was seen last, in a sentence."""
        came = sum(len(ranks) for who, ranks in enumerate(self.ranks_on) if who not in missing)
        of = sum(map(len, self.ranks_on))
        return f"fence {self.count}: expected all {of} ranks, got {came}; missing: {'; '.join(map(self.who, missing))}."

    def who(self, process: int) -> str:
        """A process in words: its ranks, and where it was seen last."""
        number, fence, epoch, gone = (int(word) for word in self.held[process])
        ranks = ", ".join(map(str, self.ranks_on[process]))
        state = "has ended" if gone else "still runs"
        return (
            f"rank{'s' if ',' in ranks else ''} {ranks} (process {number} on GPU {process}, which {state}, last at "
            + (f"fence {fence}, epoch {epoch})")
        )
