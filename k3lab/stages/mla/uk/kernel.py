"""W_UK, as the kernel does it: a wave's task is (tile of 16 tokens, head, 16 latent rows), one scaled MFMA."""

from typing import Any

from flydsl.expr import const_expr, range_constexpr

from k3lab.device.context import Context, given_words
from k3lab.device.dsl import I8, Int32, Int64, Opaque, fx, traced
from k3lab.device.mailbox import Spec, poll
from k3lab.device.matrix import mma_scaled, zero_tile
from k3lab.device.memory import NON_TEMPORAL, buffer, load, load_words
from k3lab.device.narrow import even_code, fp4_words
from k3lab.geometry import NOPE, ROPE, ROWS, THREADS, WAVES
from k3lab.stages.gemv.product import TILE
from k3lab.stages.gemv.tasks import UNROLLED
from k3lab.stages.mla.query import put_query, query_word, receivers
from k3lab.stages.mla.role import PAIRS_A_BLOCK, WORD_VALUES, entry_index, uk_ctas, uk_groups, uk_tasks

ROW_BYTES = NOPE // 2
BLOCK_BYTES = ROW_BYTES // 4


class WaveTask(Opaque):
    """A wave task and its weights, on their way.

    Attributes:
        token: this lane's; `head`, `group` the wave's.
        rows: 32 E2M1 of latent row 16 group + lane % 16, block lane / 16; `scale` that block's E8M0 code.
    """

    def __init__(self, c: Context, number: Any) -> None:
        groups = uk_groups(c.g)
        pair = number // groups
        self.group = number - pair * groups
        tile = pair // c.g.heads
        self.head = pair - tile * c.g.heads
        self.token, self.block = tile * TILE + (c.lane & 15), c.lane >> 4
        row = self.group * ROWS + (c.lane & 15)
        place = (self.head * c.g.kv_lora + row) * ROW_BYTES + self.block * BLOCK_BYTES
        self.rows = load_words(buffer(c.args.w_k), place, 4, NON_TEMPORAL)
        a = c.args
        scale = Int64(self.head) * a.w_k_scale_0 + Int64(row) * a.w_k_scale_1 + Int64(self.block) * a.w_k_scale_2
        self.scale = load(I8, a.w_k_scale, scale).to(Int32) & 0xFF


@traced
def run(c: Context, peers: Any) -> None:
    """The wave's tasks, dealt round robin over the waves of the last CTAs: the first waves of all before any second."""
    ctas, tasks = uk_ctas(c.key), uk_tasks(c.key)
    waves, place = ctas * WAVES, c.cta - (c.g.blocks - ctas)
    first, rounds = place + ctas * c.wave, -(-tasks // waves)
    if const_expr(rounds <= UNROLLED):
        for i in range_constexpr(rounds):
            _take(c, place, first + i * waves, peers)
    else:
        for i in range(rounds):
            _take(c, place, first + i * waves, peers)


@traced
def _take(c: Context, place: Any, number: Any, peers: Any) -> None:
    """Task `number`, if there is one and the CTA, number `place` of those with W_UK tasks, takes any."""
    if (place >= 0) & (number < uk_tasks(c.key)):
        stage_uk(c, WaveTask(c, number), peers)


@traced
def stage_uk(c: Context, task: WaveTask, peers: Any) -> None:
    """q = MXFP4 q_nope times MXFP4 W_K: a lane has its token's 4 latent rows from 16 group + 4 (lane / 16) on."""
    q_nope = _poll_nope(c, task)
    code = even_code(q_nope)
    acc = mma_scaled(task.rows, fp4_words(q_nope, code), zero_tile(), task.scale, code)
    to = receivers(c, peers)
    if task.token < c.key.tokens:
        word = query_word(c, [acc[i] for i in range(WORD_VALUES)])
        put_query(c, to, task.token, task.head, task.group * WORD_VALUES + task.block, word)


def _poll_nope(c: Context, task: WaveTask) -> list[Any]:
    """The lane's block of q_nope, 16 bf16 pairs from QN; lanes past the last token read that one's."""
    token, qn = fx.min(task.token, Int32(c.key.tokens - 1)), c.pairs("QN")
    first = entry_index(c, token, task.head) * (NOPE // 2) + task.block * PAIRS_A_BLOCK
    seen = poll(c, [Spec(qn, first + i, 2) for i in range(0, PAIRS_A_BLOCK, 2)])
    return [pair for pairs in seen for pair in pairs]


@traced
def load_given(c: Context, peers: Any) -> None:
    """In a build without q_b: the pe words of every query as they were given."""
    if const_expr(not c.runs("qb")):
        to = receivers(c, peers)
        words, dwords = ROPE // WORD_VALUES, 2 if c.key.qbf16 else 1
        count = c.key.tokens * c.g.heads * words
        for first in range(0, count, THREADS * c.key.gemv_ctas):
            item = first + (c.cta - c.key.gemv0) * THREADS + c.tid
            if item < count:
                entry, word = item // words, item % words
                token = entry // c.g.heads
                given = given_words(c, "q_pe", item * WORD_VALUES, dwords)
                put_query(c, to, token, entry - token * c.g.heads, word + c.g.kv_lora // WORD_VALUES, given)
