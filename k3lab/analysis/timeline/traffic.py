"""What each stage moved and multiplied, counted in the simulator, beside what the geometry says it must."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from k3lab.analysis.timeline.formulas import OWN_PRODUCT, expected_bytes, expected_operations
from k3lab.launches.declaration import Launch
from k3lab.launches.key import LaunchKey

if TYPE_CHECKING:
    from k3lab.sim.record.traffic import Access
    from k3lab.sim.record.traffic import Traffic as Counted

PRODUCTS = "gemv"
"""The folder of the products that several stages share."""


@dataclass(frozen=True)
class Moved:
    """Bytes that one stage moved between memory and one buffer, on one rank.

    Attributes:
        stage: of the launch; where several share the code, the folder it lies in.
        what: load, store or atomic.
        issued: bytes that lanes asked for; `unique` counts each byte once.
        formula: unique bytes by the geometry; None for what has no formula: hand-offs, indices, dumps.
    """

    rank: int
    stage: str
    buffer: str
    what: str
    issued: int
    unique: int
    formula: int | None


@dataclass(frozen=True)
class Multiplied:
    """Operations of matrix instructions of one stage, on one rank.

    Attributes:
        issued: as the instructions count, padding and repetition included; None where that of several stages together
            is known, which stands under their joined names. `formula` is the product's own 2 M N K.
    """

    rank: int
    stage: str
    issued: int | None
    formula: int | None


@dataclass(frozen=True)
class Traffic:
    """One launch's bytes and matrix operations."""

    moved: tuple[Moved, ...]
    multiplied: tuple[Multiplied, ...]

    @property
    def misfits(self) -> list[Moved]:
        """Rows whose unique bytes are not the formula's."""
        return [row for row in self.moved if row.formula is not None and row.formula != row.unique]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {"moved": [asdict(row) for row in self.moved], "multiplied": [asdict(row) for row in self.multiplied]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Traffic:
        """What `to_dict` wrote."""
        moved = tuple(Moved(**row) for row in data["moved"])
        return cls(moved, tuple(Multiplied(**row) for row in data["multiplied"]))


def counted(launch: Launch, key: LaunchKey, ranks: Sequence[Mapping[str, Any]], found: Counted) -> Traffic:
    """The simulator's counts by stage of `launch`, each beside its formula; `ranks` are the case's inputs by rank.

    What has a formula but was not counted at all has a row of 0 bytes.
    """
    moved: list[Moved] = []
    for rank, tensors in enumerate(ranks):
        sums: dict[tuple[str, str, str], list[int]] = {}
        for access in (access for access in found.accesses if access.device == rank):
            held = sums.setdefault((_stage(launch, key, access), access.argument, access.what), [0, 0])
            held[0] += access.issued_bytes
            held[1] += access.unique_bytes
        wanted = expected_bytes(launch, key, tensors)
        for place in sorted(sums.keys() | wanted.keys(), key=lambda place: _place(launch, place)):
            issued, unique = sums.get(place, (0, 0))
            moved.append(Moved(rank, *place, issued, unique, wanted.get(place)))
    return Traffic(tuple(moved), tuple(_multiplied(launch, key, len(ranks), found)))


def _multiplied(launch: Launch, key: LaunchKey, ranks: int, found: Counted) -> list[Multiplied]:
    wanted, rows = expected_operations(launch, key), []
    for rank in range(ranks):
        issued: dict[str, int] = {}
        for matrix in (matrix for matrix in found.matrix if matrix.device == rank):
            stage = _of_folder(launch, key, matrix.stage)
            issued[stage] = issued.get(stage, 0) + matrix.flops
        stages = dict.fromkeys([*wanted, *issued])
        rows += [Multiplied(rank, stage, issued.get(stage), wanted.get(stage)) for stage in stages]
    return rows


def _stage(launch: Launch, key: LaunchKey, access: Access) -> str:
    """The stage by its folder if it declares the tensor; else the one stage that does; else the folder."""
    name = _of_folder(launch, key, access.stage)
    users = [
        stage.name
        for stage in launch.stages
        if access.argument in (stage.writes if access.what == "store" else stage.reads)
    ]
    return users[0] if name not in users and len(users) == 1 else name


def _of_folder(launch: Launch, key: LaunchKey, folder: str) -> str:
    """The stage that lies in a folder of `k3lab/stages`; of the products' shared one, those that multiply there."""
    folders = {stage.folder.removeprefix("k3lab.stages.").replace(".", "/"): stage.name for stage in launch.stages}
    if folder in folders or folder != PRODUCTS:
        return folders.get(folder, folder)
    return "+".join(stage for stage in expected_operations(launch, key) if stage not in OWN_PRODUCT)


def _place(launch: Launch, place: tuple[str, str, str]) -> tuple[int, str, str, str]:
    order = [stage.name for stage in launch.stages]
    return (order.index(place[0]) if place[0] in order else len(order), *place)
