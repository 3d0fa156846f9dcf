"""gate, as the kernel does it: a token's PART polled by 8 threads a source, its softmax on one wave."""

from typing import Any

from flydsl.expr import const_expr, gpu, range_constexpr

from k3lab.device.context import Context
from k3lab.device.dsl import F32, Int32, fx, traced
from k3lab.device.floats import LOG2E, exp2, in_order, rms_scale
from k3lab.device.mailbox import BATCH, Spec, poll, put
from k3lab.device.wave import bfly64
from k3lab.geometry import SLICE_GROUPS
from k3lab.stages.attnres.role import AttentionLds


@traced
def run(c: Context, lds: AttentionLds) -> None:
    """Tokens cta, cta + NA, ... -> WGT; a gate_local build keeps every token's weights in LDS instead."""
    if const_expr(c.key.gate_local):
        for token in range(c.key.tokens):
            _gate(c, lds, token)
    else:
        for i in range_constexpr(-(-c.key.tokens // c.g.na)):
            token = c.cta + i * c.g.na
            if token < c.key.tokens:
                _gate(c, lds, token)


@traced
def _gate(c: Context, lds: AttentionLds, token: Any) -> None:
    """One token: e_s = exp2(logit_s - max) and their sum."""
    ns = c.key.nblocks + 1
    if c.wave < -(-ns * SLICE_GROUPS // 64):
        _sum_slices(c, lds, token)
    gpu.barrier()
    if c.wave == 0:
        _softmax(c, lds, token)
    gpu.barrier()


@traced
def _sum_slices(c: Context, lds: AttentionLds, token: Any) -> None:
    """Thread (source, group): its NA / 8 slices' two sums, each in order from the first."""
    ns, width = c.key.nblocks + 1, c.g.na // SLICE_GROUPS
    item = fx.min(c.tid, Int32(ns * SLICE_GROUPS - 1))
    source, group = item >> 3, item & (SLICE_GROUPS - 1)
    part = c.pairs("PART")
    squares, dots = [], []
    for first in range_constexpr(0, width, BATCH):
        slices = [group * width + i for i in range(first, min(first + BATCH, width))]
        words = poll(c, [Spec(part, ((s * c.key.tokens + token) * ns + source) * 2, 2) for s in slices])
        squares += [pair[0].bitcast(F32) for pair in words]
        dots += [pair[1].bitcast(F32) for pair in words]
    if c.tid < ns * SLICE_GROUPS:
        lds.groups.store(in_order(squares), item * 2)
        lds.groups.store(in_order(dots), item * 2 + 1)


@traced
def _softmax(c: Context, lds: AttentionLds, token: Any) -> None:
    """Lane s: source s's logit; lanes past the last source take part with e = 0."""
    ns = c.key.nblocks + 1
    present = c.lane < ns
    base = fx.min(c.lane, Int32(ns - 1)) * (SLICE_GROUPS * 2)
    square = in_order([lds.groups.load(base + 2 * i) for i in range(SLICE_GROUPS)])
    dot = in_order([lds.groups.load(base + 2 * i + 1) for i in range(SLICE_GROUPS)])
    logit = (dot * rms_scale(square, c.g.hidden, c.key.eps)) * F32(LOG2E)
    largest = bfly64(present.select(logit, F32(float("-inf"))), fx.max)
    e = present.select(exp2(logit - largest), F32(0.0))
    total = bfly64(e)
    value = (c.lane == ns).select(total, e)
    if c.lane <= ns:
        if const_expr(c.key.gate_local):
            lds.weights.store(value, token * (ns + 1) + c.lane)
        else:
            put(c, c.pairs("WGT"), token * (ns + 1) + c.lane, value)
