"""What the simulator finds wrong: each with the kernel's source line, the workgroup, the wave and the lane."""

from __future__ import annotations

from dataclasses import dataclass

from k3lab.errors import InternalFault
from k3lab.lowering.ir import Loc


@dataclass(frozen=True)
class Where:
    """A place in a running kernel; wave and lane are within the workgroup."""

    loc: Loc | None
    workgroup: int | None = None
    wave: int | None = None
    lane: int | None = None

    def __str__(self) -> str:
        parts = [
            f"{name} {value}"
            for name, value in (("workgroup", self.workgroup), ("wave", self.wave), ("lane", self.lane))
            if value is not None
        ]
        return ", ".join([*parts, str(self.loc or "an unknown line")])


@dataclass(frozen=True)
class Finding:
    """One thing a check found: its kind (`out-of-bounds`, `deadlock`, ...), a sentence, and where."""

    kind: str
    message: str
    where: Where

    def __str__(self) -> str:
        return f"{self.kind}: {self.message} ({self.where})"


class SimFault(InternalFault):
    """A check stopped the simulation; `finding` says what it found."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding}.")
        self.finding = finding
