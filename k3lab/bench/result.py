"""What a benchmark found, as plain data: tables of rows, written as JSON and read back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from k3lab.bench.samples import Samples
from k3lab.errors import expect
from k3lab.files import parse_document, read_text
from k3lab.launches import LAUNCHES

VERSION = 1
WHOLE, PART = "bench.json", "bench.partial.json"
"""The file of a run, and that of one that is not done."""
OURS = "ours"
TORCH_GRAPH = "torch, graph"
TORCH_NCCL_GRAPH = "torch and NCCL, graph"
"""The same over several GPUs."""
MISMATCHED_DB = -999.0
"""Stands for an output with infinities or NaN where there are none in the oracle, or the other way round."""


@dataclass(frozen=True)
class Row:
    """One way to do a launch's work.

    Attributes:
        mode: how launches were put: `graph`, `stream` (one after the other), `none` where nothing was timed.
        seconds: a launch's, by repetition; a repetition has `launches` launches.
        note: why there are no times, or what else must be known.
        part: of the launch's work, where it is not all of it: then there are no ratios.
        knobs: of the build's key.
        weights: bytes of the weights it reads.
        snr: signal to noise of each output against the float64 oracle, dB; None where nothing differs.
        fine: whether these reach what the twin's own error asks for; None where nothing was looked at.
        kernel: what the build takes of the device: registers, bytes of shared memory, of spills.
    """

    name: str
    about: str
    mode: str = "none"
    seconds: Sequence[float] = ()
    launches: int = 0
    note: str = ""
    part: str = ""
    knobs: Mapping[str, Any] = field(default_factory=dict)
    weights: int = 0
    snr: Mapping[str, float | None] = field(default_factory=dict)
    fine: bool | None = None
    kernel: Mapping[str, int] = field(default_factory=dict)

    @property
    def samples(self) -> Samples | None:
        return Samples(tuple(self.seconds), self.launches) if self.seconds else None

    @property
    def median(self) -> float | None:
        return self.samples.median if self.samples else None


@dataclass(frozen=True)
class Tried:
    """Knobs that were tried: the median seconds of a launch, or why there are none."""

    knobs: Mapping[str, Any]
    median: float | None
    why: str = ""


@dataclass(frozen=True)
class Tuning:
    """A search's outcome: the quickest knobs of those tried; `cached` where an earlier search here found them."""

    knobs: Mapping[str, Any]
    tried: Sequence[Tried]
    cached: bool = False


@dataclass(frozen=True)
class Link:
    """What a launch over several GPUs puts over the link between them.

    Attributes:
        bytes: that a GPU puts into other GPUs' memory; `bandwidth` bytes a second are those of a copy in this run.
        one_way: seconds from a store until another GPU's poll sees it, in this run.
    """

    bytes: int
    bandwidth: float
    one_way: float


@dataclass(frozen=True)
class Table:
    """One launch at one number of tokens.

    Attributes:
        moved: bytes that it must load and store; `floor` is their seconds at the bandwidth of a copy.
        sets, launches: copies of the inputs in turn, and launches a repetition; all sets' weights hold the device's
            last cache `covers` times.
        gpus: that the ranks are spread over; then `moved` is a GPU's, and the floor has the `link`'s part.
    """

    launch: str
    published: str
    tokens: int
    ranks: int
    key: Mapping[str, Any]
    case: str
    moved: int
    floor: float
    sets: int
    launches: int
    covers: float
    rows: Sequence[Row]
    tuning: Tuning | None = None
    gpus: int = 1
    link: Link | None = None

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def to_floor(self, row: Row) -> float | None:
        """How many times the floor a row's median is."""
        return None if row.median is None or row.part else row.median / self.floor

    def to_graph(self, row: Row) -> float | None:
        """A row's median over that of torch in a graph: below 1 it is quicker."""
        other = self.row(TORCH_GRAPH) or self.row(TORCH_NCCL_GRAPH)
        if row.median is None or row.part or other is None or other.median is None:
            return None
        return row.median / other.median


