"""slice, as the kernel does it: 32 threads a (token, source) row of the CTA's 128 columns, 4 columns a thread."""

from typing import Any

from flydsl.expr import const_expr, gpu, range_constexpr

from k3lab.device.context import Context, dump, given
from k3lab.device.dsl import Int32, Int64, Opaque, Vector, traced
from k3lab.device.floats import bf16_words, from_words, sum4
from k3lab.device.mailbox import put
from k3lab.device.memory import load, store
from k3lab.device.wave import bfly32
from k3lab.geometry import COLS
from k3lab.stages.attnres.role import LANES_A_ROW, ROWS_AT_ONCE, WORDS_A_ROW, AttentionLds, delta_in_lds

AT_ONCE = 8
"""Rows a thread has in flight."""


class Row(Opaque):
    """A thread's share of a (token, source) row: its place and what was loaded of it.

    Attributes:
        index: token * NS + source, clamped; `fresh` is false where clamping made it a duplicate.
        column: first of the thread's 4 hidden columns.
        words, delta: 4 bf16 each, as loaded; no `delta` where the launch makes it itself.
    """

    def __init__(self, c: Context, row: Any) -> None:
        ns, rows = c.key.nblocks + 1, c.key.tokens * (c.key.nblocks + 1)
        self.fresh = row < rows
        self.index = self.fresh.select(row, Int32(0))
        self.token = self.index // ns
        self.source = self.index - self.token * ns
        self.is_prefix = self.source == c.key.nblocks
        self.column = c.cta * COLS + (c.tid & (LANES_A_ROW - 1)) * 4
        self.words = load(Int32, self._address(c), 0, 2)
        given = c.key.delta and not delta_in_lds(c)
        self.delta = load(Int32, c.args.delta, self.flat(c) >> 1, 2) if given else None

    def flat(self, c: Context) -> Any:
        """The element of a [S, HIDDEN] tensor where the thread's columns begin."""
        return self.token * c.g.hidden + self.column

    def _address(self, c: Context) -> Any:
        # A duplicate reads what nobody writes: its row may be the prefix, which its owner stores.
        elsewhere = c.args.ares_nw + Int64(self.column) * 2
        prefix = elsewhere if c.key.reset else c.args.prefix + Int64(self.flat(c)) * 2
        address = self.is_prefix.select(prefix, block_address(c, self.token, self.source, self.column))
        return self.fresh.select(address, elsewhere)


def block_address(c: Context, token: Any, source: Any, column: Any) -> Any:
    """Where a block's row has its element `column`; the first two strides are free."""
    element = Int64(token) * c.args.blocks_0 + Int64(source) * c.args.blocks_1 + Int64(column)
    return c.args.blocks + element * 2


class Loads(Opaque):
    """What a thread has in flight before anything is handed over: its first rows, key norm weights and query."""

    def __init__(self, c: Context) -> None:
        column = c.cta * COLS + (c.tid & (LANES_A_ROW - 1)) * 4
        self.rows = _rows(c, Int32(0), _at_once(c))
        self.norm = load(Int32, c.args.ares_nw, column >> 1, 2)
        self.query = load(Int32, c.args.ares_qk, column >> 1, 2)


def issue(c: Context) -> Loads:
    """The first loads."""
    return Loads(c)


def _at_once(c: Context) -> int:
    return min(AT_ONCE, -(-c.key.tokens * (c.key.nblocks + 1) // ROWS_AT_ONCE))


def _rows(c: Context, first: Any, count: int) -> list[Row]:
    lane_row = c.tid >> (LANES_A_ROW.bit_length() - 1)
    return [Row(c, (first + i) * ROWS_AT_ONCE + lane_row) for i in range(count)]


@traced
def run(c: Context, lds: AttentionLds, issued: Loads) -> None:
    """Sources of the mix into LDS, each row's sum v^2 and sum v (nw qk) into PART, the prefix back to memory."""
    keyed = [w * q for w, q in zip(from_words(issued.norm, 2), from_words(issued.query, 2), strict=True)]
    count = len(issued.rows)
    batches = -(-c.key.tokens * (c.key.nblocks + 1) // (ROWS_AT_ONCE * count))
    for i in range_constexpr(count):
        _row(c, lds, issued.rows[i], keyed)
    if const_expr(batches > 1):
        for batch in range(1, batches):
            rows = _rows(c, Int32(batch) * count, count)
            for i in range_constexpr(count):
                _row(c, lds, rows[i], keyed)
    gpu.barrier()


@traced
def _row(c: Context, lds: AttentionLds, row: Row, keyed: list[Any]) -> None:
    """One row's value, its two sums, and where they go."""
    ns = c.key.nblocks + 1
    words = row.words
    if const_expr(c.key.delta):
        total = _with_delta(c, lds, row)
        words = Vector.from_elements([row.is_prefix.select(total[i], words[i]) for i in range(2)], Int32)
    v = from_words(words, 2)
    square = bfly32(sum4([x * x for x in v]))
    dot = bfly32(sum4([x * k for x, k in zip(v, keyed, strict=True)]))
    if row.fresh:
        keep_source(c, lds, row.token, row.source, words)
        for i in range_constexpr(4):
            dump(c, "vals", Int64(row.index) * c.g.hidden + Int64(row.column + i), v[i])
        if (c.tid & (LANES_A_ROW - 1)) == 0:
            pair = ((c.cta * c.key.tokens + row.token) * ns + row.source) * 2
            put(c, c.pairs("PART"), pair, square)
            put(c, c.pairs("PART"), pair + 1, dot)
        if row.is_prefix:
            if const_expr(c.key.delta):
                store(Int32, words, c.args.prefix, row.flat(c) >> 1)
            if const_expr(c.key.write_idx >= 0):
                store(Int32, words, block_address(c, row.token, Int32(c.key.write_idx), row.column), 0)


def _with_delta(c: Context, lds: AttentionLds, row: Row) -> Any:
    """bf16(prefix + delta), or where the prefix restarts the delta, as 2 words."""
    place = row.token * WORDS_A_ROW + (c.tid & (LANES_A_ROW - 1)) * 2
    words = lds.delta.load(place, 2) if row.delta is None else row.delta
    if c.key.reset:
        return words
    old, new = from_words(row.words, 2), from_words(words, 2)
    return bf16_words([a + b for a, b in zip(old, new, strict=True)])


@traced
def keep_source(c: Context, lds: AttentionLds, token: Any, source: Any, words: Any) -> None:
    """A thread's 4 values of a source into LDS: of all sources, or where those do not fit of the prefix."""
    place = (c.tid & (LANES_A_ROW - 1)) * 2
    if const_expr(lds.all):
        lds.vals.store(words, (token * (c.key.nblocks + 1) + source) * WORDS_A_ROW + place)
    else:
        if source == c.key.nblocks:
            lds.vals.store(words, token * WORDS_A_ROW + place)


@traced
def load_given(c: Context, lds: AttentionLds) -> None:
    """In a build without this stage: `vals` as they were given."""
    ns = c.key.nblocks + 1
    for first in range(0, c.key.tokens * ns, ROWS_AT_ONCE):
        row = first + (c.tid >> (LANES_A_ROW.bit_length() - 1))
        if row < c.key.tokens * ns:
            column = c.cta * COLS + (c.tid & (LANES_A_ROW - 1)) * 4
            element = Int64(row) * c.g.hidden + Int64(column)
            words = bf16_words([given(c, "vals", element + i) for i in range(4)])
            keep_source(c, lds, row // ns, row - row // ns * ns, words)
    gpu.barrier()
