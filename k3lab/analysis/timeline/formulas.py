"""What each stage must read and write at least, and multiply, from the declaration and the geometry alone."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from k3lab.geometry import CONV_WIDTH, HEAD_DIM, NOPE
from k3lab.launches.declaration import Launch, Stage, TensorDecl
from k3lab.launches.key import LaunchKey

BYTES = {"bf16": 2, "fp32": 4, "fp8_e4m3": 1, "e2m1x2": 1, "e8m0": 1}
"""An element's; indices (int32, int64) are neither weights nor state, and are left out."""

OWN_PRODUCT = ("gates", "uk")
"""Stages whose matrix product lies in their own folder; the others' products share one."""

Tensors = Mapping[str, torch.Tensor]
Expected = dict[tuple[str, str, str], int]
"""Bytes by (stage, tensor, `load` or `store`), each byte once."""


def expected_bytes(launch: Launch, key: LaunchKey, tensors: Tensors) -> Expected:
    """Every float tensor that a stage takes from memory or leaves there, on one rank.

    Args:
        tensors: the rank's inputs: slots and counts say which states are touched.
    """
    found: Expected = {}
    declared = {decl.name: decl for decl in launch.inputs_for(key) if decl.dtype in BYTES and not decl.optional}
    for stage in launch.stages:
        for name in stage.reads:
            if name in declared and (count := _loaded(declared[name], key, tensors)):
                found[stage.name, name, "load"] = count
        for name, count in _stored(launch, stage, key, tensors).items():
            found[stage.name, name, "store"] = count
    return found


def expected_operations(launch: Launch, key: LaunchKey) -> dict[str, int]:
    """Operations of each stage's matrix product, 2 M N K, without padding or repetition, on one rank."""
    g, s = key.geometry, key.tokens
    products = {
        "k1": {"gemv": (s, g.nproj, g.hidden), "gates": (s, g.proj, HEAD_DIM)},
        "m1a": {
            "proj": (s, g.qkv_a + g.proj, g.hidden),
            "qb": (s, g.q_b, g.q_lora),
            "uk": (s * g.heads, g.kv_lora, NOPE),
        },
        "k2a": {"o": (s, g.hidden, g.proj)},
    }
    return {stage: 2 * prod(sizes) for stage, sizes in products[launch.name].items()}


def _loaded(decl: TensorDecl, key: LaunchKey, tensors: Tensors) -> int:
    size, sizes = BYTES[decl.dtype], key.sizes
    match decl.name:
        case "blocks":
            return key.tokens * key.nblocks * key.geometry.hidden * size
        case "prefix":
            return 0 if key.reset else key.tokens * key.geometry.hidden * size
        case "conv_state":
            return _window_entries(tensors) * key.geometry.conv_channels * size
        case "rstate":
            return len(set(_initial_slots(tensors))) * _state_elements(key) * size
        case "kv_cache":
            return 0
    return prod(int(dim) if dim.isdigit() else sizes[dim] for dim in decl.dims.split()) * size


def _stored(launch: Launch, stage: Stage, key: LaunchKey, tensors: Tensors) -> dict[str, int]:
    """By tensor, what the stage stores of states and outputs."""
    rows = key.tokens * key.geometry.hidden * BYTES["bf16"]
    found: dict[str, int] = {}
    for name in stage.writes:
        match name:
            case "prefix":
                found[name] = rows if getattr(key, "delta", False) else 0
            case "blocks":
                found[name] = rows if key.write_idx >= 0 else 0
            case "conv_state":
                live = int((tensors["st_idx"][:, 0] > 0).sum())
                found[name] = live * key.geometry.conv_channels * key.sizes["STATE_LEN"] * BYTES["bf16"]
            case "rstate":
                found[name] = _stored_states(key, tensors) * _state_elements(key) * BYTES["fp32"]
            case "kv_cache":
                found[name] = int((tensors["slots"] >= 0).sum()) * key.geometry.entry * BYTES["fp8_e4m3"]
    for made in launch.made_for(key):
        alone = getattr(key, "ranks", 1) == 1 and made.name == "q_out"  # then two stages share its bytes
        if made.name in stage.writes and not alone:
            found[made.name] = prod(key.sizes[dim] for dim in made.dims.split()) * BYTES[made.dtype]
    return {name: count for name, count in found.items() if count}


def _state_elements(key: LaunchKey) -> int:
    """Of one state slot."""
    return key.geometry.heads * HEAD_DIM * HEAD_DIM


def _initial_slots(tensors: Tensors) -> list[int]:
    """By request, the slot its state is read from: a null one reads slot 0."""
    rows = tensors["st_idx"].tolist()
    return [max(row[count - 1], 0) for row, count in zip(rows, tensors["num_acc"].tolist(), strict=True)]


def _window_entries(tensors: Tensors) -> int:
    """Distinct (slot, entry) that windows are read from: CONV_WIDTH - 1 entries each, from the last accepted one on."""
    rows, counts = tensors["st_idx"].tolist(), tensors["num_acc"].tolist()
    windows = (
        {(max(row[0], 0), count - 1 + i) for i in range(CONV_WIDTH - 1)}
        for row, count in zip(rows, counts, strict=True)
    )
    return len(set().union(*windows))


def _stored_states(key: LaunchKey, tensors: Tensors) -> int:
    """Tokens whose state is stored: of requests that have one, to slots that are not null."""
    rows, qlen = tensors["st_idx"].tolist(), key.sizes["L"]
    live = [slot > 0 for slot in _raw_initial_slots(tensors)]
    return sum(slot > 0 for row, alive in zip(rows, live, strict=True) if alive for slot in row[:qlen])


def _raw_initial_slots(tensors: Tensors) -> list[int]:
    rows = tensors["st_idx"].tolist()
    return [row[count - 1] for row, count in zip(rows, tensors["num_acc"].tolist(), strict=True)]
