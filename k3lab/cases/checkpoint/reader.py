"""Reads slices of a checkpoint folder's safetensors shards, and nothing beside them.

A shard is mapped into memory, so what is not sliced is not read: one rank's K1 weights are 91 MB of a 900 MB layer.
"""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from k3lab.cases.checkpoint.layer import KINDS, PREFIX, TELLS, Held, Kind, full_name
from k3lab.errors import BadInput, expect
from k3lab.files import reason

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
LISTED = 8  # layers an error lists


class Checkpoint:
    """A folder of safetensors shards; a context manager, which holds the shards open in between.

    Attributes:
        folder: where it is.
        bytes_read: bytes of the slices taken so far.
    """

    def __init__(self, folder: str | Path) -> None:
        """Read the index.

        Raises:
            BadInput: when there is no such folder, no index in it, or one that is damaged.
        """
        self.folder, self.bytes_read = Path(folder), 0
        self.where = f"checkpoint {str(folder)!r}"
        self._open: dict[str, Any] = {}
        self._stack = ExitStack()
        self._shard_of = self._read_index()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.clear()
        self._stack.close()

    @property
    def layers(self) -> dict[int, Kind]:
        """Decoder layers of a known kind, by number."""
        pattern = re.compile(re.escape(PREFIX) + r"([0-9]{1,9})\.(.+)")
        kinds = {name: kind for kind, name in TELLS.items()}
        found = (match for name in self._shard_of if (match := pattern.fullmatch(name)))
        return dict(sorted((int(m[1]), kinds[m[2]]) for m in found if m[2] in kinds))

    def check_layer(self, layer: int, kinds: tuple[Kind, ...], launch: str) -> Kind:
        """The kind of `layer`, one of the `kinds` that `launch` runs on; all its tensors are in the index.

        Raises:
            BadInput: for a layer that is not there, or of a kind that is not asked for or not known; for a missing
                tensor.
        """
        whole = type(layer) is int and layer >= 0
        expect(whole, "layer", "a whole number >= 0", repr(layer))
        there = self.layers
        fix = f"{' or '.join(kinds)} layers here: {_listed([n for n, kind in there.items() if kind in kinds])}"
        wanted = f"{' or '.join(map(_a, kinds))} layer, as {launch} runs on"
        where = f"layer {layer} of {self.where}"
        if layer not in there:
            some = any(name.startswith(full_name(layer, "")) for name in self._shard_of)
            tells = " nor ".join(TELLS.values())
            got = f"one of unknown kind (neither {tells})" if some else f"none of that number ({PREFIX}{layer}.*)"
            expect(False, where, wanted, got, fix)
        kind = there[layer]
        expect(kind in kinds, where, wanted, f"{_a(kind)} layer", fix)
        missing = [name for held in KINDS[kind] if (name := full_name(layer, held.name)) not in self._shard_of]
        expect(not missing, where, "every tensor of the layer in the index", f"none called {', '.join(missing)}")
        return kind

    def take(self, layer: int, held: Held, sizes: dict[str, int], rank: int) -> torch.Tensor:
        """A copy of what `rank` holds of a layer's tensor.

        Raises:
            BadInput: naming tensor and file, when the shard is missing or damaged, or the tensor is missing or of
                another shape or dtype.
        """
        name = full_name(layer, held.name)
        file = self._shard_of.get(name)
        expect(file is not None, f"{name} of {self.where}", "a tensor of that name in the index", "none")
        where = f"{name} in {str(self.folder / str(file))!r}"
        shard = self._shard(str(file), where)
        try:
            view = shard.get_slice(name)
            shape, dtype = tuple(view.get_shape()), view.get_dtype()
            wanted = held.shape(sizes)
            expect(
                shape == wanted, where, f"shape {list(wanted)}", list(shape), "name the geometry that it was made for"
            )
            expect(
                dtype == held.dtype, where, f"dtype {held.dtype}", dtype, "k3lab reads attention weights as published"
            )
            # A copy: the mapped file may change.
            part: torch.Tensor = view[held.part(sizes, rank)].clone(memory_format=torch.contiguous_format)
        except SafetensorError as error:
            raise BadInput(f"{where}: expected a tensor of that name, got {_said(error)}.") from None
        self.bytes_read += part.numel() * part.element_size()
        return part

    def _shard(self, file: str, where: str) -> Any:
        """The shard, opened once."""
        if file not in self._open:
            path = self.folder / file
            expect(path.is_file(), where, "its shard", "no such file", "download the shard that is missing")
            try:
                self._open[file] = self._stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError, ValueError) as error:
                got = f"one that cannot be read ({_said(error)})"
                raise BadInput(f"{where}: expected a whole safetensors file, got {got}; download it again.") from None
        return self._open[file]

    def _read_index(self) -> dict[str, str]:
        expect(self.folder.is_dir(), self.where, "a folder", "none of that name")
        index, single = self.folder / INDEX, self.folder / SINGLE
        if not index.exists() and single.is_file():
            shard = self._shard(SINGLE, f"{SINGLE} of {self.where}")
            return dict.fromkeys(shard.keys(), SINGLE)
        expect(index.is_file(), self.where, f"{INDEX} or {SINGLE} in it", "neither")
        try:
            shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            whole = isinstance(shards, dict) and all(isinstance(file, str) for file in shards.values())
        except (OSError, ValueError, RecursionError) as error:
            got = f"one that cannot be read ({reason(error)})"  # type: ignore[arg-type]
            raise BadInput(f"index {str(index)!r}: expected a JSON file, got {got}.") from None
        except (KeyError, TypeError):
            whole = False
        expect(whole, f"index {str(index)!r}", "a weight_map from tensors to file names", "none")
        for name, file in shards.items():
            plain = file not in ("", ".", "..") and Path(file).name == file and "\0" not in file
            expect(
                plain,
                f"{' '.join(name.split())} in index {str(index)!r}",
                "the name of a file beside the index",
                repr(file),
            )
        return dict(shards)


def _a(kind: Kind) -> str:
    return f"an {kind}" if kind == "MLA" else f"a {kind}"


def _said(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _listed(layers: list[int]) -> str:
    shown = ", ".join(map(str, layers[:LISTED])) or "none"
    return f"{shown}, ..." if len(layers) > LISTED else shown
