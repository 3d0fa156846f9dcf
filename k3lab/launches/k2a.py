"""K2a `attn_post`: o_proj, its tensor-parallel all-reduce inside the kernel, and the MLP's AttnRes seam."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3lab.errors import expect
from k3lab.geometry import TP_SIZES
from k3lab.launches import seam
from k3lab.launches.declaration import Launch, Output, Point, Stage, TensorDecl
from k3lab.launches.key import LaunchKey
from k3lab.launches.stamps import ATTENTION, GEMV, SEAM, START, StampPoint
from k3lab.layout import Local, PlainRows, Region
from k3lab.stages.oproj.push.twin import stage_o
from k3lab.stages.oproj.reduce.twin import stage_reduce

ONE_SHOT_TOKENS = 8  # up to here every rank pushes its partial to every rank
SHOTS = ("auto", "one", "two")


@dataclass(frozen=True)
class K2aKey(LaunchKey):
    """What a build of K2a is made for.

    Attributes:
        ranks: ranks whose partials are summed.
        reset: a block-write layer: the prefix restarts at the delta, the old one is not read.
        shots: `one` (every rank sums everything), `two` (the columns' owner sums), `auto` (one up to 8 tokens).
        sentinel: hand words over armed with a NaN pattern, without tags.
    """

    ranks: int = 8
    reset: bool = False
    shots: str = "auto"
    sentinel: bool = False

    def validate(self) -> None:
        super().validate()
        expect(self.ranks in TP_SIZES, "ranks", f"one of {TP_SIZES}", self.ranks)
        expect(self.shots in SHOTS, "shots", f"one of {SHOTS}", repr(self.shots))
        owned = self.geometry.na % self.ranks == 0
        expect(owned, "ranks", f"a divisor of the {self.geometry.na} slices (owners own whole slices)", self.ranks)

    @property
    def gemv_tasks(self) -> int:
        return self.geometry.tasks(self.geometry.hidden)

    @property
    def delta(self) -> bool:
        """The all-reduce always gives one."""
        return True

    @property
    def two_shot(self) -> bool:
        return self.shots == "two" or (self.shots == "auto" and self.tokens > ONE_SHOT_TOKENS)

    @property
    def sizes(self) -> dict[str, int]:
        return {**super().sizes, "RANKS": self.ranks, "BLOCKS_USED": self.nblocks}


def check_inputs(key: K2aKey, tensors: Mapping[str, Any]) -> None:
    """Nothing beyond shapes and dtypes."""


K2A = Launch(
    name="k2a",
    published="attn_post",
    about="After attention: o_proj, all-reduce over the ranks, the MLP's AttnRes seam.",
    key_type=K2aKey,
    inputs=(
        *(decl for decl in seam.INPUTS if decl.name != "delta"),
        TensorDecl("core", "S PROJ", "bf16", "activation", "gated core output of the rank's heads", per_rank=True),
        TensorDecl("w_o", "HIDDEN PROJ", "bf16", "weight", "the rank's K slice of o_proj", per_rank=True),
    ),
    stages=(
        Stage(
            "o",
            "k3lab.stages.oproj.push",
            stage_o,
            reads=("core", "w_o"),
            writes=("partial",),
            points=(Point("o.partial", "bf16", "S HIDDEN", "a rank's part of the attention output"),),
            about="o_proj over the rank's heads",
        ),
        Stage(
            "reduce",
            "k3lab.stages.oproj.reduce",
            stage_reduce,
            reads=("partial",),
            gathers=("partial",),
            writes=("delta", "AR"),
            points=(Point("reduce.delta", "bf16", "S HIDDEN", "the ranks' sum"),),
            options=(Point("reduce.sum", "rotated", "S HIDDEN", "in another order: rotated, pairwise or float64"),),
            about="the ranks' partials summed in rank order",
        ),
        *seam.stages(x="x_out", prefix_rounds=lambda key: not key.reset),
    ),
    regions=(
        *seam.REGIONS,
        Region(
            "AR",
            "RANKS S HIDDEN",
            "bf16x2",
            scope="system",
            about="what the ranks send each other to be summed",
            armed=True,
        ),
    ),
    rows=(PlainRows("x_out", "S HIDDEN", "bf16", guard="XRDY", about="the MoE's input row", output=True),),
    locals=(
        *seam.LOCALS,
        Local("partial", "S HIDDEN", "bf16", "o", ("reduce",), about="the rank's part of the attention output"),
        Local("delta", "S HIDDEN", "bf16", "reduce", ("slice",), about="the ranks' sum, added to the prefix"),
    ),
    made=(Output("x_out", "S HIDDEN", "bf16", "the MoE's input row"),),
    outputs=("prefix", "x_out"),
    end_tensors=("prefix", "x_out"),
    stamp_points=(
        START,
        StampPoint("core_staged", "o", GEMV, "first weights asked for, core rows in LDS", last=True),
        StampPoint("pushed", "o", GEMV, "every task multiplied and sent to the ranks"),
        StampPoint("reduced", "reduce", ATTENTION, "the ranks' partials waited for and summed"),
        StampPoint("slice_gate", "slice+gate", ATTENTION, "partial sums put; on a CTA that has a token, its weights"),
        StampPoint("mix", "mix", ATTENTION, SEAM[-1].about),
    ),
    check=check_inputs,
    tie_weights=seam.TIE_WEIGHTS,
)
