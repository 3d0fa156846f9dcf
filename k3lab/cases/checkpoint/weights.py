"""One layer's weights as each launch takes them: a rank's rows and columns, joined in the kernels' order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from k3lab.cases.checkpoint.layer import KINDS, Kind, sizes
from k3lab.cases.checkpoint.reader import Checkpoint
from k3lab.cases.fill_m1a import quantised_w_k
from k3lab.formats.tensor import bf16_values
from k3lab.geometry import Geometry

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Layer:
    """One rank's view of a layer of a checkpoint.

    Attributes:
        scale_rule: MXFP4 scale rule that W_K is quantised by.
    """

    checkpoint: Checkpoint
    number: int
    kind: Kind
    geometry: Geometry
    rank: int
    scale_rule: str

    def take(self, name: str) -> torch.Tensor:
        """The rank's part of `name`; `.weight` is left out, as the model's modules are called.

        Raises:
            BadInput: as `Checkpoint.take` does.
        """
        held = next(h for h in KINDS[self.kind] if h.name in (name, f"{name}.weight"))
        return self.checkpoint.take(self.number, held, sizes(self.geometry), self.rank)


def _seam(layer: Layer, residual: str, norm: str) -> Weights:
    """The AttnRes seam's three vectors, [HIDDEN] each."""
    return {
        "ares_nw": layer.take(f"{residual}_res_norm"),
        "ares_qk": layer.take(f"{residual}_res_proj")[0],
        "in_nw": layer.take(norm),
    }


def k1_shared(layer: Layer) -> Weights:
    """K1's weights that all ranks share."""
    return {**_seam(layer, "self_attention", "input_layernorm"), "on_w": layer.take("self_attn.o_norm")}


def k1_own(layer: Layer) -> Weights:
    """K1's weights of a rank's heads; in_proj's rows are q, k, v, g, f_a, beta and zeros."""
    rows = [layer.take(f"self_attn.{name}_proj") for name in ("q", "k", "v", "g", "f_a", "b")]
    pad = rows[0].new_zeros(layer.geometry.nproj_pad, layer.geometry.hidden)
    return {
        "w_in": torch.cat([*rows, pad]),
        "w_fb": layer.take("self_attn.f_b_proj"),
        "conv_w": torch.cat([layer.take(f"self_attn.{x}_conv1d") for x in "qkv"])[:, 0],
        "a_log": layer.take("self_attn.A_log"),
        "dt_bias": layer.take("self_attn.dt_bias"),
    }


def m1a_shared(layer: Layer) -> Weights:
    """M1a's weights that all ranks share; fused_qkv_a's rows are q_c, kv_c, k_pe."""
    return {
        **_seam(layer, "self_attention", "input_layernorm"),
        "w_qkv": torch.cat([layer.take("self_attn.q_a_proj"), layer.take("self_attn.kv_a_proj_with_mqa")]),
        "q_nw": layer.take("self_attn.q_a_layernorm"),
        "kv_nw": layer.take("self_attn.kv_a_layernorm"),
    }


def m1a_own(layer: Layer) -> Weights:
    """M1a's weights of a rank's heads; W_K is quantised from kv_b_proj's K rows, which the case keeps too."""
    w_kv_b = layer.take("self_attn.kv_b_proj")
    codes, scales = quantised_w_k(bf16_values(w_kv_b).numpy(), layer.geometry.heads, layer.scale_rule)
    return {
        "w_g": layer.take("self_attn.g_proj"),
        "w_qb": layer.take("self_attn.q_b_proj"),
        "w_k": torch.from_numpy(codes),
        "w_k_scale": torch.from_numpy(scales),
        "w_kv_b": w_kv_b,
    }


def k2a_shared(layer: Layer) -> Weights:
    """K2a's weights that all ranks share: the MLP's seam."""
    return _seam(layer, "mlp", "post_attention_layernorm")


def k2a_own(layer: Layer) -> Weights:
    """o_proj's columns of a rank's heads."""
    return {"w_o": layer.take("self_attn.o_proj")}


@dataclass(frozen=True)
class LaunchWeights:
    """What a launch takes of a layer.

    Attributes:
        kinds: kinds of layers it runs on.
        names: of all its weights; every other input is an activation.
    """

    kinds: tuple[Kind, ...]
    shared: Callable[[Layer], Weights]
    own: Callable[[Layer], Weights]
    names: frozenset[str]


_SEAM_NAMES = {"ares_nw", "ares_qk", "in_nw"}
WEIGHTS: Mapping[str, LaunchWeights] = {
    "k1": LaunchWeights(
        ("KDA",), k1_shared, k1_own, frozenset(_SEAM_NAMES | {"w_in", "w_fb", "conv_w", "a_log", "dt_bias", "on_w"})
    ),
    "m1a": LaunchWeights(
        ("MLA",),
        m1a_shared,
        m1a_own,
        frozenset(_SEAM_NAMES | {"w_qkv", "w_g", "q_nw", "kv_nw", "w_qb", "w_k", "w_k_scale", "w_kv_b"}),
    ),
    "k2a": LaunchWeights(("KDA", "MLA"), k2a_shared, k2a_own, frozenset(_SEAM_NAMES | {"w_o"})),
}
"""By launch."""
