"""What MLA's stages share: the latent norm's LDS, how tasks are dealt to CTAs and waves, where query words lie."""

from typing import Any

from k3lab.device.context import Context
from k3lab.device.dsl import F32, Opaque
from k3lab.geometry import MX_BLOCK, NOPE, ROPE, ROWS, WAVES, Geometry
from k3lab.stages.gemv.product import TILE
from k3lab.stages.gemv.tasks import Deal, round_robin
from k3lab.stages.tensors import Key

NOPE_TASKS, HEAD_TASKS = NOPE // ROWS, (NOPE + ROPE) // ROWS
"""q_b tasks of a head: those of its nope rows come first."""
PAIRS_A_BLOCK = MX_BLOCK // 2
WORD_VALUES = 4
"""Values of a query word."""


class NormLds(Opaque):
    """sums: [8] a wave's sum of squares."""

    def __init__(self, c: Context) -> None:
        (self.sums,) = c.lds.carve((F32, WAVES))


def norm_bytes() -> int:
    """LDS of the latent norm."""
    return WAVES * 4


def gemv_tasks(c: Context) -> Deal:
    """The CTA's projection tasks: those of fused_qkv_a, then those of the gate."""
    return round_robin(c, c.key.gemv_tasks, c.key.proj0)


def qb_tasks(c: Context) -> Deal:
    """The CTA's q_b tasks."""
    return round_robin(c, c.g.tasks(c.g.q_b), c.key.qb0)


def uk_ctas(key: Key) -> int:
    """CTAs that take W_UK wave tasks, the last ones."""
    return min(int(key.uk_ctas), int(key.gemv_ctas))


def uk_tasks(key: Key) -> int:
    """W_UK wave tasks: (tile of 16 tokens, head, group of 16 latent rows)."""
    return -(-int(key.tokens) // TILE) * int(key.geometry.heads) * uk_groups(key.geometry)


def uk_groups(g: Geometry) -> int:
    """Groups of 16 latent rows."""
    return g.kv_lora // ROWS


def entry_words(g: Geometry) -> int:
    """Words of a query head; a word has 4 values."""
    return g.entry // WORD_VALUES


def entry_index(c: Context, token: Any, head: Any) -> Any:
    """Number of a token's local head among this rank's query heads."""
    return token * c.g.heads + head
