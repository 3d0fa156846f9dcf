"""Products of token rows with weights, 16 weight rows a task: weights in flight, rows in LDS, chunks dealt to waves."""

from collections.abc import Callable
from typing import Any

from flydsl.expr import gpu

from k3lab.device.context import ROLE_LDS, Context
from k3lab.device.dsl import BF16, F32, Int32, Opaque, fx, traced
from k3lab.device.floats import from_zero
from k3lab.device.matrix import mma_bf16, zero_tile
from k3lab.device.memory import NON_TEMPORAL, lds_offsets, load_words
from k3lab.geometry import KCH, LDS_PAD, ROWS, WAVES
from k3lab.stages.tensors import Key

TILE = 16
"""Tokens of an MFMA tile."""
QUADS, LANE_K = 4, 8
PART_FLOATS = WAVES * ROWS * TILE

RowsOf = Callable[[Any], tuple[Any, Any]]
"""The buffer that a task's weights lie in, and the task's first row there."""


Meanwhile = Callable[[], None]
"""Issues what is wanted next, while a product's rows are on their way."""


class Product(Opaque):
    """Weights [rows, k] bf16 that are multiplied, and how a CTA's token rows lie in LDS.

    Attributes:
        tokens: token rows in LDS at once, in `tiles` turns; they are padded, and followed by 8 zeros for chunks past
            the last.
        width: their columns in LDS at once, in `parts` turns of `turn` rounds.
        depth: rounds of weights in flight, and `ahead` further ones of the first weights.
        at_once: tasks that are multiplied at once.
    """

    def __init__(self, c: Context, k: int, rows_of: RowsOf, widest: bool = False) -> None:
        """Carve the CTA's LDS; the knobs k_parts, at_once and ahead are for the launch's `widest` product alone."""
        parts = c.key.k_parts if widest else 1
        self.at_once: int = c.key.at_once if widest else 1
        self.ahead: int = c.key.ahead if widest else 0
        self.rows_of, self.k = rows_of, k
        self.chunks, self.rounds = k // KCH, _rounds(k)
        self.width, self.turn = _width(k, parts), _rounds(_width(k, parts))
        self.parts = -(-self.rounds // self.turn)
        self.depth = min(c.key.prefetch or self.turn, self.turn)
        self.tokens = tile_tokens(c.key, self.width)
        self.tiles = -(-c.key.tokens // self.tokens)
        self.x, self.part = c.lds.carve(*_arrays(c.key, self.width))

    @property
    def row(self) -> int:
        """Elements from one token row in LDS to the next."""
        return self.width + LDS_PAD

    def rounds_of(self, part: int) -> range:
        """The rounds of a part of K."""
        return range(part * self.turn, min((part + 1) * self.turn, self.rounds))


def _rounds(k: int) -> int:
    """Rounds of `k` columns: a chunk a wave each."""
    return -(-k // (KCH * WAVES))


def _width(k: int, parts: int) -> int:
    """Columns in LDS at once where `k` lie there in `parts`: whole rounds."""
    return min(-(-_rounds(k) // parts) * KCH * WAVES, k)


def tile_tokens(key: Key, width: int) -> int:
    """Token rows of `width` columns in LDS at once: the key's knob, or as many as fit; one MFMA tile at most."""
    room = (ROLE_LDS - PART_FLOATS * 4 - 64) // (2 * (width + LDS_PAD))
    return min(key.token_tile or TILE, TILE, room, key.tokens)


def _arrays(key: Key, width: int) -> list[tuple[Any, int]]:
    return [(BF16, tile_tokens(key, width) * (width + LDS_PAD) + LANE_K), (F32, PART_FLOATS)]


def gemv_bytes(key: Key, k: int, parts: int = 1) -> int:
    """LDS of a CTA that multiplies rows of `k` columns, in `parts` of them."""
    return lds_offsets([(kind.width // 8, count) for kind, count in _arrays(key, _width(k, parts))])[1]


def gemv_loads(c: Context, p: Product, task: Any, rounds: range) -> list[Any]:
    """A task's weights in `rounds` of this wave's chunks: [4] 16-byte loads each, past the last chunk its again."""
    weights, first = p.rows_of(Int32(task))
    row = first + (c.lane & 15)
    return [
        [load_words(weights, (row * p.k + _column(c, p, r, q, clamp=True)) * 2, 4, NON_TEMPORAL) for q in range(QUADS)]
        for r in rounds
    ]


def _column(c: Context, p: Product, r: int, q: int, clamp: bool) -> Any:
    """First of the 8 columns that this lane has in MFMA `q` of round `r`."""
    chunk = c.wave + r * WAVES
    if clamp and _ragged(p, r):
        chunk = fx.min(chunk, Int32(p.chunks - 1))
    return chunk * KCH + q * 32 + (c.lane >> 4) * LANE_K


def _ragged(p: Product, r: int) -> bool:
    return (r + 1) * WAVES > p.chunks


def multiply(
    c: Context, p: Product, tasks: list[Any], issued: list[Any], part: int = 0, sums: list[Any] | None = None
) -> list[Any]:
    """This wave's tiles [16 rows, 16 tokens] of the product over a part of K, several tasks at once.

    Args:
        issued: by task, its first weights, on their way.
        sums: those of the parts before.
    """
    sums = [zero_tile() for _ in tasks] if sums is None else sums
    loads, rounds = [list(each) for each in issued], p.rounds_of(part)
    for i, r in enumerate(rounds):
        for task, held in zip(tasks, loads, strict=True):
            held += gemv_loads(c, p, task, rounds[len(held) : len(held) + 1])
        for q in range(QUADS):
            weights = [held[i][q].bitcast(BF16) for held in loads]
            x = _activations(c, p, r, q)
            sums = [mma_bf16(w, x, acc) for w, acc in zip(weights, sums, strict=True)]
    return sums


def _activations(c: Context, p: Product, r: int, q: int) -> Any:
    """8 columns of this lane's token; zeros where the round has no chunk left for the wave."""
    place = fx.min(c.lane & 15, Int32(p.tokens - 1)) * p.row + _column(c, p, r % p.turn, q, clamp=False)
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
