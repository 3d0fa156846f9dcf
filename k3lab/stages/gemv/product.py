"""Products of token rows with weights, 16 weight rows a task: weights in flight, rows in LDS, chunks dealt to waves."""

from collections.abc import Callable, Sequence
from typing import Any

from flydsl.expr import const_expr, gpu, range_constexpr

from k3lab.device.context import ROLE_LDS, Context
from k3lab.device.dsl import BF16, F32, Int32, Opaque, fx, traced
from k3lab.device.floats import from_zero
from k3lab.device.mailbox import Pairs, Spec, poll
from k3lab.device.matrix import mma_bf16, zero_tile
from k3lab.device.memory import DEVICE, NON_TEMPORAL, lds_offsets, load_words
from k3lab.device.stamps import stamp
from k3lab.geometry import KCH, LDS_PAD, ROWS, THREADS, WAVES
from k3lab.stages.tensors import Key

TILE = 16
"""Tokens of an MFMA tile."""
QUADS, LANE_K = 4, 8
PART_FLOATS = WAVES * ROWS * TILE
ROWS_IN_FLIGHT = 8
"""16-byte pieces of token rows a thread has in flight."""
UNROLLED = 4
"""Tasks of a CTA that are unrolled, each with its weights issued ahead; a loop takes the others."""

RowsOf = Callable[[Any], tuple[Any, Any]]
"""The buffer that a task's weights lie in, and the task's first row there."""
Finish = Callable[[Any, int, Any], None]
"""Takes a task's number, the first token of the tile, and the wave's sums."""


