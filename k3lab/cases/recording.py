"""Records a launch as a serving process runs it: its inputs before, its outputs after, in one bounded case file.

    inputs = {"prefix": prefix, "delta": delta, ...}  # the tensors the kernel is about to get, by their names here
    with k3lab.record("k1.safetensors", "k1", inputs, tokens=8, qlen=8, nblocks=4, made_by="MI355X, vLLM 0.11") as call:
        kernel(...)
        call.returned(core_out=core_out)

Nothing of a server is needed, or imported. Of states and caches only the slots that the launch uses are kept, numbered
anew: no result depends on a slot's number, and a server's cache would not fit a file.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import Any

import torch

from k3lab import __version__, launches
from k3lab.cases.case import Case
from k3lab.cases.make import geometry_of
from k3lab.cases.shapes import DTYPES, Dim
from k3lab.cases.store import load_beside, save
from k3lab.errors import BadInput, expect
from k3lab.files import check_writable
from k3lab.geometry import Geometry
from k3lab.launches import Launch, LaunchKey
from k3lab.launches.declaration import Output

LIMIT = 1 << 30
"""Bytes of a recording, if its caller does not say: K1 and M1a on one rank take a tenth of it, K2a on eight a fifth."""

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Recorded:
    """A recorded call.

    Attributes:
        case: its inputs.
        outputs: by rank, the launch's outputs in their storage dtypes.
        made_by: what ran it, in the words of whoever recorded it.
        created: when, in UTC.
        versions: of k3lab, Python and torch in the process that recorded it.
    """

    case: Case
    outputs: Sequence[Tensors]
    made_by: str
    created: str
    versions: Mapping[str, str]


class Call:
    """The call being recorded: takes what the launch returns."""

    def __init__(self, launch: Launch, key: LaunchKey, ranks: int) -> None:
        self._made = {made.name: made for made in launch.made_for(key)}
        self._key = key
        self._launch = launch.name
        self._given: list[dict[str, torch.Tensor]] = [{} for _ in range(ranks)]

    def returned(self, rank: int = 0, **tensors: torch.Tensor) -> None:
        """Keep outputs that are no inputs (`core_out`; `q_out`, `gate_out`; `x_out`), copied at once.

        Raises:
            BadInput: for a name, shape or dtype that the launch does not return, or a rank it has not.
        """
        known = type(rank) is int and 0 <= rank < len(self._given)
        expect(known, "rank", f"0 .. {len(self._given) - 1}", repr(rank))
        for name, tensor in tensors.items():
            expect(name in self._made, f"output of {self._launch}", f"one of {list(self._made)}", repr(name))
            stored = _stored(tensor)
            _check_output(name, stored, *_declared(self._made[name], self._key))
            self._given[rank][name] = stored.detach().cpu().clone()

    def collected(self) -> list[dict[str, torch.Tensor]]:
        """By rank, what was returned.

        Raises:
            BadInput: when an output is missing.
        """
        for rank, given in enumerate(self._given):
            missing = [name for name in self._made if name not in given]
            where = f"outputs of {self._launch}" + (f" on rank {rank}" if len(self._given) > 1 else "")
            expect(not missing, where, f"call.returned() of {list(self._made)}", f"none called {', '.join(missing)}")
        return self._given


@contextmanager
def record(
    path: str | Path,
    launch: str,
    inputs: Tensors | Sequence[Tensors],
    *,
    geometry: str | Geometry | None = None,
    made_by: str = "",
    limit: int = LIMIT,
    **key_options: Any,
) -> Iterator[Call]:
    """Record the launch that runs inside the `with` block; the file appears when the block ends, whole or not at all.

    The inputs are copied to the CPU on entry, and those the launch changes in place once more at the end: on a GPU both
    wait for the current stream. A block that raises leaves no file.

    Args:
        path: the case file to write; `k3lab.replay` and everything that takes a case reads it.
        inputs: every input of the launch by the names it declares, on any device; fp8 as torch has it or as bytes. For
            a key of several ranks one mapping a rank, what they share taken from the first.
        geometry: `k3` (the default), `mini`, or a `Geometry`.
        made_by: what runs the launch, for whoever replays it.
        limit: bytes the file may hold at most; checked before anything is copied.
        key_options: fields of the launch's key; `tokens` and `nblocks` at least.

    Raises:
        BadInput: for inputs that the launch does not have or would refuse, a recording beyond `limit`, an output that
            was not returned, or a path that cannot be written.
    """
    declared = launches.get(launch)
    missing = [name for name in ("tokens", "nblocks") if name not in key_options]
    expect(not missing, "key of the recording", "at least tokens and nblocks", f"none of {', '.join(missing)}")
    key = declared.key(geometry_of(geometry), **key_options)
    given = [inputs] if isinstance(inputs, Mapping) else list(inputs)
    wanted = key.rank_count
    expect(len(given) == wanted, "inputs", f"{wanted} mappings of tensors, one a rank", len(given))
    check_writable(Path(path).parent)
    kept = [Kept(declared, key, tensors) for tensors in given]
    size = sum(part.bytes for part in kept)
    fix = "raise the limit, or record fewer tokens"
    expect(size <= limit, "recording", f"at most {limit} bytes (limit)", f"{size} bytes", fix)
    call = Call(declared, key, len(given))
    case = _case(declared, key, [part.inputs() for part in kept])
    case.check()
    yield call
    outputs = [{**part.changed(), **made} for part, made in zip(kept, call.collected(), strict=True)]
    beside = _by_name([{name: rank[name] for name in outputs_of(declared, key)} for rank in outputs])
    about = {
        "made_by": made_by,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"k3lab": __version__, "python": platform.python_version(), "torch": torch.__version__},
        "hash": _hash(beside),
    }
    save(_with_notes(case, {"recorded": about}), path, beside)


def load_recorded(path: str | Path) -> Recorded:
    """The call that `record` wrote.

    Raises:
        BadInput: when the file is damaged, or a case without recorded outputs.
    """
    case, beside = load_beside(path)
    where, about = f"case file {str(path)!r}", case.notes.get("recorded")
    fix = "record one with k3lab.record, or compare two backends with k3lab.compare"
    expect(isinstance(about, Mapping) and beside, where, "a recorded call", "a case without recorded outputs", fix)
    assert isinstance(about, Mapping)
    if _hash(beside) != about.get("hash"):
        raise BadInput(f"{where}: the recorded outputs differ from what the metadata promises; record it again.")
    prefixes = [f"rank.{rank}/" for rank in range(case.key.rank_count)]
    outputs = [{n.removeprefix(p): tensor for n, tensor in beside.items() if n.startswith(p)} for p in prefixes]
    known = {"made_by": str, "created": str, "versions": dict}
    fits = all(isinstance(about.get(name), kind) for name, kind in known.items())
    expect(fits, f"{where}: notes of the recording", ", ".join(known), sorted(about))
    try:
        _check_outputs(case, outputs)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    return Recorded(case, outputs, about["made_by"], about["created"], about["versions"])


def outputs_of(launch: Launch, key: LaunchKey) -> tuple[str, ...]:
    """The outputs of a build with `key`: the blocks only on a layer that writes one."""
    return tuple(name for name in launch.outputs if name != "blocks" or key.write_idx >= 0)


class Kept:
    """What of one rank's inputs a recording keeps, and how its slots are numbered anew.

    Raises:
        BadInput: for a tensor that decides what is kept and is missing or no tensor.
    """

    def __init__(self, launch: Launch, key: LaunchKey, tensors: Tensors) -> None:
        names = [decl.name for decl in launch.inputs_for(key)]
        unknown = sorted(set(tensors) - set(names))
        expect(not unknown, f"inputs of {launch.name}", f"only {names}", f"also {', '.join(map(str, unknown))}")
        self._launch, self._key = launch, key
        self._tensors = {name: _stored(tensor, name) for name, tensor in tensors.items()}
        self._slots: dict[str, torch.Tensor] = {}  # by state or cache: the slots kept, in their new order
        self._numbers: dict[str, torch.Tensor] = {}  # slot numbers, the new ones
        if launch.name == "k1" and {"st_idx", "rstate", "conv_state"} <= tensors.keys():
            self._keep_states()
        elif launch.name == "m1a" and {"slots", "kv_cache"} <= tensors.keys():
            self._keep_blocks()

    @property
    def bytes(self) -> int:
        """Of inputs and outputs."""
        held = {name: _size(self._view(name), self._slots.get(name)) for name in self._tensors}
        changed = sum(size for name, size in held.items() if name in outputs_of(self._launch, self._key))
        made = (_declared(each, self._key) for each in self._launch.made_for(self._key))
        return sum(held.values()) + changed + sum(prod(shape) * dtype.itemsize for shape, dtype in made)

    def inputs(self) -> dict[str, torch.Tensor]:
        """Copies of the inputs as they are now."""
        return {name: self._numbers[name] if name in self._numbers else self._copy(name) for name in self._tensors}

    def changed(self) -> dict[str, torch.Tensor]:
        """Copies of the inputs that the launch changes in place, as they are now."""
        return {name: self._copy(name) for name in outputs_of(self._launch, self._key) if name in self._tensors}

    def _copy(self, name: str) -> torch.Tensor:
        view, slots = self._view(name), self._slots.get(name)
        chosen = view if slots is None else view[slots.to(view.device)]
        return chosen.detach().cpu().clone(memory_format=torch.contiguous_format)

    def _view(self, name: str) -> torch.Tensor:
        """A tensor without the blocks and the columns of slots that the step does not use."""
        tensor = self._tensors[name]
        if name == "blocks" and tensor.ndim == 3:
            return tensor[:, : max(self._key.sizes["BLOCKS_USED"], 1)]
        if name == "st_idx" and tensor.ndim == 2:
            return tensor[:, : self._key.sizes["L"]]
        return tensor

    def _keep_states(self) -> None:
        """Slot 0, which null slots read, and those of the step's tokens."""
        numbers = self._view("st_idx").detach().cpu()
        room = min(self._tensors[name].shape[0] for name in ("rstate", "conv_state"))
        if bool((numbers >= room).any()):
            return  # the check of the case refuses it, and names the slot
        used = torch.cat([torch.zeros(1, dtype=torch.long), numbers[numbers > 0].long().unique()])
        self._slots = {"rstate": used, "conv_state": used}
        self._numbers = {"st_idx": _renumbered(numbers, used, numbers > 0)}

    def _keep_blocks(self) -> None:
        """The cache blocks that the step writes to; one at least."""
        slots, cache = self._tensors["slots"].detach().cpu(), self._tensors["kv_cache"]
        if cache.ndim != 3 or bool((slots >= cache.shape[0] * cache.shape[1]).any()):
            return
        size, live = cache.shape[1], slots >= 0
        used = (slots[live] // size).unique() if live.any() else torch.zeros(1, dtype=torch.long)
        self._slots = {"kv_cache": used}
        blocks = _renumbered(slots.div(size, rounding_mode="floor"), used, live)
        self._numbers = {"slots": torch.where(live, blocks * size + slots % size, slots)}


def _renumbered(numbers: torch.Tensor, used: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """`numbers` as places in `used` (ascending) where `live`, unchanged elsewhere."""
    places = torch.searchsorted(used, numbers.long().contiguous()).to(numbers.dtype)
    return torch.where(live, places, numbers)


def _size(tensor: torch.Tensor, slots: torch.Tensor | None) -> int:
    count = tensor.numel() if slots is None else len(slots) * (tensor.numel() // max(tensor.shape[0], 1))
    return count * tensor.element_size()


def _declared(made: Output, key: LaunchKey) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and storage dtype of an output that is no input."""
    return tuple(Dim(text).wanted(key.sizes) for text in made.dims.split()), DTYPES[made.dtype]


def _check_output(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    expect(tuple(tensor.shape) == shape, name, f"shape {list(shape)}", list(tensor.shape))
    expect(tensor.dtype == dtype, name, f"dtype {dtype}", tensor.dtype)


def _check_outputs(case: Case, outputs: Sequence[Tensors]) -> None:
    """Refuse outputs that are not those of the case's key: one the launch changes in place is as its input."""
    launch = case.declaration
    wanted = {made.name: _declared(made, case.key) for made in launch.made_for(case.key)}
    for held, tensors in zip(case.ranks, outputs, strict=True):
        names = set(outputs_of(launch, case.key))
        expect(set(tensors) == names, "recorded outputs", f"tensors {sorted(names)}", sorted(tensors))
        for name, tensor in tensors.items():
            like = wanted.get(name) or (tuple(held[name].shape), held[name].dtype)
            _check_output(name, tensor, *like)


def _stored(tensor: Any, name: str = "output") -> torch.Tensor:
    """The tensor as a case stores it: 8-bit floats as their bytes."""
    expect(isinstance(tensor, torch.Tensor), name, "a torch tensor", type(tensor).__name__)
    held: torch.Tensor = tensor
    return held.view(torch.uint8) if held.dtype == torch.float8_e4m3fn else held


def _case(launch: Launch, key: LaunchKey, ranks: Sequence[Tensors]) -> Case:
    """The case of these ranks' inputs; what a server holds may be infinite or NaN where the launch does not look."""
    own = {decl.name for decl in launch.inputs if decl.per_rank} if key.rank_count > 1 else set()
    shared = {name: tensor for name, tensor in ranks[0].items() if name not in own}
    per_rank = [{n: t for n, t in tensors.items() if n in own} for tensors in ranks] if own else []
    return Case(launch.name, key, shared, "recorded", allow_nonfinite=True, per_rank=per_rank)


def _with_notes(case: Case, notes: Mapping[str, Any]) -> Case:
    return Case(case.launch, case.key, case.tensors, case.values, case.seed, case.allow_nonfinite, notes, case.per_rank)


def _by_name(ranks: Sequence[Tensors]) -> dict[str, torch.Tensor]:
    return {f"rank.{rank}/{name}": tensor for rank, tensors in enumerate(ranks) for name, tensor in tensors.items()}


def _hash(tensors: Tensors) -> str:
    """SHA-256 over every tensor's name, shape, dtype and bits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, list(tensor.shape), str(tensor.dtype)]).encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
