"""M1a `mla_pre`: an MLA layer from the AttnRes seam to the decode attention's fp8 query and cache entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from k3lab.errors import expect
from k3lab.geometry import TP_SIZES
from k3lab.launches import seam
from k3lab.launches.declaration import Launch, Output, Point, Stage, TensorDecl
from k3lab.launches.key import LaunchKey
from k3lab.launches.stamps import ATTENTION, GEMV, SEAM, START, StampPoint
from k3lab.layout import Local, PlainRows, Region
from k3lab.stages.mla.norm.twin import stage_norm
from k3lab.stages.mla.proj.twin import stage_proj
from k3lab.stages.mla.qb.twin import stage_qb
from k3lab.stages.mla.uk.twin import stage_uk
from k3lab.stages.mla.unpack.twin import stage_unpack

MAX_SLOT = 2**31  # the kernel reads a slot's low 32 bits as signed


@dataclass(frozen=True)
class M1aKey(LaunchKey):
    """What a build of M1a is made for.

    Attributes:
        delta: whether a delta is added to the prefix first.
        ranks: ranks whose query heads are gathered (decode context parallel); 1 gathers nothing.
        q_heads: QH, head slots of q_out; 0 stands for ranks x HEADS. More are pads that repeat the first heads.
        qbf16: keep bf16 queries (one rank only).
        q_eps, kv_eps: epsilon of the latent norms: vLLM takes the config's 1e-5, the Hugging Face model and ATOM 1e-6.
        qb0: knob: GEMV CTA that q_b's tasks are dealt from, modulo their number.
        uk_ctas: knob: CTAs that the W_UK waves lie on, the last ones; all GEMV CTAs where those are fewer.
    """

    delta: bool = True
    ranks: int = 1
    q_heads: int = 0
    qbf16: bool = False
    q_eps: float = 1e-5
    kv_eps: float = 1e-5
    qb0: int = 8
    uk_ctas: int = 48

    def fill(self) -> None:
        if self.q_heads == 0:
            object.__setattr__(self, "q_heads", self.ranks * self.geometry.heads)

    def validate(self) -> None:
        super().validate()
        expect(self.ranks in TP_SIZES, "ranks", f"one of {TP_SIZES}", self.ranks)
        heads = self.ranks * self.geometry.heads
        top = heads if self.ranks == 1 else 2 * heads
        expect(heads <= self.q_heads <= top, "q_heads", f"{heads} .. {top} at ranks {self.ranks}", self.q_heads)
        expect(not self.qbf16 or self.ranks == 1, "qbf16", "ranks 1 (gathered queries are fp8)", f"ranks {self.ranks}")
        for name in ("q_eps", "kv_eps"):
            value = getattr(self, name)
            expect(0 < value < 1, name, "a number between 0 and 1", repr(value))
        expect(0 <= self.qb0 < self.geometry.blocks, "qb0", f"a CTA 0 .. {self.geometry.blocks - 1}", self.qb0)
        expect(self.uk_ctas >= 1, "uk_ctas", "at least 1", self.uk_ctas)

    @property
    def gemv_tasks(self) -> int:
        return self.geometry.tasks(self.geometry.qkv_a) + self.geometry.tasks(self.geometry.proj)

    @property
    def proj0(self) -> int:
        """GEMV CTA that the projections' tasks are dealt from: the first past those that norm a latent row as well."""
        return min(self.tokens, self.geometry.na) if self.gemv_all else 0

    @property
    def sizes(self) -> dict[str, int]:
        g = self.geometry
        return {
            **super().sizes,
            "RANKS": self.ranks,
            "QH": self.q_heads,
            "Q_LORA": g.q_lora,
            "KV_LORA": g.kv_lora,
            "QKV_A": g.qkv_a,
            "QB": g.q_b,
            "KV_B": g.kv_b,
            "ENTRY": g.entry,
            "BLOCKS_USED": self.nblocks,
        }


