"""The attention role's LDS, and how its threads lie over a slice."""

from typing import Any

from k3lab.device.context import ROLE_LDS, Context
from k3lab.device.dsl import F32, Int32, Opaque
from k3lab.device.memory import lds_offsets
from k3lab.geometry import COLS, SLICE_GROUPS, THREADS
from k3lab.stages.tensors import Key

LANES_A_ROW = COLS // 4
ROWS_AT_ONCE = THREADS // LANES_A_ROW
WORDS_A_ROW = COLS // 2


class AttentionLds(Opaque):
    """vals, weights and sums of an attention CTA.

    vals: [S NS or S, 64] words of two bf16; weights: [S, NS + 1]; groups: [NS, 8, 2]; msq: [NA, S]; scale: [S]; delta:
    [S, 64] words, where the launch makes the delta itself.
    """

    def __init__(self, c: Context) -> None:
        made_delta = delta_in_lds(c)
        made = c.lds.carve(*_arrays(c.key, made_delta, vals_all(c.key, made_delta)))
        self.vals, self.weights, self.groups, self.msq, self.scale, self.delta = made
        self.all = vals_all(c.key, made_delta)


def delta_in_lds(c: Context) -> bool:
    """Whether the launch makes the delta itself, as a local, rather than read it."""
    return "delta" in c.locals


def _arrays(key: Key, delta: bool, every: bool) -> list[tuple[Any, int]]:
    s, ns, na = key.tokens, key.nblocks + 1, key.geometry.na
    return [
        *((Int32, (s * ns if every else s) * WORDS_A_ROW), (F32, s * (ns + 1)), (F32, ns * SLICE_GROUPS * 2)),
        *((F32, na * s), (F32, s), (Int32, s * WORDS_A_ROW if delta else 0)),
    ]


def vals_all(key: Key, delta: bool = False) -> bool:
    """Whether the values of all sources stay in LDS; otherwise only the prefix's do."""
    return _bytes(_arrays(key, delta, every=True)) <= ROLE_LDS


def attention_bytes(key: Key, delta: bool = False) -> int:
    """LDS of the attention role; `delta`: whether the launch makes it itself."""
    return _bytes(_arrays(key, delta, vals_all(key, delta)))


def _bytes(arrays: list[tuple[Any, int]]) -> int:
    return lds_offsets([(kind.width // 8, count) for kind, count in arrays])[1]