@dataclass(frozen=True)
class Result:
    """All tables of one run on one device, and those kept of runs before.

    Attributes:
        bandwidth: bytes a second of a large copy on the device in this run, those read and those written.
    """

    created: str
    device: Mapping[str, Any]
    bandwidth: float
    tables: Sequence[Table]

    @property
    def fine(self) -> bool:
        """Whether our kernel was right wherever it was timed."""
        return all(row.fine is not False for table in self.tables for row in table.rows if row.name.startswith(OURS))

    @property
    def copied(self) -> str:
        """The bandwidth of a copy, or what it was in the runs that the tables on one GPU are of, in TB/s."""
        found = [table.moved / table.floor for table in self.tables if table.gpus == 1] or [self.bandwidth]
        low, high = (f"{bandwidth / 1e12:.2f}" for bandwidth in (min(found), max(found)))
        return low if low == high else f"{low} .. {high}"


def joined(newer: Result, older: Result) -> Result:
    """`newer` with those tables of `older` that it has none for, each with the floor of its own run.

    Raises:
        BadInput: when they were measured on another device, or with other versions.
    """
    expect(newer.device == older.device, "older benchmark", f"one on {newer.device}", f"one on {older.device}")
    found = {(table.launch, table.gpus, table.tokens): table for table in (*older.tables, *newer.tables)}
    launches = tuple(LAUNCHES)
    places = sorted(found, key=lambda place: (launches.index(place[0]), *place[1:]))
    return replace(newer, tables=tuple(found[place] for place in places))


def earlier(folder: Path, device: Mapping[str, Any]) -> Result | None:
    """The tables of bench.json in a folder, and before these those of a run that was stopped; None without any.

    Raises:
        BadInput: when they were measured on another device than `device`, or with other versions.
    """
    found: Result | None = None
    for path in (folder / WHOLE, folder / PART):
        if path.is_file():
            held = load(path)
            expect(held.device == device, f"older benchmark {str(path)!r}", f"one on {device}", f"one on {held.device}")
            found = joined(held, found) if found else held
    return found


def decibels(value: float) -> float | None:
    """A signal to noise as JSON holds it."""
    return None if value == math.inf else MISMATCHED_DB if value == -math.inf else value


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema of bench.json."""
    return dict(json.loads(resources.files("k3lab.bench").joinpath("bench.schema.json").read_text(encoding="utf-8")))


def to_json(result: Result) -> str:
    """The JSON text; checked against the schema in the package where jsonschema is installed."""
    data = json.loads(json.dumps({"version": VERSION, **asdict(result)}, allow_nan=False))
    with suppress(ImportError):  # a GPU machine may lack it; the reader checks again
        import jsonschema

        jsonschema.validate(data, schema())
    return json.dumps(data, indent=1, allow_nan=False)


def from_json(text: str, where: str = "benchmark") -> Result:
    """The result that `to_json` wrote.

    Raises:
        BadInput: when the text is no JSON, of another version, or not what the schema asks for.
    """
    data = parse_document(text, schema(), "benchmark", VERSION, where)
    tables = tuple(_table(table) for table in data["tables"])
    return Result(data["created"], data["device"], data["bandwidth"], tables)


def load(path: str | Path) -> Result:
    """Read a bench.json.

    Raises:
        BadInput: when it cannot be read, or is none.
    """
    return from_json(*read_text(path, "benchmark"))


def _table(data: dict[str, Any]) -> Table:
    rows = tuple(Row(**row) for row in data["rows"])
    found = data["tuning"]
    tuning = found and Tuning(found["knobs"], tuple(Tried(**tried) for tried in found["tried"]), found["cached"])
    link = Link(**data["link"]) if data.get("link") else None
    return Table(**{**data, "rows": rows, "tuning": tuning, "link": link})
