"""The role that every launch opens with: slice, gate and mix on the attention CTAs."""

from flydsl.expr import const_expr

from k3lab.device.context import Context
from k3lab.device.dsl import traced
from k3lab.device.stamps import stamp
from k3lab.stages.attnres.gate import kernel as gate
from k3lab.stages.attnres.mix import kernel as mix
from k3lab.stages.attnres.role import AttentionLds
from k3lab.stages.attnres.slice import kernel as slices

SEAM = ("slice", "gate", "mix")


@traced
def attention(c: Context) -> None:
    """slice, gate, mix over the CTA's 128 columns."""
    if const_expr(any(c.runs(stage) for stage in SEAM)):
        lds = AttentionLds(c)
        if const_expr(c.runs("slice")):
            slices.run(c, lds, slices.issue(c))
            stamp(c, "slice")
        if const_expr(c.runs("gate")):
            gate.run(c, lds)
            stamp(c, "gate")
        if const_expr(c.runs("mix")):
            if const_expr(not c.runs("slice")):
                slices.load_given(c, lds)
            mix.run(c, lds)
            stamp(c, "mix")