class Product(Opaque):
    """Weights [rows, k] bf16 that are multiplied, and how a CTA's token rows lie in LDS.

    Attributes:
        tokens: token rows in LDS at once, in `tiles` turns; they are padded, and followed by 8 zeros for chunks past
            the last.
        depth: rounds of weights in flight.
    """

    def __init__(self, c: Context, k: int, rows_of: RowsOf) -> None:
        self.rows_of, self.k = rows_of, k
        self.chunks = k // KCH
        self.rounds = -(-self.chunks // WAVES)
        self.depth = min(c.key.prefetch or self.rounds, self.rounds)
        self.tokens = tile_tokens(c.key, k)
        self.tiles = -(-c.key.tokens // self.tokens)
        self.x, self.part = c.lds.carve(*_arrays(c.key, k))

    @property
    def row(self) -> int:
        """Elements from one token row in LDS to the next."""
        return self.k + LDS_PAD


def tile_tokens(key: Key, k: int) -> int:
    """Token rows in LDS at once: the key's knob, or as many as fit; one MFMA tile at most."""
    room = (ROLE_LDS - PART_FLOATS * 4 - 64) // (2 * (k + LDS_PAD))
    return min(key.token_tile or TILE, TILE, room, key.tokens)


def _arrays(key: Key, k: int) -> list[tuple[Any, int]]:
    return [(BF16, tile_tokens(key, k) * (k + LDS_PAD) + LANE_K), (F32, PART_FLOATS)]


def gemv_bytes(key: Key, k: int) -> int:
    """LDS of a CTA that multiplies rows of `k` columns."""
    return lds_offsets([(kind.width // 8, count) for kind, count in _arrays(key, k)])[1]


class Deal(Opaque):
    """This CTA's tasks of `total`: numbers first, first + step, ..., `count` of them; some may lie past the last."""

    def __init__(self, first: Any, step: int, count: int, total: int) -> None:
        self.first, self.step, self.count, self.total = first, step, count, total

    def number(self, i: Any) -> Any:
        """The CTA's task number `i`."""
        return self.first + i * self.step

    def readable(self, i: Any) -> Any:
        """That task, or where there is none the last one, whose weights can be read."""
        return fx.min(self.number(i), Int32(self.total - 1))


def consecutive(c: Context, total: int) -> Deal:
    """ceil(total / GEMV CTAs) consecutive tasks a CTA."""
    count = -(-total // c.g.gemv_ctas)
    return Deal((c.cta - c.g.na) * count, 1, count, total)


def round_robin(c: Context, total: int, shift: int = 0) -> Deal:
    """Task i on GEMV CTA (i + shift) mod their number."""
    ctas = c.g.gemv_ctas
    first = c.cta - c.g.na - shift % ctas
    return Deal((first < 0).select(first + ctas, first), ctas, -(-total // ctas), total)


def gemv_loads(c: Context, p: Product, task: Any, rounds: range) -> list[Any]:
    """A task's weights in `rounds` of this wave's chunks: [4] 16-byte loads each, past the last chunk its again."""
    weights, first = p.rows_of(Int32(task))
    row = first + (c.lane & 15)
    return [
        [load_words(weights, (row * p.k + _column(c, p, r, q, clamp=True)) * 2, 4, NON_TEMPORAL) for q in range(QUADS)]
        for r in rounds
    ]


def issue(c: Context, p: Product, deal: Deal) -> list[Any]:
    """The first task's weights."""
    return gemv_loads(c, p, deal.readable(0), range(p.depth))


def _column(c: Context, p: Product, r: int, q: int, clamp: bool) -> Any:
    """First of the 8 columns that this lane has in MFMA `q` of round `r`."""
    chunk = c.wave + r * WAVES
    if clamp and _ragged(p, r):
        chunk = fx.min(chunk, Int32(p.chunks - 1))
    return chunk * KCH + q * 32 + (c.lane >> 4) * LANE_K


def _ragged(p: Product, r: int) -> bool:
    return (r + 1) * WAVES > p.chunks


def multiply(c: Context, p: Product, task: Any, issued: list[Any]) -> Any:
    """This wave's tile [16 rows, 16 tokens] of the product, its first weights already on their way."""
    acc = zero_tile()
    loads = list(issued)
    for r in range(p.rounds):
        if len(loads) < p.rounds:
            loads += gemv_loads(c, p, task, range(len(loads), len(loads) + 1))
        for q in range(QUADS):
            acc = mma_bf16(loads[r][q].bitcast(BF16), _activations(c, p, r, q), acc)
    return acc


def _activations(c: Context, p: Product, r: int, q: int) -> Any:
    """8 columns of this lane's token; zeros where the round has no chunk left for the wave."""
    place = fx.min(c.lane & 15, Int32(p.tokens - 1)) * p.row + _column(c, p, r, q, clamp=False)
    if _ragged(p, r):
        place = (c.wave + r * WAVES < p.chunks).select(place, Int32(p.tokens * p.row))
    return p.x.load(place, LANE_K)


@traced
def join_waves(c: Context, p: Product, acc: Any, width: int, finish: Callable[[Any, Any, list[Any]], None]) -> None:
    """The 8 waves' tiles summed in order from 0.0; `finish(token, row, values)` on a thread for each `width` rows."""
    p.part.store(acc, c.wave * (ROWS * TILE) + (c.lane & 15) * ROWS + (c.lane >> 4) * 4)
    gpu.barrier()
    threads = ROWS // width
    shift = threads.bit_length() - 1
    if c.tid < p.tokens * threads:
        parts = [_rows(p, w * (ROWS * TILE) + c.tid * width, width) for w in range(WAVES)]
        values = [from_zero([part[i] for part in parts]) for i in range(width)]
        finish(c.tid >> shift, (c.tid & (threads - 1)) * width, values)
    gpu.barrier()


def _rows(p: Product, place: Any, width: int) -> list[Any]:
    """`width` neighbouring rows of a wave's tile."""
    held = p.part.load(place, width)
    return [held] if width == 1 else [held[i] for i in range(width)]


@traced
def run_tasks(
    c: Context, p: Product, deal: Deal, tile: int, issued: list[Any], finish: Finish, points: Sequence[str] = ()
) -> list[Any]:
    """The CTA's tasks on the tile of tokens in LDS; returns the weights issued for the next tile.

    A task's weights are issued before the sums of the one before it. `points` are stamped after the first tasks. Tasks
    past the last are passed over; in a tile that another follows they are multiplied, as that one's weights are issued
    behind them, and `finish` is to publish nothing.
    """
    first, unrolled, more = tile * p.tokens, min(deal.count, UNROLLED), tile + 1 < p.tiles
    looped = deal.count > unrolled
    for i in range_constexpr(unrolled):
        following, point = i + 1 if i + 1 < unrolled else 0, points[i] if i < len(points) else ""
        if const_expr(following > 0 or (more and not looped)):
            acc = multiply(c, p, deal.readable(i), issued)
            issued = gemv_loads(c, p, deal.readable(following), range(p.depth))
            _end(c, deal.number(i), first, acc, finish, point)
        else:
            _last(c, p, deal, i, first, issued, finish, point)
            issued = []
    if const_expr(looped):
        for i in range(unrolled, deal.count):
            if deal.number(i) < deal.total:
                task = deal.number(i)
                finish(task, first, multiply(c, p, task, gemv_loads(c, p, task, range(p.depth))))
        issued = issue(c, p, deal) if more else []
    return issued


@traced
def _last(
    c: Context, p: Product, deal: Deal, i: int, first: int, issued: list[Any], finish: Finish, point: str
) -> None:
    """A task that no weights follow, unless it lies past the last."""
    task = deal.number(i)
    if task < deal.total:
        _end(c, task, first, multiply(c, p, task, issued), finish, point)


@traced
def _end(c: Context, task: Any, first: int, acc: Any, finish: Finish, point: str) -> None:
    finish(task, first, acc)
    if const_expr(point):
        stamp(c, point)


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
def load_rows(c: Context, p: Product, source: Callable[[Any, Any], Any], first: int) -> None:
    """Rows first .. first + tokens - 1 into LDS: `source(token, column)` gives 8 bf16 as 4 dwords."""
    rounds = -(-p.tokens * p.k // (LANE_K * THREADS))
    if const_expr(rounds <= ROWS_IN_FLIGHT):
        _load_some(c, p, source, first, Int32(0), rounds)
    else:
        for batch in range(0, rounds, ROWS_IN_FLIGHT):
            _load_some(c, p, source, first, Int32(batch), ROWS_IN_FLIGHT)
    if c.tid == 0:
        p.x.store(fx.Vector.filled(LANE_K, 0.0, BF16), p.tokens * p.row)
    gpu.barrier()


@traced
def _load_some(c: Context, p: Product, source: Callable[[Any, Any], Any], first: int, begin: Any, count: int) -> None:
    """This thread's 16-byte pieces number begin .. begin + count - 1 of the rows: all loads, then all stores."""
    a_row = p.k // LANE_K
    pieces = [c.tid + (begin + i) * THREADS for i in range(count)]
    batch = [fx.min(piece, Int32(p.tokens * a_row - 1)) for piece in pieces]
    places = [(piece // a_row, piece % a_row * LANE_K) for piece in batch]
    words = [source(fx.min(first + token, Int32(c.key.tokens - 1)), column) for token, column in places]
    for i in range_constexpr(count):
        if pieces[i] < p.tokens * a_row:
            p.x.store(words[i].bitcast(BF16), places[i][0] * p.row + places[i][1])


def load_x(c: Context, p: Product, first: int) -> None:
    """The tile's plain rows x into LDS."""
    load_rows(c, p, lambda token, column: plain_row(c, "x", p.k, token, column), first)


def plain_row(c: Context, name: str, width: int, token: Any, column: Any) -> Any:
    """8 columns of a plain row, at device scope."""
    return load_words(c.scratch, c.places[name].offset + (token * width + column) * 2, 4, DEVICE)