def check_inputs(key: M1aKey, tensors: Mapping[str, torch.Tensor]) -> None:
    """What shapes and dtypes cannot say: the cache slots of one rank.

    Raises:
        BadInput: naming the tensor and the first offender.
    """
    slots, cache = tensors["slots"], tensors["kv_cache"]
    room = cache.shape[0] * cache.shape[1]
    top = min(room, MAX_SLOT)
    bad = (slots < -1) | (slots >= top)
    expect(not bad.any(), "slots", f"-1 or a slot below {top}", slots[bad][:1].tolist())
    live = slots[slots >= 0]
    shared = [int(slot) for slot, times in zip(*live.unique(return_counts=True), strict=True) if times > 1]
    expect(not shared, "slots", "no slot twice (two tokens would write one cache entry)", f"slot {shared[:1]} shared")


def _fp8_queries(key: M1aKey) -> bool:
    return not key.qbf16


M1A = Launch(
    name="m1a",
    published="mla_pre",
    about="An MLA layer: AttnRes seam, latent projections and norms, q_b, absorbed fp8 query, cache entry, gate.",
    key_type=M1aKey,
    inputs=(
        *seam.INPUTS,
        TensorDecl("w_qkv", "QKV_A HIDDEN", "bf16", "weight", "fused_qkv_a: rows q_c, kv_c, k_pe"),
        TensorDecl("w_g", "PROJ HIDDEN", "bf16", "weight", "output gate projection", per_rank=True),
        TensorDecl("q_nw", "Q_LORA", "bf16", "norm_weight", "q latent norm weight"),
        TensorDecl("kv_nw", "KV_LORA", "bf16", "norm_weight", "kv latent norm weight"),
        TensorDecl("w_qb", "QB Q_LORA", "bf16", "weight", "q_b: by head 128 nope rows, then 64 pe rows", per_rank=True),
        TensorDecl("w_k", "HEADS KV_LORA 64", "e2m1x2", "special", "W_UK in E2M1, two a byte", per_rank=True),
        TensorDecl(
            "w_k_scale", "HEADS KV_LORA 4", "e8m0", "special", "W_UK's E8M0 block scales", strides="free", per_rank=True
        ),
        TensorDecl(
            "w_kv_b",
            "KV_B KV_LORA",
            "bf16",
            "special",
            "kv_b_proj, by head 128 K rows, then 128 V rows: what W_K was made from; for swap and decode attention",
            optional=True,
            per_rank=True,
        ),
        TensorDecl(
            "kv_cache", "*blocks *block_size ENTRY", "fp8_e4m3", "special", "paged cache", strides="rows", per_rank=True
        ),
        TensorDecl("slots", "S", "int64", "special", "cache slot of each token; -1: another rank's", per_rank=True),
    ),
    stages=(
        *seam.stages(prefix_rounds=lambda key: key.delta),
        Stage(
            "proj",
            "k3lab.stages.mla.proj",
            stage_proj,
            reads=("x", "w_qkv", "w_g"),
            writes=("QA", "gate_out"),
            points=(
                Point("proj.qa", "bf16", "S QKV_A", "latents q_c, kv_c and k_pe"),
                Point("proj.g", "bf16", "S PROJ", "output gate before its sigmoid"),
                Point("proj.gate", "bf16", "S PROJ", "output gate after its sigmoid"),
            ),
            about="x times fused_qkv_a and times the gate's projection",
        ),
        Stage(
            "norm",
            "k3lab.stages.mla.norm",
            stage_norm,
            reads=("QA", "q_nw", "kv_nw", "kv_cache", "slots"),
            writes=("QC", "kv_cache"),
            points=(
                Point("norm.q_c", "bf16", "S Q_LORA", "normed query latent"),
                Point("norm.kv", "bf16", "S KV_LORA", "normed kv latent"),
                Point("norm.kv_entry", "fp8_e4m3", "S KV_LORA", "kv latent in the cache"),
                Point("norm.k_pe_entry", "fp8_e4m3", "S 64", "k_pe in the cache"),
            ),
            about="latent norms; cache entry of each token this rank owns",
        ),
        Stage(
            "qb",
            "k3lab.stages.mla.qb",
            stage_qb,
            reads=("QC", "w_qb"),
            writes=("QN", "q_pe"),
            points=(
                Point("qb.q_nope", "bf16", "S HEADS 128", "query, no-position part"),
                Point("qb.q_pe", "bf16", "S HEADS 64", "query, pe part"),
                Point("qb.q_pe_entry", "fp8_e4m3", "S HEADS 64", "pe part in the query entry", when=_fp8_queries),
            ),
            about="query heads from the latent",
        ),
        Stage(
            "uk",
            "k3lab.stages.mla.uk",
            stage_uk,
            reads=("QN", "q_pe", "w_k", "w_k_scale", "w_kv_b"),
            writes=("query",),
            points=(
                Point("uk.q_nope", "mxfp4:even", "S HEADS 128", "q_nope as the scaled MFMA reads it"),
                Point("uk.q", "bf16", "S HEADS KV_LORA", "absorbed query"),
                Point("uk.q_entry", "fp8_e4m3", "S HEADS KV_LORA", "absorbed query in the entry", when=_fp8_queries),
            ),
            options=(Point("uk.w_k", "unquantised", "HEADS KV_LORA 128", "W_UK in bf16 (needs the case's w_kv_b)"),),
            about="absorbed query: MXFP4 q_nope times MXFP4 W_UK",
        ),
        Stage(
            "unpack",
            "k3lab.stages.mla.unpack",
            stage_unpack,
            reads=("query",),
            gathers=("query",),
            writes=("q_out", "QG"),
            about="all ranks' query heads, padded",
        ),
    ),
    regions=(
        *seam.REGIONS,
        Region("QA", "S QKV_A", "bf16x2", about="latents q_c, kv_c and k_pe, before their norms"),
        Region("QCR", "S", "flag", about="a token's query latent is written"),
        Region("QN", "S HEADS 128", "bf16x2", about="query, no-position part"),
        Region(
            "QG",
            "RANKS S HEADS ENTRY",
            "fp8x4",
            scope="system",
            about="every rank's query heads, gathered",
            present=lambda key: key.ranks > 1,
        ),
    ),
    rows=(
        PlainRows("x", "S HIDDEN", "bf16", guard="XRDY", about=seam.X_ABOUT),
        PlainRows("QC", "S Q_LORA", "bf16", guard="QCR", about="normed query latent"),
    ),
    locals=(
        *seam.LOCALS,
        Local("q_pe", "S HEADS 64", "fp8_e4m3", "qb", ("uk",), about="query, position part"),
        Local("query", "S HEADS ENTRY", "fp8_e4m3", "uk", ("unpack",), about="the rank's own absorbed query heads"),
    ),
    made=(
        Output("gate_out", "S PROJ", "bf16", "output gate, after its sigmoid"),
        Output("q_out", "S QH ENTRY", "fp8_e4m3", "absorbed query heads"),
    ),
    outputs=("prefix", "kv_cache", "q_out", "gate_out"),
    end_tensors=("q_out", "kv_cache", "gate_out", "prefix", "x"),
    stamp_points=(
        START,
        *SEAM,
        StampPoint("first_proj", "proj", GEMV, "weights asked for, all flags of x waited for, first task", last=True),
        StampPoint("second_proj", "proj", GEMV, "second task multiplied and put", last=True),
        StampPoint("norm", "norm", ATTENTION, "on a CTA that has a token: latents waited for, normed, stored"),
        StampPoint("q_b", "qb", GEMV, "weights asked for, latents' flags waited for, query rows put"),
        StampPoint("w_uk", "uk", GEMV, "first wave's tasks: q_nope waited for, absorbed query put"),
        StampPoint("unpack", "unpack", "", "all ranks' query words waited for and written"),
    ),
    check=check_inputs,
    tie_weights=seam.TIE_WEIGHTS,
    variants={"ranks8": {"ranks": 8}},
    in_bf16=lambda key: ("q_pe", "query", "q_out") if key.qbf16 else (),
)
