"""A case of a launch with the weights of one checkpoint layer, and activations that are drawn or recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from k3lab import launches
from k3lab.cases.case import Case
from k3lab.cases.checkpoint.layer import blocks_seen, writes_block
from k3lab.cases.checkpoint.reader import Checkpoint
from k3lab.cases.checkpoint.weights import WEIGHTS, LaunchWeights, Layer, Weights
from k3lab.cases.make import FILLS, NULL, distribution, drawn, geometry_of
from k3lab.cases.store import load
from k3lab.errors import BadInput, expect
from k3lab.formats import mx
from k3lab.geometry import Geometry
from k3lab.launches import Launch, LaunchKey


def case_from_checkpoint(
    folder: str | Path,
    launch: str,
    layer: int,
    *,
    rank: int = 0,
    activations: Case | str | Path | None = None,
    values: str | None = None,
    seed: int | None = None,
    geometry: str | Geometry | None = None,
    slots: int | None = None,
    null: str | None = None,
    scale_rule: str = "even",
    **key_options: Any,
) -> Case:
    """Inputs of `launch` as layer `layer` of the model has them on one rank, or on several.

    Only the slices a rank holds are read. The key follows the layer where `key_options` do not say otherwise: the
    blocks its seam sees, whether it writes one, no delta before layer 0; K2a sums all of the geometry's ranks.

    Args:
        folder: a Hugging Face checkpoint of Kimi-K3: safetensors shards and their index.
        layer: number of the decoder layer, from 0.
        rank: whose heads, where the launch's key has one rank; a key of several takes ranks 0, 1, ....
        activations: a case of the same launch, or its file, that was recorded: its key and everything but its weights
            are taken. By default activations are drawn as `make_case` draws them.
        values, seed, slots, null: how to draw them: `outliers`, 0, one slot more than needed and `mixed` by default.
        geometry: sizes the checkpoint was made for and the tensor parallel split: `k3` (the default), `mini`, or a
            `Geometry`.
        scale_rule: MXFP4 scale rule by which W_K is quantised (`k3lab.formats.mx.RULES`).

    Raises:
        BadInput: naming tensor and file where the checkpoint is not as expected; for a layer of another kind than the
            launch runs on; for an unknown option or a value out of range.
    """
    declared = launches.get(launch)
    expect(scale_rule in mx.RULES, "scale_rule", f"one of {tuple(mx.RULES)}", repr(scale_rule))
    taken = WEIGHTS[launch]
    if activations is not None:
        drawing = {"values": values, "seed": seed, "geometry": geometry, "slots": slots, "null": null}
        given = [*(name for name, value in drawing.items() if value is not None), *key_options]
        expect(not given, "options", "none beside recorded activations, which settle them", ", ".join(given))
    with Checkpoint(folder) as checkpoint:
        checkpoint.check_layer(layer, taken.kinds, launch)
        if activations is None:
            drawn_from = (values or "outliers", seed or 0, null or "mixed")
            base = _drawn(declared, taken, layer, rank, geometry, slots, *drawn_from, key_options)
        else:
            base = _recorded(declared, taken, activations)
        first = _first_rank(base.key, rank)
        shared, own = _weights(checkpoint, layer, taken, base.key, first, scale_rule)
        about = {
            "folder": checkpoint.folder.name,
            "layer": layer,
            "ranks": list(range(first, first + base.key.rank_count)),
            "scale_rule": scale_rule,
            "bytes_read": checkpoint.bytes_read,
        }
        where = f"layer {layer} of {checkpoint.where}"
    made = _joined(base, shared, own, f"layer {layer} of a checkpoint, activations {base.values}", about)
    try:
        made.check()
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    return made


def _drawn(
    declared: Launch,
    taken: LaunchWeights,
    layer: int,
    rank: int,
    geometry: str | Geometry | None,
    slots: int | None,
    values: str,
    seed: int,
    null: str,
    key_options: Mapping[str, Any],
) -> Case:
    """A case without its weights, its key that of `layer`, drawn as `make_case` draws it."""
    fill, drawing = FILLS[declared.name], distribution(values, declared)
    tensor = getattr(drawing, "tensor", "")
    expect(tensor not in taken.names, "values", "specials in an activation, as the weights are the model's", values)
    expect(null in NULL, "null", f"one of {NULL}", repr(null))
    sizes = geometry_of(geometry)
    key = declared.key(sizes, **{**fill.defaults, **_of_layer(declared, layer, sizes, key_options), **key_options})
    least = fill.least_slots(key)
    slots = least + 1 if slots is None else slots
    expect(
        type(slots) is int and slots >= least, "slots", f"a whole number, at least {least} for this key", repr(slots)
    )
    first, several = _first_rank(key, rank), key.rank_count > 1
    decls = [decl for decl in declared.inputs_for(key) if decl.name not in taken.names and not decl.optional]

    def draw(own: bool, number: int) -> dict[str, torch.Tensor]:
        wanted = [decl for decl in decls if decl.per_rank == own]
        return {d.name: drawn(d, key, fill, drawing, seed, number, slots, null) for d in wanted}

    shared = draw(False, 0)
    per_rank = [draw(True, first + number) for number in range(key.rank_count)]
    tensors = shared if several else {**shared, **per_rank[0]}
    return Case(
        declared.name, key, tensors, values, seed, drawing.allow_nonfinite, per_rank=per_rank if several else ()
    )


def _of_layer(launch: Launch, layer: int, geometry: Geometry, given: Mapping[str, Any]) -> dict[str, Any]:
    """The key's fields that a layer of the published model settles, where they are not `given`."""
    blocks = given.get("nblocks", blocks_seen(layer))
    if launch.name == "k2a":
        return {
            "nblocks": blocks_seen(layer) + writes_block(layer),
            "reset": writes_block(layer),
            "ranks": geometry.tp,
        }
    options: dict[str, Any] = {"nblocks": blocks, "delta": layer > 0}
    if launch.name == "k1":
        options["write_idx"] = blocks if writes_block(layer) else -1
    return options


