"""mix, as the kernel does it: a CTA's 128 columns of every token, 32 threads a token, 4 columns a thread."""

from typing import Any

from flydsl.expr import const_expr, gpu, range_constexpr

from k3lab.device.context import Context
from k3lab.device.dsl import F32, Int32, fx, traced
from k3lab.device.floats import bf16_words, from_words, from_zero, in_order, rms_scale, sum4
from k3lab.device.mailbox import Spec, poll_rows_to_lds, publish_rows, put
from k3lab.device.memory import DEVICE, buffer, load, store_words
from k3lab.device.wave import bfly32
from k3lab.geometry import COLS, SLICE_GROUPS
from k3lab.stages.attnres.role import LANES_A_ROW, ROWS_AT_ONCE, WORDS_A_ROW, AttentionLds
from k3lab.stages.attnres.slice.kernel import block_address


@traced
def run(c: Context, lds: AttentionLds) -> None:
    """x = norm(sum_s e_s v_s / den) in_nw into the plain rows x (or x_out), then this slice's flag in XRDY."""
    column = c.cta * COLS + (c.tid & (LANES_A_ROW - 1)) * 4
    weight = from_words(load(Int32, c.args.in_nw, column >> 1, 2), 2)
    if const_expr(not (c.key.gate_local and c.runs("gate"))):
        pairs = c.pairs("WGT")
        count = c.key.tokens * (c.key.nblocks + 2)
        poll_rows_to_lds(c, count, lambda item: Spec(pairs, item), lambda i, w: lds.weights.store(w.bitcast(F32), i))
    rounds = -(-c.key.tokens // ROWS_AT_ONCE)
    mixed = [_mix(c, lds, _token(c, i), column) for i in range(rounds)]
    for i in range_constexpr(rounds):
        _put_square(c, i, mixed[i])
    _norm_scales(c, lds)
    for i in range_constexpr(rounds):
        _write(c, lds, i, mixed[i], weight, column)
    publish_rows(c, c.pairs("XRDY"), c.cta)


def _token(c: Context, i: int) -> Any:
    """The token this thread has in round `i`; past the last one, the last."""
    token = (c.tid >> (LANES_A_ROW.bit_length() - 1)) + i * ROWS_AT_ONCE
    return fx.min(token, Int32(c.key.tokens - 1))


@traced
def mix_src(c: Context, lds: AttentionLds, token: Any, source: int, column: Any) -> Any:
    """4 values of one source: from LDS, or read again where it holds the prefix only."""
    ns = c.key.nblocks + 1
    place = (c.tid & (LANES_A_ROW - 1)) * 2
    if const_expr(lds.all):
        return from_words(lds.vals.load((token * ns + source) * WORDS_A_ROW + place, 2), 2)
    if const_expr(source == c.key.nblocks):
        return from_words(lds.vals.load(token * WORDS_A_ROW + place, 2), 2)
    return from_words(load(Int32, block_address(c, token, Int32(source), column), 0, 2), 2)


def _mix(c: Context, lds: AttentionLds, token: Any, column: Any) -> list[Any]:
    """4 columns of (sum over sources in order from 0.0 of e_s v_s) / den."""
    ns = c.key.nblocks + 1
    e = [lds.weights.load(token * (ns + 1) + s) for s in range(ns + 1)]
    v = [mix_src(c, lds, token, s, column) for s in range(ns)]
    return [from_zero([e[s] * v[s][i] for s in range(ns)]) / e[ns] for i in range(4)]


@traced
def _put_square(c: Context, i: int, mixed: list[Any]) -> None:
    """This slice's sum of mixed^2 into MSQ."""
    square = bfly32(sum4([x * x for x in mixed]))
    token = (c.tid >> (LANES_A_ROW.bit_length() - 1)) + i * ROWS_AT_ONCE
    if (token < c.key.tokens) & ((c.tid & (LANES_A_ROW - 1)) == 0):
        put(c, c.pairs("MSQ"), c.cta * c.key.tokens + token, square)


@traced
def _norm_scales(c: Context, lds: AttentionLds) -> None:
    """Every slice's MSQ into LDS, then a thread a token: 8 groups of slices in order, then the groups."""
    tokens, width, pairs = c.key.tokens, c.g.na // SLICE_GROUPS, c.pairs("MSQ")
    poll_rows_to_lds(c, c.g.na * tokens, lambda item: Spec(pairs, item), lambda i, w: lds.msq.store(w.bitcast(F32), i))
    if c.tid < tokens:
        groups = [
            in_order([lds.msq.load((g * width + i) * tokens + c.tid) for i in range(width)])
            for g in range(SLICE_GROUPS)
        ]
        lds.scale.store(rms_scale(in_order(groups), c.g.hidden, c.key.out_eps), c.tid)
    gpu.barrier()


@traced
def _write(c: Context, lds: AttentionLds, i: int, mixed: list[Any], weight: list[Any], column: Any) -> None:
    """x = bf16((mixed r) in_nw), 4 columns, at device scope."""
    token = (c.tid >> (LANES_A_ROW.bit_length() - 1)) + i * ROWS_AT_ONCE
    scale = lds.scale.load(_token(c, i))
    words = bf16_words([(m * scale) * w for m, w in zip(mixed, weight, strict=True)])
    if token < c.key.tokens:
        rows, first = x_rows(c)
        store_words(words, rows, first + (token * c.g.hidden + column) * 2, DEVICE)


def x_rows(c: Context) -> tuple[Any, int]:
    """Where x is written: a buffer and the first row's byte offset, in scratch or in the launch's output x_out."""
    if "x" in c.places:
        return c.scratch, c.places["x"].offset
    return buffer(c.args.x_out), 0
