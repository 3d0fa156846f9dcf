"""push, as the kernel does it: 16 columns of o_proj a task, all of a CTA's weights in flight before anything else.

A build with a depth of prefetch has fewer registers for them: there the first weights of a task (or of several that go
at once) are in flight while those before are summed and sent.
"""

from typing import Any

from flydsl.expr import const_expr, range_constexpr

from k3lab.device.context import Context, dump
from k3lab.device.dsl import Int32, traced
from k3lab.device.floats import bf16_words, rnd
from k3lab.device.memory import buffer, load_words
from k3lab.device.peers import Peers, disarmed, send
from k3lab.device.stamps import stamp
from k3lab.geometry import ROWS
from k3lab.stages.gemv.product import Meanwhile, Product, gemv_loads, join_waves, multiply
from k3lab.stages.gemv.rows import load_rows
from k3lab.stages.gemv.tasks import UNROLLED, Deal, issue, run_tasks
from k3lab.stages.oproj.role import ar_index, other_rank, owner_of_task


@traced
def run(c: Context, tasks: Deal) -> None:
    """partial = core w_o^T, this CTA's tasks, to the ranks that sum it."""
    weights = buffer(c.args.w_o)
    p = Product(c, c.g.proj, lambda task: (weights, task * ROWS), widest=True)
    peers = Peers(c)
    if const_expr(c.key.prefetch > 0 or c.key.holds_sums):
        _one_ahead(c, p, tasks, peers)
    else:
        _all_ahead(c, p, tasks, peers)
    stamp(c, "pushed")


@traced
def _one_ahead(c: Context, p: Product, tasks: Deal, peers: Peers) -> None:
    """A task past the last that is multiplied is sent nowhere."""

    def finish(task: Any, first: int, acc: Any) -> None:
        stage_o(c, p, task, first, acc, peers, task < tasks.total)

    def load(first: int, part: int, meanwhile: Meanwhile | None) -> None:
        load_core(c, p, first, part, meanwhile)
        stamp(c, "core_staged")

    run_tasks(c, p, tasks, issue(c, p, tasks), load, finish)


@traced
def _all_ahead(c: Context, p: Product, tasks: Deal, peers: Peers) -> None:
    issued = o_loads(c, p, tasks)
    for tile in range_constexpr(p.tiles):
        first = tile * p.tokens
        load_core(c, p, first)
        stamp(c, "core_staged")
        for i in range_constexpr(len(issued)):
            stage_o(c, p, tasks.number(i), first, multiply(c, p, [tasks.number(i)], [issued[i]])[0], peers)
        if const_expr(tasks.count > len(issued)):
            for i in range(len(issued), tasks.count):
                task = tasks.number(i)
                acc = multiply(c, p, [task], [gemv_loads(c, p, task, range(p.depth))])[0]
                stage_o(c, p, task, first, acc, peers)


def o_loads(c: Context, p: Product, tasks: Deal) -> list[Any]:
    """The first weights of the CTA's tasks, all of them as far as they are unrolled: nothing here polls."""
    return [gemv_loads(c, p, tasks.number(i), range(p.depth)) for i in range(min(tasks.count, UNROLLED))]


def load_core(c: Context, p: Product, first: int, part: int = 0, meanwhile: Meanwhile | None = None) -> None:
    """A part of the tile's core rows into LDS: plain loads, as the launch before wrote them."""
    core = buffer(c.args.core)
    load_rows(c, p, lambda token, column: load_words(core, (token * p.k + column) * 2, 4), first, part, meanwhile)


def stage_o(c: Context, p: Product, task: Any, first: int, acc: Any, peers: Peers, real: Any = None) -> None:
    """One task's sums on the tile from token `first` on, two columns a thread, and where they go, if it is `real`."""

    def publish(token: Any, row: Any, values: list[Any]) -> None:
        there = first + token < c.key.tokens
        _push(c, task, first + token, row, values, peers, there if real is None else there & real)

    join_waves(c, p, acc, 2, publish)


@traced
def _push(c: Context, task: Any, token: Any, row: Any, values: list[Any], peers: Peers, there: Any) -> None:
    """Two columns of the partial as one word of this rank's part of AR, to every rank, or to the columns' owner."""
    column = task * ROWS + row
    word = bf16_words(values)[0]
    if there:
        for i in range_constexpr(2):
            dump(c, "partial", token * c.g.hidden + column + i, rnd(values[i]))
        index = ar_index(c, c.args.rank, token, column >> 1)
        sent = [disarmed(word) if c.key.sentinel else word]
        if const_expr(c.key.two_shot):
            send(c, peers.region(c, "AR", owner_of_task(c.key, Int32(task))), index, sent)
        else:
            for i in range_constexpr(c.key.ranks):
                send(c, peers.region(c, "AR", other_rank(c, i)), index, sent)
