"""Writes a small checkpoint in the published model's naming, layout and dtypes; its weights are random.

It stands in for the real one in tests and lessons: what reads this folder reads the real one. No statistic of these
weights says anything about the model's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from k3lab.cases.checkpoint.layer import KINDS, LAYERS, Held, full_name, kind_of, sizes
from k3lab.cases.checkpoint.reader import INDEX
from k3lab.cases.make import geometry_of
from k3lab.cases.stream import F32, Stream
from k3lab.errors import expect
from k3lab.files import write_bytes, write_text
from k3lab.formats.tensor import bf16_round
from k3lab.geometry import Geometry

BEYOND_HEADS = 1e30  # what A_log holds past the heads: no rank may read it
NORM_SPREAD = np.float32(0.1)


def write_checkpoint(
    folder: str | Path,
    layers: Sequence[int] = (2, 3),
    *,
    geometry: str | Geometry = "mini",
    seed: int = 0,
    shards: int = 3,
) -> Path:
    """Write decoder `layers` of a model of this geometry; returns the folder.

    Every tensor draws from a stream of its own, by seed and name; neighbours lie in different shards, as in a real
    checkpoint, where layers cross shard borders. about 13 MB a layer at mini size, 900 MB of KDA at full size.

    Raises:
        BadInput: for no layers or no shards, a layer the model has not, or a folder that cannot be written.
    """
    folder, g = Path(folder), geometry_of(geometry)
    fits = len(layers) > 0 and all(type(n) is int and 0 <= n < LAYERS for n in layers)
    expect(fits, "layers", f"some of 0 .. {LAYERS - 1}", list(layers))
    expect(type(shards) is int and shards >= 1, "shards", "a whole number, at least 1", repr(shards))
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    every = [(full_name(layer, held.name), held) for layer in layers for held in KINDS[kind_of(layer)]]
    shard_of = {name: names[place % shards] for place, (name, _) in enumerate(every)}
    total = 0
    for file in names:
        held_here = [(name, held) for name, held in every if shard_of[name] == file]
        tensors = {name: _drawn(name, held, g, seed) for name, held in held_here}
        total += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        write_bytes(folder / file, safetensors.torch.save(tensors, {"format": "pt"}))
    index = {"metadata": {"total_size": total}, "weight_map": shard_of}
    write_text(folder / INDEX, json.dumps(index, indent=1))
    return folder


def _drawn(name: str, held: Held, geometry: Geometry, seed: int) -> torch.Tensor:
    """One tensor, whole, in its dtype."""
    shape = held.shape(sizes(geometry))
    values = torch.from_numpy(_values(Stream(seed, name), held.name, shape, geometry.all_heads))
    return bf16_round(values) if held.dtype == "BF16" else values


def _values(stream: Stream, name: str, shape: tuple[int, ...], heads: int) -> F32:
    """Norm weights around 1, decay parameters in a range that makes sense, matrices as `_matrix` has them."""
    if name.endswith("A_log"):
        values = stream.uniform(shape, -1.5, 1.0)
        values[heads:] = BEYOND_HEADS
        return values
    if name.endswith("dt_bias"):
        return stream.uniform(shape, -5.0, 1.0)
    if name.endswith(("norm.weight", "layernorm.weight")):
        return 1 + stream.normal(shape) * NORM_SPREAD
    return _matrix(stream, shape)


def _matrix(stream: Stream, shape: tuple[int, ...]) -> F32:
    """Rows of different size that map rows of deviation 1 to about 1, a few input columns 4 to 16 times larger."""
    width = shape[-1]
    rows = 2 ** stream.uniform((*shape[:-1], 1), -1.0, 1.0)
    values = stream.normal(shape) * rows.astype(np.float32) * np.float32(width**-0.5)
    if width >= 128:  # not the taps of a convolution
        chosen = stream.choose(width // 128, width)
        values[..., chosen] *= 2 ** stream.uniform(chosen.shape, 2.0, 4.0)
    return values.astype(np.float32)
