"""q_b, as the kernel does it: 16 weight rows a task, a head's nope rows into QN, its pe rows into the query entry."""

from typing import Any

from k3lab.device.context import Context, dump_words
from k3lab.device.dsl import traced
from k3lab.device.floats import bf16_words
from k3lab.device.mailbox import Pairs, put
from k3lab.device.memory import buffer
from k3lab.geometry import NOPE, ROPE, ROWS
from k3lab.stages.gemv.product import Meanwhile, Product, join_waves
from k3lab.stages.gemv.rows import load_rows, plain_row, wait_flags
from k3lab.stages.gemv.tasks import Deal, run_tasks
from k3lab.stages.mla.query import put_query, query_word, receivers
from k3lab.stages.mla.role import HEAD_TASKS, NOPE_TASKS, WORD_VALUES, entry_index


def product(c: Context) -> Product:
    """q_c times w_qb."""
    weights = buffer(c.args.w_qb)
    return Product(c, c.g.q_lora, lambda task: (weights, task * ROWS))


@traced
def stage_qb(c: Context, p: Product, tasks: Deal, issued: list[Any], peers: Any) -> None:
    """The CTA's tasks, once every token's q_c is written."""
    wait_flags(c, c.pairs("QCR"), c.key.tokens)

    def finish(task: Any, first: int, acc: Any) -> None:
        _finish(c, p, tasks, task, first, acc, peers)

    def load(first: int, part: int, meanwhile: Meanwhile | None) -> None:
        load_rows(c, p, lambda token, column: plain_row(c, "QC", p.k, token, column), first, part, meanwhile)

    run_tasks(c, p, tasks, issued, load, finish)


@traced
def _finish(c: Context, p: Product, tasks: Deal, task: Any, first: int, acc: Any, peers: Any) -> None:
    """Task `sub` of a head: bf16 pairs of nope columns, or query words of pe columns."""
    head = task // HEAD_TASKS
    sub = task - head * HEAD_TASKS

    def publish_nope(token: Any, row: Any, values: list[Any]) -> None:
        _publish_nope(c, tasks, task, first + token, head, sub * ROWS + row, values)

    if sub < NOPE_TASKS:
        join_waves(c, p, acc, 2, publish_nope)
    else:
        _finish_pe(c, p, tasks, task, first, head, (sub - NOPE_TASKS) * ROWS, acc, peers)


@traced
def _finish_pe(
    c: Context, p: Product, tasks: Deal, task: Any, first: int, head: Any, column: Any, acc: Any, peers: Any
) -> None:
    """Query words of pe columns from `column` on; the receivers are looked up here, as they take many registers."""
    to = receivers(c, peers)

    def publish_pe(token: Any, row: Any, values: list[Any]) -> None:
        _publish_pe(c, tasks, task, first + token, head, column + row, values, to)

    join_waves(c, p, acc, WORD_VALUES, publish_pe)


@traced
def _publish_nope(c: Context, tasks: Deal, task: Any, token: Any, head: Any, column: Any, values: list[Any]) -> None:
    """Two neighbouring nope columns into QN."""
    if (task < tasks.total) & (token < c.key.tokens):
        put(c, c.pairs("QN"), (entry_index(c, token, head) * NOPE + column) >> 1, bf16_words(values)[0])


@traced
def _publish_pe(
    c: Context, tasks: Deal, task: Any, token: Any, head: Any, column: Any, values: list[Any], to: list[Pairs]
) -> None:
    """Four neighbouring pe columns: a query word."""
    if (task < tasks.total) & (token < c.key.tokens):
        word = query_word(c, values)
        dump_words(c, "q_pe", entry_index(c, token, head) * ROPE + column, word)
        put_query(c, to, token, head, (column + c.g.kv_lora) >> 2, word)
