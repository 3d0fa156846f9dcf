"""A product's token rows: waited for by their flags, then put into LDS."""

from collections.abc import Callable
from typing import Any

from flydsl.expr import const_expr, gpu, range_constexpr

from k3lab.device.context import Context
from k3lab.device.dsl import BF16, Int32, fx, traced
from k3lab.device.mailbox import Pairs, Spec, poll
from k3lab.device.memory import DEVICE, load_words
from k3lab.geometry import THREADS
from k3lab.stages.gemv.product import LANE_K, Meanwhile, Product

ROWS_IN_FLIGHT = 8
"""16-byte pieces of token rows a thread has in flight."""

Source = Callable[[Any, Any], Any]
"""8 bf16 of a token row from a column on, as 4 dwords."""


@traced
def wait_flags(c: Context, flags: Pairs, count: int) -> None:
    """Flags 0 .. count - 1: one wave polls, the others wait at the barrier with their weights in flight."""
    if c.wave == 0:
        poll(c, [Spec(flags, fx.min(c.lane + 64 * i, Int32(count - 1))) for i in range(-(-count // 64))])
    gpu.barrier()


def wait_x(c: Context) -> None:
    """Every slice's flag."""
    wait_flags(c, c.pairs("XRDY"), c.g.na)


@traced
def load_rows(
    c: Context, p: Product, source: Source, first: int, part: int = 0, meanwhile: Meanwhile | None = None
) -> None:
    """Rows first .. first + tokens - 1 of a part of K into LDS.

    Args:
        meanwhile: issues what is wanted next, once the last of the rows are on their way.
    """
    columns = range(part * p.width, min((part + 1) * p.width, p.k))
    rounds = -(-p.tokens * len(columns) // (LANE_K * THREADS))
    whole = (rounds - 1) // ROWS_IN_FLIGHT * ROWS_IN_FLIGHT
    looped = rounds if whole and meanwhile is None else whole
    if const_expr(looped > 0):
        for batch in range(0, looped, ROWS_IN_FLIGHT):
            _load_some(c, p, source, first, columns, Int32(batch), ROWS_IN_FLIGHT)
    if const_expr(looped < rounds):
        _load_some(c, p, source, first, columns, Int32(looped), rounds - looped, meanwhile)
    if c.tid == 0:
        p.x.store(fx.Vector.filled(LANE_K, 0.0, BF16), p.tokens * p.row)
    gpu.barrier()


@traced
def _load_some(
    c: Context,
    p: Product,
    source: Source,
    first: int,
    columns: range,
    begin: Any,
    count: int,
    meanwhile: Meanwhile | None = None,
) -> None:
    """This thread's 16-byte pieces number begin .. begin + count - 1 of the rows: all loads, then all stores."""
    a_row = len(columns) // LANE_K
    pieces = [c.tid + (begin + i) * THREADS for i in range(count)]
    batch = [fx.min(piece, Int32(p.tokens * a_row - 1)) for piece in pieces]
    places = [(piece // a_row, piece % a_row * LANE_K) for piece in batch]
    words = [_piece(c, source, first + token, column, columns.start) for token, column in places]
    _go_on(meanwhile)
    for i in range_constexpr(count):
        if pieces[i] < p.tokens * a_row:
            p.x.store(words[i].bitcast(BF16), places[i][0] * p.row + places[i][1])


def _go_on(meanwhile: Meanwhile | None) -> None:
    if meanwhile is not None:
        meanwhile()


def _piece(c: Context, source: Source, token: Any, column: Any, begin: int) -> Any:
    """8 columns of a row; past the last token that one's."""
    return source(fx.min(token, Int32(c.key.tokens - 1)), column + begin if begin else column)


def load_x(c: Context, p: Product, first: int, part: int, meanwhile: Meanwhile | None) -> None:
    """A part of the tile's plain rows x into LDS."""
    load_rows(c, p, lambda token, column: plain_row(c, "x", p.k, token, column), first, part, meanwhile)


def plain_row(c: Context, name: str, width: int, token: Any, column: Any) -> Any:
    """8 columns of a plain row, at device scope."""
    return load_words(c.scratch, c.places[name].offset + (token * width + column) * 2, 4, DEVICE)
