"""K1's roles: which CTA runs which stages, in what order."""

from typing import Any

from flydsl.expr import const_expr, gpu

from k3lab.device.context import Context
from k3lab.device.dsl import traced
from k3lab.device.stamps import stamp
from k3lab.kernels.seam import attention
from k3lab.stages.attnres.role import attention_bytes
from k3lab.stages.gemv import kernel as gemv
from k3lab.stages.gemv.product import gemv_bytes
from k3lab.stages.gemv.tasks import issue
from k3lab.stages.kda.conv import kernel as conv
from k3lab.stages.kda.gates import kernel as gates
from k3lab.stages.kda.norm import kernel as norm
from k3lab.stages.kda.recur import kernel as recur
from k3lab.stages.kda.task import KdaLds, Task, kda_bytes, task_count

KDA = ("conv", "gates", "recur", "norm")


def lds_bytes(key: Any) -> int:
    """LDS of K1's most demanding role."""
    return max(attention_bytes(key), gemv_bytes(key, key.geometry.hidden, key.k_parts), kda_bytes(key))


@traced
def body(c: Context) -> None:
    """Attention on the first NA CTAs, GEMV on the others or on all, then the KDA tasks on all."""
    if const_expr(c.key.gemv_all):
        issued = issue(c, gemv.in_proj(c), gemv.deal(c)) if c.runs("gemv") else []
        if c.cta < c.g.na:
            attention(c)
        projection(c, issued)
    else:
        if c.cta < c.g.na:
            attention(c)
        else:
            projection(c)
    if const_expr(any(c.runs(stage) for stage in KDA)):
        kda(c)


@traced
def projection(c: Context, issued: list[Any] | None = None) -> None:
    """in_proj's tasks, the first one's weights under way before anything is waited for: `issued`, or issued here."""
    if const_expr(c.runs("gemv")):
        tasks = gemv.deal(c)
        if tasks.first < tasks.total:
            product = gemv.in_proj(c)
            gemv.run(c, product, tasks, issue(c, product, tasks) if issued is None else issued)


@traced
def kda(c: Context) -> None:
    """The CTA's KDA tasks, dealt round robin from CTA kda0 on."""
    blocks, tasks = c.g.blocks, task_count(c.key)
    shifted = c.cta - c.key.kda0
    first = (shifted < 0).select(shifted + blocks, shifted)
    gpu.barrier()
    if const_expr(tasks <= blocks):
        if first < tasks:
            kda_stage(c, first)
    else:
        for i in range(-(-tasks // blocks)):
            if first + i * blocks < tasks:
                kda_stage(c, first + i * blocks)


@traced
def kda_stage(c: Context, number: Any) -> None:
    """One task: everything that needs no hand-off is loaded before the first poll."""
    lds, task = KdaLds(c), Task(c, number)
    windows = conv.issue(c, task) if c.runs("conv") else None
    rates = gates.issue(c, task) if c.runs("gates") else None
    state = recur.issue(c, task) if c.runs("recur") else None
    weights = norm.issue(c, task) if c.runs("norm") else None
    stamp(c, "kda_staged")
    if const_expr(c.runs("conv")):
        conv.run(c, lds, task, windows)
        stamp(c, "conv")
    if const_expr(c.runs("gates")):
        gates.run(c, lds, task, rates)
        stamp(c, "gates")
    if const_expr(c.runs("recur")):
        conv.load_given(c, lds, task)
        gates.load_given(c, lds, task)
        recur.run(c, lds, task, state)
        stamp(c, "recur")
    if const_expr(c.runs("norm")):
        recur.load_given(c, lds, task)
        norm.run(c, lds, task, weights)
        stamp(c, "norm")
