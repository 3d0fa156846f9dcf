"""proj, as the kernel does it: x times fused_qkv_a and times the gate's projection, dealt as one list of tasks."""

from functools import partial
from typing import Any

from k3lab.device.context import Context
from k3lab.device.dsl import Int32, traced
from k3lab.device.floats import bf16_words, rnd, sigmoid
from k3lab.device.mailbox import put
from k3lab.device.memory import buffer, store
from k3lab.geometry import ROWS
from k3lab.stages.gemv.product import Product, join_waves
from k3lab.stages.gemv.rows import load_x, wait_x
from k3lab.stages.gemv.tasks import Deal, run_tasks


def product(c: Context) -> Product:
    """x times the rows of w_qkv, then those of w_g."""
    latents = c.g.tasks(c.g.qkv_a)

    def rows_of(task: Any) -> tuple[Any, Any]:
        gate = task >= latents
        return buffer(gate.select(c.args.w_g, c.args.w_qkv)), gate.select(task - latents, task) * ROWS

    return Product(c, c.g.hidden, rows_of, widest=True)


@traced
def stage_proj(c: Context, p: Product, tasks: Deal, issued: list[Any]) -> None:
    """The CTA's tasks: bf16 pairs into QA, or the gate's sigmoid into gate_out."""
    wait_x(c)

    def finish(task: Any, first: int, acc: Any) -> None:
        def publish(token: Any, row: Any, values: list[Any]) -> None:
            _publish(c, tasks, task, first + token, row, values)

        join_waves(c, p, acc, 2, publish)

    run_tasks(c, p, tasks, issued, partial(load_x, c, p), finish, ("first_proj", "second_proj"))


@traced
def _publish(c: Context, tasks: Deal, task: Any, token: Any, row: Any, values: list[Any]) -> None:
    """Two neighbouring columns; a task past the last and a token past the last publish nothing."""
    latents = c.g.tasks(c.g.qkv_a)
    if (task < tasks.total) & (token < c.key.tokens):
        if task < latents:
            put(c, c.pairs("QA"), (token * c.g.qkv_a + task * ROWS + row) >> 1, bf16_words(values)[0])
        else:
            gate = bf16_words([sigmoid(rnd(value)) for value in values])
            store(Int32, gate, c.args.gate_out, (token * c.g.proj + (task - latents) * ROWS + row) >> 1)
