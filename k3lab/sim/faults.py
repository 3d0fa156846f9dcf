"""What the simulator finds wrong: each with the kernel's source line, the workgroup, the wave and the lane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from k3lab.errors import InternalFault
from k3lab.lowering.ir import Loc

if TYPE_CHECKING:
    from k3lab.sim.engine import Engine


@dataclass(frozen=True)
class Where:
    """A place in a running kernel; wave and lane are within the workgroup, rank and launch given if there are several.

    Launches are counted on each rank, from 0.
    """

    loc: Loc | None
    workgroup: int | None = None
    wave: int | None = None
    lane: int | None = None
    rank: int | None = None
    launch: int | None = None

    @property
    def name(self) -> str:
        """`rank 1 launch 2 workgroup 0 wave 3`, as far as it is known."""
        return " ".join(self._parts())

    def __str__(self) -> str:
        return ", ".join([*self._parts(), str(self.loc or "an unknown line")])

    def _parts(self) -> list[str]:
        names = ("rank", "launch", "workgroup", "wave", "lane")
        return [f"{name} {value}" for name in names if (value := getattr(self, name)) is not None]


@dataclass(frozen=True)
class Finding:
    """One thing a check found: its kind (`out-of-bounds`, `deadlock`, ...), a sentence, and where."""

    kind: str
    message: str
    where: Where

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" + (f" ({self.where})" if self.where != Where(None) else "")


class SimFault(InternalFault):
    """A check stopped the simulation.

    Attributes:
        finding: what it found.
        engine: the simulation as it stood, to look at: memory, LDS, where waves stand, findings kept before.
    """

    engine: Engine | None = None

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding}.")
        self.finding = finding
