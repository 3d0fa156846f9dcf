"""The all-reduce's shape: whose columns are whose, and where a word of AR lies."""

from typing import Any

from k3lab.device.context import Context
from k3lab.geometry import COLS, ROWS
from k3lab.layout import ARMED_GROUP
from k3lab.stages.tensors import Key

GROUP_BITS = ARMED_GROUP.bit_length() - 1


def ar_index(c: Context, source: Any, token: Any, word: Any) -> Any:
    """Where AR holds source rank `source`'s word `word` (two columns) of a token.

    [source][token][word] of pairs, [source][group of 8 words][token][word of the group] of armed words.
    """
    words = c.g.hidden // 2
    if c.key.sentinel:
        return sent_ix(c, source, token, word)
    return (source * c.key.tokens + token) * words + word


def sent_ix(c: Context, source: Any, token: Any, word: Any) -> Any:
    """The number of an armed word."""
    group = source * (c.g.hidden // 2 // ARMED_GROUP) + (word >> GROUP_BITS)
    return (group * c.key.tokens + token) * ARMED_GROUP + (word & (ARMED_GROUP - 1))


def other_rank(c: Context, i: int) -> Any:
    """The rank `i` places after this one, so that not all ranks send to the same one first."""
    return (c.args.rank + i) & (c.key.ranks - 1)


def owner_of_task(key: Key, task: Any) -> Any:
    """The rank that sums a task's 16 columns in a two-shot reduce."""
    return task // (key.geometry.hidden // ROWS // key.ranks)


def owner_of_slice(key: Key, number: Any) -> Any:
    """The rank that sums a slice in a two-shot reduce: owners own whole slices."""
    return number // (key.geometry.hidden // COLS // key.ranks)
