"""Saves a case as one safetensors file and loads it again, bit for bit.

The file's metadata holds the key and where the values came from, the hash of the case, and a checksum of the metadata
itself, so that a changed bit anywhere is found. A file appears whole or not at all.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open

from k3lab import launches
from k3lab.cases.case import Case
from k3lab.errors import BadInput
from k3lab.files import reason, write_bytes

VERSION = "1"
FIELDS = {"k3lab_case", "launch", "key", "values", "seed", "allow_nonfinite", "notes", "hash", "checksum"}
BESIDE = "beside/"
"""What the names of tensors that are no inputs begin with."""


def save(case: Case, path: str | Path, beside: Mapping[str, torch.Tensor] | None = None) -> Path:
    """Write `case` to `path`, replacing a file that is there; returns the path.

    Args:
        beside: tensors that are no inputs, to be kept in the same file (`load_beside`); no checksum covers them.

    Raises:
        BadInput: for a case that fails its checks, or a path that cannot be written (nothing is left behind).
    """
    case.check()
    stored = {**case.stored, **{f"{BESIDE}{name}": tensor for name, tensor in (beside or {}).items()}}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in stored.items()}
    data = safetensors.torch.save(_unshared(tensors), _metadata(case))
    return write_bytes(path, data)


def load(path: str | Path) -> Case:
    """The case `save` wrote to `path`.

    Raises:
        BadInput: saying in one sentence what is wrong with the file.
    """
    return load_beside(path)[0]


def load_beside(path: str | Path) -> tuple[Case, dict[str, torch.Tensor]]:
    """The case `save` wrote to `path`, and the tensors that were kept beside it.

    Raises:
        BadInput: saying in one sentence what is wrong with the file.
    """
    where = f"case file {str(path)!r}"
    metadata, tensors = _read(Path(path), where)
    beside = {name.removeprefix(BESIDE): tensors.pop(name) for name in list(tensors) if name.startswith(BESIDE)}
    case = _case(metadata, tensors, where)
    try:
        case.check()
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    if case.hash != metadata["hash"]:
        raise BadInput(f"{where}: the content differs from what its metadata promises (hash {case.hash[:12]}).")
    return case, beside


def _metadata(case: Case) -> dict[str, str]:
    try:
        notes = json.dumps(case.notes)
    except (TypeError, ValueError) as error:
        raise BadInput(f"notes of the case: expected what JSON can hold, got {error}.") from None
    fields = {
        "k3lab_case": VERSION,
        "launch": case.launch,
        "key": json.dumps(case.key.to_dict()),
        "values": case.values,
        "seed": str(case.seed),
        "allow_nonfinite": json.dumps(case.allow_nonfinite),
        "notes": notes,
        "hash": case.hash,
    }
    return {**fields, "checksum": _checksum(fields)}


def _checksum(metadata: Mapping[str, str]) -> str:
    fields = {name: text for name, text in metadata.items() if name != "checksum"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _unshared(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`tensors` without two that share storage, which the format refuses."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        pointer = tensor.untyped_storage().data_ptr()
        result[name] = tensor.clone() if pointer in seen else tensor
        seen.add(pointer)
    return result


def _read(path: Path, where: str) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        if not path.stat().st_size:
            raise BadInput(f"{where}: the file is empty.")
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            _check_metadata(metadata, where)
            names = list(file.keys())
            # Copies: the file may change once it is loaded.
            return metadata, {name: file.get_tensor(name).clone() for name in names}
    except FileNotFoundError:
        raise BadInput(f"{where}: there is no such file.") from None
    except IsADirectoryError:
        raise BadInput(f"{where}: it is a directory; give a file name.") from None
    except SafetensorError as error:
        raise BadInput(f"{where}: not a whole safetensors file ({error}).") from None
    except (OSError, ValueError, TypeError, RuntimeError, KeyError, MemoryError) as error:
        raise BadInput(f"{where}: cannot be read: {reason(error)}.") from None


def _check_metadata(metadata: Mapping[str, str], where: str) -> None:
    if "k3lab_case" not in metadata:
        raise BadInput(f"{where}: not a case (a safetensors file without k3lab's metadata).")
    if metadata["k3lab_case"] != VERSION:
        raise BadInput(f"{where}: expected case format {VERSION}, got {metadata['k3lab_case']!r}.")
    if set(metadata) != FIELDS:
        raise BadInput(f"{where}: metadata: expected the fields {sorted(FIELDS)}, got {sorted(metadata)}.")
    if metadata["checksum"] != _checksum(metadata):
        raise BadInput(f"{where}: the metadata differs from its own checksum.")


def _case(metadata: Mapping[str, str], tensors: dict[str, torch.Tensor], where: str) -> Case:
    try:
        key = launches.get(metadata["launch"]).key_type.from_dict(json.loads(metadata["key"]))
        shared, per_rank = _by_rank(tensors, key.rank_count)
        return Case(
            metadata["launch"],
            key,
            shared,
            metadata["values"],
            int(metadata["seed"]),
            json.loads(metadata["allow_nonfinite"]) is True,
            json.loads(metadata["notes"]),
            per_rank,
        )
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BadInput(f"{where}: the metadata holds no key of a launch: {error}.") from None


def _by_rank(
    tensors: Mapping[str, torch.Tensor], ranks: int
) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Shared tensors, and each rank's own when there are several ranks; no name is lost, known or not."""
    shared = dict(tensors)
    prefixes = [f"rank.{rank}/" for rank in range(ranks)] if ranks > 1 else []
    own = [{n.removeprefix(p): shared.pop(n) for n in tensors if n.startswith(p)} for p in prefixes]
    return shared, own
