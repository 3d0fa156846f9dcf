"""gemv, as the kernel does it: x times in_proj, each CTA consecutive tasks of 16 weight rows."""

from typing import Any

from k3lab.device.context import Context
from k3lab.device.dsl import traced
from k3lab.device.floats import rnd
from k3lab.device.mailbox import put
from k3lab.device.memory import buffer
from k3lab.device.stamps import stamp
from k3lab.geometry import ROWS
from k3lab.stages.gemv.product import Meanwhile, Product, join_waves
from k3lab.stages.gemv.rows import load_x, wait_x
from k3lab.stages.gemv.tasks import Deal, consecutive, run_tasks


def in_proj(c: Context) -> Product:
    """x times in_proj."""
    weights = buffer(c.args.w_in)
    return Product(c, c.g.hidden, lambda task: (weights, task * ROWS), widest=True)


def deal(c: Context) -> Deal:
    """The CTA's tasks."""
    return consecutive(c, c.key.gemv_tasks)


@traced
def run(c: Context, p: Product, tasks: Deal, issued: list[Any]) -> None:
    """proj = x w_in^T, this CTA's tasks one after the other, into PROJ."""
    wait_x(c)

    def finish(task: Any, first: int, acc: Any) -> None:
        def publish(token: Any, row: Any, values: list[Any]) -> None:
            _publish(c, tasks, task, first + token, row, values[0])

        join_waves(c, p, acc, 1, publish)

    def load(first: int, part: int, meanwhile: Meanwhile | None) -> None:
        load_x(c, p, first, part, meanwhile)
        stamp(c, "x_in_lds")

    run_tasks(c, p, tasks, issued, load, finish, ("first_task", "second_task"))


@traced
def _publish(c: Context, tasks: Deal, task: Any, token: Any, row: Any, value: Any) -> None:
    """One value a pair of PROJ; a task past the last and a token past the last publish nothing."""
    if (task < tasks.total) & (token < c.key.tokens):
        put(c, c.pairs("PROJ"), token * c.g.nproj + task * ROWS + row, rnd(value))
