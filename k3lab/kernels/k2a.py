"""K2a's roles: which CTA runs which stages, in what order."""

from typing import Any

from flydsl.expr import const_expr

from k3lab.device.context import Context
from k3lab.device.dsl import traced
from k3lab.device.peers import Peers
from k3lab.device.stamps import stamp
from k3lab.stages.attnres.gate import kernel as gate
from k3lab.stages.attnres.mix import kernel as mix
from k3lab.stages.attnres.role import AttentionLds, attention_bytes
from k3lab.stages.attnres.slice import kernel as slices
from k3lab.stages.gemv.product import gemv_bytes
from k3lab.stages.gemv.tasks import Deal, round_robin
from k3lab.stages.oproj.push import kernel as push
from k3lab.stages.oproj.reduce import kernel as reduce

ATTENTION = ("reduce", "slice", "gate", "mix")


def lds_bytes(key: Any) -> int:
    """LDS of K2a's most demanding role."""
    return max(attention_bytes(key, delta=True), gemv_bytes(key, key.geometry.proj, key.k_parts))


@traced
def body(c: Context) -> None:
    """Reduce and attention on the first NA CTAs, o_proj on the others, or on all first."""
    if const_expr(c.key.gemv_all):
        projection(c)
        if c.cta < c.g.na:
            attention(c)
    else:
        if c.cta < c.g.na:
            attention(c)
        else:
            projection(c)


@traced
def projection(c: Context) -> None:
    """o_proj's tasks, round robin; where they do not divide, some CTAs have one less.

    In a build with a depth of prefetch or held sums `run_tasks` sees to that one: half the code, fewer registers.
    """
    if const_expr(c.runs("o")):
        tasks = round_robin(c, c.key.gemv_tasks)
        if const_expr(tasks.total % c.key.gemv_ctas == 0 or c.key.prefetch > 0 or c.key.holds_sums):
            push.run(c, tasks)
        else:
            if tasks.number(tasks.count - 1) < tasks.total:
                push.run(c, tasks)
            else:
                if const_expr(tasks.count > 1):
                    push.run(c, Deal(tasks.first, tasks.step, tasks.count - 1, tasks.total))


@traced
def attention(c: Context) -> None:
    """The ranks' partials to the delta, then slice, gate, mix over the CTA's 128 columns."""
    if const_expr(any(c.runs(stage) for stage in ATTENTION)):
        lds = AttentionLds(c)
        loads = slices.issue(c) if c.runs("slice") else None
        peers = Peers(c) if c.runs("reduce") else None
        if const_expr(c.runs("reduce")):
            reduce.run(c, lds, peers)
            stamp(c, "reduced")
        if const_expr(c.runs("slice")):
            if const_expr(not c.runs("reduce")):
                reduce.load_given(c, lds)
            slices.run(c, lds, loads)
        if const_expr(c.runs("gate")):
            gate.run(c, lds)
            stamp(c, "slice_gate")
        if const_expr(c.runs("mix")):
            if const_expr(not c.runs("slice")):
                slices.load_given(c, lds)
            mix.run(c, lds)
            stamp(c, "mix")
        if const_expr(c.key.sentinel and c.runs("reduce")):
            reduce.rearm_ar(c, peers)
