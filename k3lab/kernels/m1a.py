"""M1a's roles: which CTA runs which stages, in what order."""

from typing import Any

from flydsl.expr import const_expr

from k3lab.device.context import Context
from k3lab.device.dsl import traced
from k3lab.device.stamps import stamp
from k3lab.kernels.seam import attention
from k3lab.stages.attnres.role import attention_bytes
from k3lab.stages.gemv.product import gemv_bytes
from k3lab.stages.gemv.tasks import issue
from k3lab.stages.mla.norm import kernel as norm
from k3lab.stages.mla.proj import kernel as proj
from k3lab.stages.mla.qb import kernel as qb
from k3lab.stages.mla.query import peers_of
from k3lab.stages.mla.role import NormLds, gemv_tasks, norm_bytes, qb_tasks
from k3lab.stages.mla.uk import kernel as uk
from k3lab.stages.mla.unpack import kernel as unpack


def lds_bytes(key: Any) -> int:
    """LDS of M1a's most demanding role."""
    g = key.geometry
    return max(attention_bytes(key), gemv_bytes(key, g.hidden, key.k_parts), gemv_bytes(key, g.q_lora), norm_bytes())


@traced
def body(c: Context) -> None:
    """Attention and the latent norms on the first NA CTAs, products on the others or on all; then all gather."""
    if const_expr(c.key.gemv_all):
        issued = issue(c, proj.product(c), gemv_tasks(c)) if c.runs("proj") else []
        if c.cta < c.g.na:
            attention(c)
        projections(c, issued)
        if c.cta < c.g.na:
            latents(c)
        queries(c)
    else:
        if c.cta < c.g.na:
            attention(c)
            latents(c)
        else:
            projections(c)
            queries(c)
    if const_expr(c.runs("unpack")):
        unpack.stage_unpack(c)
        stamp(c, "unpack")


@traced
def projections(c: Context, issued: list[Any] | None = None) -> None:
    """fused_qkv_a's and the gate's tasks, the first weights under way before any wait: `issued`, or issued here."""
    if const_expr(c.runs("proj")):
        tasks = gemv_tasks(c)
        if tasks.first < tasks.total:
            product = proj.product(c)
            proj.stage_proj(c, product, tasks, issue(c, product, tasks) if issued is None else issued)


@traced
def latents(c: Context) -> None:
    """The latent norms of the CTA's tokens."""
    if const_expr(c.runs("norm")):
        norm.run(c, NormLds(c))
        stamp(c, "norm")


@traced
def queries(c: Context) -> None:
    """q_b's tasks, their weights too issued before the wait, then the W_UK waves."""
    peers = peers_of(c)
    if const_expr(c.runs("qb")):
        tasks = qb_tasks(c)
        if tasks.first < tasks.total:
            product = qb.product(c)
            qb.stage_qb(c, product, tasks, issue(c, product, tasks), peers)
            stamp(c, "q_b")
    if const_expr(c.runs("uk")):
        uk.load_given(c, peers)
        uk.run(c, peers)
        stamp(c, "w_uk")
