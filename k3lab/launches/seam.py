"""The AttnRes seam that every launch opens (or, in K2a, closes) with: shared inputs, stages, regions and locals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from k3lab.launches.declaration import Point, Stage, TensorDecl
from k3lab.layout import Local, Region
from k3lab.stages.attnres.gate.twin import stage_gate
from k3lab.stages.attnres.mix.twin import stage_mix
from k3lab.stages.attnres.slice.twin import stage_slice

X_ABOUT = "mixed, normed row that the projections read"

INPUTS = (
    TensorDecl("prefix", "S HIDDEN", "bf16", "residual", "running prefix of the residual stream, updated in place"),
    TensorDecl(
        "delta",
        "S HIDDEN",
        "bf16",
        "residual",
        "previous sub-layer's output, not yet in the prefix",
        present=lambda key: key.delta,
    ),
    TensorDecl("blocks", "S >=BLOCKS_USED HIDDEN", "bf16", "residual", "earlier block outputs", strides="rows"),
    TensorDecl("ares_nw", "HIDDEN", "bf16", "norm_weight", "AttnRes key norm weight"),
    TensorDecl("ares_qk", "HIDDEN", "bf16", "weight", "AttnRes query vector"),
    TensorDecl("in_nw", "HIDDEN", "bf16", "norm_weight", "layer norm after the mix"),
)


def stages(prefix_rounds: Callable[[Any], bool], x: str = "x") -> tuple[Stage, ...]:
    """slice, gate and mix; `x` is what the launch calls the mixed, normed rows."""
    return (
        Stage(
            "slice",
            "k3lab.stages.attnres.slice",
            stage_slice,
            reads=("prefix", "delta", "blocks", "ares_nw", "ares_qk"),
            writes=("prefix", "vals", "PART", "blocks"),
            points=(Point("slice.prefix", "bf16", "S HIDDEN", "prefix plus delta", when=prefix_rounds),),
            options=(
                Point("slice.source", "unrounded", "S HIDDEN", "the prefix as a source, before its rounding (ATOM)"),
            ),
            about="takes the delta into the prefix; each slice's sum v^2 and sum v (nw qk)",
        ),
        Stage(
            "gate",
            "k3lab.stages.attnres.gate",
            stage_gate,
            reads=("PART",),
            writes=("WGT",),
            about="softmax weights of a token over its sources",
        ),
        Stage(
            "mix",
            "k3lab.stages.attnres.mix",
            stage_mix,
            reads=("vals", "WGT", "in_nw"),
            writes=("MSQ", x),
            named={"x": x},
            points=(Point("mix.x", "bf16", "S HIDDEN", X_ABOUT),),
            options=(
                Point("mix.mixed", "bf16", "S HIDDEN", "the mix before the norm (Hugging Face rounds it)"),
                Point("mix.normed", "bf16", "S HIDDEN", "the normed mix before its weight (Hugging Face rounds it)"),
            ),
            about="softmax mix of the raw sources, then the layer norm",
        ),
    )


REGIONS = (
    Region("PART", "NA S NS 2", "fp32", about="each slice's sum v^2 and sum v (nw qk) per token and source"),
    Region("WGT", "S NS+1", "fp32", about="a token's softmax weights, not yet divided; their sum last"),
    Region("MSQ", "NA S", "fp32", about="each slice's sum of the squared mix, for the layer norm"),
    Region("XRDY", "NA", "flag", about="a slice of the normed rows is written"),
)

LOCALS = (
    Local(
        "vals", "S NS HIDDEN", "bf16", "slice", ("mix",), about="sources of the mix: earlier blocks, the prefix last"
    ),
)

TIE_WEIGHTS = (("mix.x", "in_nw"),)
