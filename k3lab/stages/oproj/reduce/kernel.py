"""reduce, as the kernel does it: 32 threads a token of the CTA's 128 columns, 4 columns - two words - a thread."""

from typing import Any

from flydsl.expr import const_expr, gpu, range_constexpr

from k3lab.device.context import Context, dump, given
from k3lab.device.dsl import Int32, Int64, Opaque, Vector, fx, traced
from k3lab.device.floats import bf16_words, from_words, in_order
from k3lab.device.mailbox import Pairs, Spec, poll
from k3lab.device.peers import Peers, disarmed, rearm, send
from k3lab.geometry import COLS, THREADS
from k3lab.layout import ARMED_GROUP
from k3lab.stages.attnres.role import LANES_A_ROW, ROWS_AT_ONCE, WORDS_A_ROW, AttentionLds
from k3lab.stages.oproj.role import ar_index, other_rank, owner_of_slice

WORDS = 2
"""Neighbouring words of AR that a thread takes."""


class Item(Opaque):
    """What a thread reduces in a round: words `word`, word + 1 of the slice's 64, of a token.

    Attributes:
        fresh: false where clamping made it a duplicate.
    """

    def __init__(self, c: Context, i: int) -> None:
        count = c.key.tokens * LANES_A_ROW
        number = c.tid + i * THREADS
        self.fresh = number < count
        number = fx.min(number, Int32(count - 1))
        self.token, self.word = sent_item(c, number) if c.key.sentinel else _item(number)

    def index(self, c: Context, source: Any) -> Any:
        """Where AR holds it."""
        return ar_index(c, source, self.token, c.cta * WORDS_A_ROW + self.word)


def _item(number: Any) -> tuple[Any, Any]:
    return number >> (LANES_A_ROW.bit_length() - 1), (number & (LANES_A_ROW - 1)) * WORDS


def sent_item(c: Context, number: Any) -> tuple[Any, Any]:
    """Token and word of an item in an armed AR's order: neighbouring threads read neighbouring words."""
    parts = ARMED_GROUP // WORDS
    row = number >> (parts.bit_length() - 1)
    group = row // c.key.tokens
    return row - group * c.key.tokens, group * ARMED_GROUP + (number & (parts - 1)) * WORDS


def _items(c: Context) -> list[Item]:
    """This thread's items, round by round."""
    return [Item(c, i) for i in range(-(-c.key.tokens // ROWS_AT_ONCE))]


def _waves(c: Context) -> int:
    """Waves that have items."""
    return min(THREADS, -(-c.key.tokens * LANES_A_ROW // 64) * 64) // 64


@traced
def run(c: Context, lds: AttentionLds, peers: Peers) -> None:
    """delta = the ranks' partials in rank order from rank 0's on, into LDS."""
    ar = peers.region(c, "AR", c.args.rank)
    if c.wave < _waves(c):
        if const_expr(c.key.two_shot):
            if owner_of_slice(c.key, c.cta) == c.args.rank:
                reduce_two_shot(c, lds, peers, ar)
            else:
                _take(c, lds, ar)
        else:
            for item in _items(c):
                _keep(c, lds, item, _sum(c, ar, item))
    gpu.barrier()


@traced
def reduce_two_shot(c: Context, lds: AttentionLds, peers: Peers, ar: Pairs) -> None:
    """The owner's part: sums its columns, and sends what it keeps itself to the others, into its own slot there."""
    for item in _items(c):
        words = _sum(c, ar, item)
        if const_expr(c.key.sentinel):
            words = Vector.from_elements([disarmed(words[i]) for i in range(WORDS)], Int32)
        _keep(c, lds, item, words)
        if item.fresh:
            for i in range_constexpr(1, c.key.ranks):
                send(c, peers.region(c, "AR", other_rank(c, i)), item.index(c, c.args.rank), [words[0], words[1]])


@traced
def _take(c: Context, lds: AttentionLds, ar: Pairs) -> None:
    """The others' part: what the owner sent."""
    items, owner = _items(c), owner_of_slice(c.key, c.cta)
    taken = poll(c, [Spec(ar, item.index(c, owner), WORDS) for item in items])
    for item, words in zip(items, taken, strict=True):
        _keep(c, lds, item, Vector.from_elements(words, Int32))


def _sum(c: Context, ar: Pairs, item: Item) -> Any:
    """The ranks' partials of an item, polled and summed in rank order: two words, rounded to bf16."""
    polled = poll(c, [Spec(ar, item.index(c, Int32(source)), WORDS) for source in range(c.key.ranks)])
    partials = [from_words(words, WORDS) for words in polled]
    return bf16_words([in_order([partial[i] for partial in partials]) for i in range(2 * WORDS)])


@traced
def _keep(c: Context, lds: AttentionLds, item: Item, words: Any) -> None:
    """Two words of the delta into LDS."""
    if item.fresh:
        lds.delta.store(words, item.token * WORDS_A_ROW + item.word)
        column = c.cta * COLS + item.word * 2
        values = from_words(words, WORDS)
        for i in range_constexpr(2 * WORDS):
            dump(c, "delta", item.token * c.g.hidden + column + i, values[i])


@traced
def rearm_ar(c: Context, peers: Peers) -> None:
    """After a sentinel reduce: arm what this thread polled again, for the half's next use."""
    ar = peers.region(c, "AR", c.args.rank)
    for item in _items(c):
        if item.fresh:
            if const_expr(c.key.two_shot):
                owner = owner_of_slice(c.key, c.cta)
                if owner == c.args.rank:
                    _rearm_all(c, ar, item)
                else:
                    rearm(ar, item.index(c, owner), WORDS)
            else:
                _rearm_all(c, ar, item)


def _rearm_all(c: Context, ar: Pairs, item: Item) -> None:
    for source in range(c.key.ranks):
        rearm(ar, item.index(c, Int32(source)), WORDS)


@traced
def load_given(c: Context, lds: AttentionLds) -> None:
    """In a build without this stage: the delta as it was given."""
    for i in range_constexpr(-(-c.key.tokens // ROWS_AT_ONCE)):
        item = Item(c, i)
        if item.fresh:
            element = Int64(item.token) * c.g.hidden + Int64(c.cta * COLS + item.word * 2)
            words = bf16_words([given(c, "delta", element + j) for j in range(2 * WORDS)])
            lds.delta.store(words, item.token * WORDS_A_ROW + item.word)
    gpu.barrier()
