"""norm, as the kernel does it: a thread for each of the task's 16 channels of each token."""

from typing import Any

from flydsl.expr import gpu

from k3lab.device.context import Context
from k3lab.device.dsl import BF16, F32, I16, Int32, Opaque, traced
from k3lab.device.floats import in_order, low_bf16, rms_scale, sigmoid
from k3lab.device.mailbox import Spec, poll_rows_to_lds
from k3lab.device.memory import load, store
from k3lab.geometry import HEAD_DIM, V_CHUNKS
from k3lab.stages.kda.task import CHUNK, KdaLds, Task


class Issued(Opaque):
    """The thread's output norm weight, as raw bits."""

    def __init__(self, c: Context, task: Task) -> None:
        self.weight = load(I16, c.args.on_w, task.channel + (c.tid & (CHUNK - 1)))


def issue(c: Context, task: Task) -> Issued:
    """The output norm weights."""
    return Issued(c, task)


@traced
def run(c: Context, lds: KdaLds, task: Task, issued: Issued) -> None:
    """core = o r on_w sigmoid(g), left to right."""
    first = (task.request * c.g.heads + task.head) * c.key.qlen * V_CHUNKS
    parts, proj = c.pairs("ONRM"), c.pairs("PROJ")
    gate_row = 3 * c.g.proj + task.head * HEAD_DIM + task.channel

    def gate(item: Any) -> Spec:
        return Spec(proj, task.token(c, item >> 4) * c.g.nproj + gate_row + (item & (CHUNK - 1)))

    poll_rows_to_lds(c, c.key.qlen * CHUNK, gate, lambda i, w: lds.gate.store(w.bitcast(F32), i))
    count = c.key.qlen * V_CHUNKS
    poll_rows_to_lds(c, count, lambda i: Spec(parts, first + i), lambda i, w: lds.parts.store(w.bitcast(F32), i))
    if c.tid < c.key.qlen * CHUNK:
        j = c.tid >> 4
        total = in_order([lds.parts.load(j * V_CHUNKS + i) for i in range(V_CHUNKS)])
        r = rms_scale(total, HEAD_DIM, c.key.onorm_eps)
        core = ((lds.o.load(c.tid) * r) * low_bf16(issued.weight.to(Int32))) * sigmoid(lds.gate.load(c.tid))
        column = task.head * HEAD_DIM + task.channel + (c.tid & (CHUNK - 1))
        store(BF16, core.to(BF16), c.args.core_out, task.token(c, j) * c.g.proj + column)
    gpu.barrier()