def _recorded(declared: Launch, taken: LaunchWeights, activations: Case | str | Path) -> Case:
    """A recorded case without its weights."""
    case = activations if isinstance(activations, Case) else load(activations)
    expect(case.launch == declared.name, "activations", f"inputs of {declared.name}", f"inputs of {case.launch}")
    case.check()

    def kept(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: tensor for name, tensor in tensors.items() if name not in taken.names}

    per_rank = [kept(tensors) for tensors in case.per_rank]
    return Case(
        case.launch, case.key, kept(case.tensors), case.values, case.seed, case.allow_nonfinite, per_rank=per_rank
    )


def _first_rank(key: LaunchKey, rank: int) -> int:
    """The first rank of a case with `key`.

    Raises:
        BadInput: for a rank that the geometry has not, or one beside a key of several ranks.
    """
    tp, ranks = key.geometry.tp, key.rank_count
    whole = type(rank) is int and 0 <= rank < tp
    expect(whole, "rank", f"0 .. {tp - 1} (tensor parallel size {tp})", repr(rank))
    expect(ranks <= tp, "ranks", f"at most {tp} (the tensor parallel size)", ranks)
    expect(ranks == 1 or rank == 0, "rank", f"0, as a key of {ranks} ranks has ranks 0 .. {ranks - 1}", rank)
    return rank


def _weights(
    checkpoint: Checkpoint, number: int, taken: LaunchWeights, key: LaunchKey, first: int, rule: str
) -> tuple[Weights, list[Weights]]:
    """The weights all ranks share, and each rank's own."""
    kind = checkpoint.layers[number]
    views = [Layer(checkpoint, number, kind, key.geometry, first + i, rule) for i in range(key.rank_count)]
    return taken.shared(views[0]), [taken.own(view) for view in views]


def _joined(base: Case, shared: Weights, own: list[Weights], values: str, about: Mapping[str, Any]) -> Case:
    """`base` with weights; its tensors in the order the launch declares them."""
    order = [decl.name for decl in base.declaration.inputs]

    def ordered(tensors: Weights) -> Weights:
        return dict(sorted(tensors.items(), key=lambda item: order.index(item[0])))

    notes = {"checkpoint": dict(about)}
    if not base.per_rank:
        tensors, per_rank = ordered({**base.tensors, **shared, **own[0]}), []
    else:
        tensors = ordered({**base.tensors, **shared})
        per_rank = [ordered({**mine, **more}) for mine, more in zip(base.per_rank, own, strict=True)]
    return Case(base.launch, base.key, tensors, values, base.seed, base.allow_nonfinite, notes, per_rank)
