"""Query words on their way: to q_out, or beyond one rank to every rank's peer buffer."""

from typing import Any

from flydsl.expr import const_expr

from k3lab.device.context import Context, dump_words
from k3lab.device.dsl import Int32, Vector, traced
from k3lab.device.floats import bf16_words, rnd
from k3lab.device.mailbox import Pairs, put
from k3lab.device.memory import store
from k3lab.device.narrow import fp8_word
from k3lab.device.peers import Peers
from k3lab.stages.mla.role import WORD_VALUES, entry_index, entry_words


def peers_of(c: Context) -> Peers | None:
    """The ranks that queries go to; none for a rank on its own, which writes q_out itself."""
    return Peers(c) if c.key.ranks > 1 else None


def receivers(c: Context, peers: Peers | None) -> list[Pairs]:
    """Region QG of every rank, this one first. To be called where all lanes are active."""
    if peers is None:
        return []
    return [peers.region(c, "QG", (c.args.rank + i) & (c.key.ranks - 1)) for i in range(c.key.ranks)]


def query_word(c: Context, values: list[Any]) -> Any:
    """4 values as a query word: a dword of fp8, bf16 first, or with qbf16 two dwords of bf16 pairs."""
    if c.key.qbf16:
        return bf16_words(values)
    return Vector.from_elements([fp8_word([rnd(value) for value in values])], Int32)


@traced
def put_query(c: Context, to: list[Pairs], token: Any, head: Any, word: Any, dwords: Any) -> None:
    """Word `word` of a local head's entry, to whoever reads it."""
    element = entry_index(c, token, head) * c.g.entry + word * WORD_VALUES
    dump_words(c, "query", element, dwords)
    if const_expr(c.key.ranks == 1):
        put_q(c, token, head, word, dwords)
    else:
        put_qg(c, to, token, head, word, dwords[0])


@traced
def put_q(c: Context, token: Any, slot: Any, word: Any, dwords: Any) -> None:
    """Into head slot `slot` of q_out; a query word has as many dwords as a value has bytes."""
    bytes_a_value = 2 if c.key.qbf16 else 1
    place = ((token * c.key.q_heads + slot) * entry_words(c.g) + word) * bytes_a_value
    store(Int32, dwords, c.args.q_out, place)


@traced
def put_qg(c: Context, to: list[Pairs], token: Any, head: Any, word: Any, dword: Any) -> None:
    """To every receiver, as this rank's word."""
    entry = c.args.rank * (c.key.tokens * c.g.heads) + entry_index(c, token, head)
    for region in to:
        put(c, region, entry * entry_words(c.g) + word, dword)
