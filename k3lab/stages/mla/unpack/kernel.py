"""unpack, as the kernel does it: all CTAs share the gathered words, two neighbouring ones a thread at a time."""

from collections.abc import Callable
from typing import Any

from flydsl.expr import const_expr, range_constexpr

from k3lab.device.context import Context, given_words
from k3lab.device.dsl import Int32, Vector, fx, traced
from k3lab.device.mailbox import BATCH, Spec, poll
from k3lab.device.peers import Peers
from k3lab.geometry import LANES, THREADS
from k3lab.stages.mla.query import put_q
from k3lab.stages.mla.role import WORD_VALUES, entry_words

TWO = 2
"""Words of an item."""


@traced
def stage_unpack(c: Context) -> None:
    """q_out[t, HEADS src + h] from this rank's QG; a rank on its own has written q_out already."""
    items = c.key.ranks * c.key.tokens * c.g.heads * entry_words(c.g) // TWO
    if const_expr(c.key.ranks > 1):
        gathered = Peers(c).region(c, "QG", c.args.rank)
        _share(c, items, lambda numbers: poll(c, [Spec(gathered, number * TWO, TWO) for number in numbers]))
    elif const_expr(not c.runs("uk")):
        dwords = TWO * 2 if c.key.qbf16 else TWO
        _share(c, items, lambda numbers: [given_words(c, "query", n * TWO * WORD_VALUES, dwords) for n in numbers])


@traced
def _share(c: Context, items: int, words_of: Callable[[list[Any]], list[Any]]) -> None:
    """Consecutive items a CTA; `words_of` gives the dwords of up to 12 items a thread."""
    a_cta = -(-items // c.g.blocks)
    first = c.cta * a_cta
    rounds = -(-a_cta // THREADS)
    if c.wave * LANES < a_cta:
        for begin in range_constexpr(0, rounds, BATCH):
            places = [c.tid + THREADS * i for i in range(begin, min(begin + BATCH, rounds))]
            words = words_of([fx.min(first + place, Int32(items - 1)) for place in places])
            for i in range_constexpr(len(places)):
                if (places[i] < a_cta) & (first + places[i] < items):
                    _unpack(c, first + places[i], words[i])


@traced
def _unpack(c: Context, item: Any, dwords: Any) -> None:
    """An item into its head slot, and into the pad that repeats it if there is one."""
    a_head = entry_words(c.g) // TWO
    entry, word = item // a_head, item % a_head * TWO
    row = entry // c.g.heads
    source = row // c.key.tokens
    token, slot = row - source * c.key.tokens, source * c.g.heads + entry - row * c.g.heads
    held = Vector.from_elements([dwords[i] for i in range(TWO * (2 if c.key.qbf16 else 1))], Int32)
    put_q(c, token, slot, word, held)
    heads = c.key.ranks * c.g.heads
    if slot < c.key.q_heads - heads:
        put_q(c, token, slot + heads, word, held)
