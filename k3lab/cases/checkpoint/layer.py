"""What a decoder layer's tensors are called in a checkpoint, their shapes and dtypes, and what of each a rank holds.

Facts of the published model: names and shapes of moonshotai/Kimi-K3's safetensors index, the tensor-parallel split as
vLLM makes it (vllm/models/kimi_k3). Dtypes other than those of the convolution, `A_log` and `dt_bias` (fp32) are
bfloat16, which for the MLA layers and the norms rests on a single source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from k3lab.geometry import CONV_WIDTH, HEAD_DIM, ROPE, Geometry

PREFIX = "language_model.model.layers."
LAYERS = 93
BLOCK_LAYERS = 12  # layers 0, 12, ... write an AttnRes block
A_LOG_PADDED = 128  # A_log has a multiple of 128 entries: of Kimi-K3's 128 only the first 96 are heads

Kind = Literal["KDA", "MLA"]


@dataclass(frozen=True)
class Held:
    """A tensor of a layer as the checkpoint holds it.

    Attributes:
        name: after `language_model.model.layers.N.`.
        dims: its shape in names of `sizes`, or numbers.
        dtype: as safetensors calls it: `BF16` or `F32`.
        cut: what a rank holds of it: rank r's part of `axis` starts at r times the size `cut` names; all, if empty.
    """

    name: str
    dims: str
    dtype: str = "BF16"
    cut: str = ""
    axis: int = 0

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Its whole shape."""
        return tuple(int(dim) if dim.isdigit() else sizes[dim] for dim in self.dims.split())

    def part(self, sizes: Mapping[str, int], rank: int) -> tuple[slice, ...]:
        """What `rank` holds, as an index of every dimension."""
        whole = [slice(0, size) for size in self.shape(sizes)]
        if self.cut:
            width = sizes[self.cut]
            whole[self.axis] = slice(rank * width, (rank + 1) * width)
        return tuple(whole)


def _weight(name: str, dims: str, **more: object) -> Held:
    return Held(f"{name}.weight", dims, **more)  # type: ignore[arg-type]


COMMON = (
    _weight("input_layernorm", "HIDDEN"),
    _weight("post_attention_layernorm", "HIDDEN"),
    _weight("self_attention_res_norm", "HIDDEN"),
    _weight("self_attention_res_proj", "1 HIDDEN"),
    _weight("mlp_res_norm", "HIDDEN"),
    _weight("mlp_res_proj", "1 HIDDEN"),
    _weight("self_attn.g_proj", "ALL_PROJ HIDDEN", cut="PROJ"),
    _weight("self_attn.o_proj", "HIDDEN ALL_PROJ", cut="PROJ", axis=1),
)
KDA = (
    *(_weight(f"self_attn.{x}_proj", "ALL_PROJ HIDDEN", cut="PROJ") for x in "qkv"),
    *(_weight(f"self_attn.{x}_conv1d", f"ALL_PROJ 1 {CONV_WIDTH}", dtype="F32", cut="PROJ") for x in "qkv"),
    _weight("self_attn.f_a_proj", f"{HEAD_DIM} HIDDEN"),
    _weight("self_attn.f_b_proj", f"ALL_PROJ {HEAD_DIM}", cut="PROJ"),
    _weight("self_attn.b_proj", "ALL_HEADS HIDDEN", cut="HEADS"),
    Held("self_attn.A_log", "A_LOG", "F32", cut="HEADS"),
    Held("self_attn.dt_bias", "ALL_PROJ", "F32", cut="PROJ"),
    _weight("self_attn.o_norm", f"{HEAD_DIM}"),
)
MLA = (
    _weight("self_attn.q_a_proj", "Q_LORA HIDDEN"),
    _weight("self_attn.q_a_layernorm", "Q_LORA"),
    _weight("self_attn.q_b_proj", "ALL_QB Q_LORA", cut="QB"),
    _weight("self_attn.kv_a_proj_with_mqa", "KV_A HIDDEN"),
    _weight("self_attn.kv_a_layernorm", "KV_LORA"),
    _weight("self_attn.kv_b_proj", "ALL_KV_B KV_LORA", cut="KV_B"),
)
KINDS: Mapping[Kind, tuple[Held, ...]] = {"KDA": (*COMMON, *KDA), "MLA": (*COMMON, *MLA)}
"""All that k3lab reads of a layer, by its kind; a real layer has more (the experts), which is never opened."""

TELLS: Mapping[Kind, str] = {"KDA": "self_attn.A_log", "MLA": "self_attn.kv_b_proj.weight"}
"""The tensor that tells a layer's kind: the other kind has none of that name."""


def full_name(layer: int, name: str) -> str:
    """A layer's tensor as the checkpoint calls it."""
    return f"{PREFIX}{layer}.{name}"


def kind_of(layer: int) -> Kind:
    """The published model's layer `layer`, from 0: MLA for 3, 7, ..., 91 and 92, else KDA."""
    return "MLA" if layer % 4 == 3 or layer == LAYERS - 1 else "KDA"


def blocks_seen(layer: int) -> int:
    """AttnRes blocks that the attention seam of `layer` sees: ceil(layer / 12)."""
    return -(-layer // BLOCK_LAYERS)


def writes_block(layer: int) -> bool:
    """Whether `layer` stores its prefix as a new block: 0, 12, ..., 84."""
    return layer % BLOCK_LAYERS == 0


def sizes(geometry: Geometry) -> dict[str, int]:
    """Sizes that shapes are written in: `ALL_...` over every rank, the others a rank's or replicated."""
    g = geometry
    return {
        "HIDDEN": g.hidden,
        "HEADS": g.heads,
        "ALL_HEADS": g.all_heads,
        "A_LOG": -(-g.all_heads // A_LOG_PADDED) * A_LOG_PADDED,
        "PROJ": g.proj,
        "ALL_PROJ": g.proj * g.tp,
        "Q_LORA": g.q_lora,
        "KV_LORA": g.kv_lora,
        "KV_A": g.kv_lora + ROPE,
        "QB": g.q_b,
        "ALL_QB": g.q_b * g.tp,
        "KV_B": g.kv_b,
        "ALL_KV_B": g.kv_b * g.tp,
    }
