"""recur, as the kernel does it: thread (state row v = tid / 32, key columns 4 (tid % 32) .. + 3), token by token."""

from typing import Any

from flydsl.expr import const_expr, gpu, range_constexpr

from k3lab.device.context import Context, dump, given
from k3lab.device.dsl import F32, Int64, Opaque, Vector, traced
from k3lab.device.floats import from_zero, rnd, sum4
from k3lab.device.mailbox import put
from k3lab.device.memory import load, store
from k3lab.device.wave import bfly32
from k3lab.geometry import HEAD_DIM, V_CHUNKS
from k3lab.stages.kda.task import CHUNK, KdaLds, Task, readable


class Issued(Opaque):
    """The thread's place in the state, and its 4 columns of the initial state."""

    def __init__(self, c: Context, task: Task) -> None:
        self.row, self.column = c.tid >> 5, (c.tid & 31) * 4
        self.place = (task.head * HEAD_DIM + task.channel + self.row) * HEAD_DIM + self.column
        self.state = load(F32, c.args.rstate, self.element(c, readable(task.first_slot)), 4)

    def element(self, c: Context, slot: Any) -> Any:
        """The thread's element in a slot: 64 bits, for a slot is large."""
        return Int64(slot) * c.args.rstate_0 + Int64(self.place)


def issue(c: Context, task: Task) -> Issued:
    """The initial state's rows."""
    return Issued(c, task)


@traced
def run(c: Context, lds: KdaLds, task: Task, issued: Issued) -> None:
    """state *= decay; u = (v - state k) beta; state += u k; o = state q, for each token in order."""
    state = [task.live.select(issued.state[i], F32(0.0)) for i in range(4)]
    for j in range_constexpr(c.key.qlen):
        decay, q = lds.decay.load(j * HEAD_DIM + issued.column, 4), lds.qk.load(2 * j * HEAD_DIM + issued.column, 4)
        k = lds.qk.load((2 * j + 1) * HEAD_DIM + issued.column, 4)
        state = [state[i] * decay[i] for i in range(4)]
        predicted = bfly32(sum4([state[i] * k[i] for i in range(4)]))
        u = (lds.v.load(j * CHUNK + issued.row) - predicted) * lds.beta.load(j)
        state = [state[i] + u * k[i] for i in range(4)]
        out = rnd(bfly32(sum4([state[i] * q[i] for i in range(4)])))
        target = task.target(j)
        if task.live & (target > 0):
            store(F32, Vector.from_elements(state, F32), c.args.rstate, issued.element(c, target))
        if (c.tid & 31) == 0:
            _keep(c, lds, task, j, issued.row, task.live.select(out, F32(0.0)))
    gpu.barrier()
    if c.tid < c.key.qlen:
        squares = [lds.o.load(c.tid * CHUNK + i) for i in range(CHUNK)]
        pair = ((task.request * c.g.heads + task.head) * c.key.qlen + c.tid) * V_CHUNKS + task.chunk
        put(c, c.pairs("ONRM"), pair, from_zero([o * o for o in squares]))


@traced
def _keep(c: Context, lds: KdaLds, task: Task, j: int, row: Any, out: Any) -> None:
    lds.o.store(out, j * CHUNK + row)
    dump(c, "o", task.per_token(c, j) * HEAD_DIM + task.channel + row, out)


@traced
def load_given(c: Context, lds: KdaLds, task: Task) -> None:
    """In a build without this stage: the task's `o` as it was given."""
    if const_expr(not c.runs("recur")):
        if c.tid < c.key.qlen * CHUNK:
            j, place = c.tid >> (CHUNK.bit_length() - 1), c.tid & (CHUNK - 1)
            lds.o.store(given(c, "o", task.per_token(c, j) * HEAD_DIM + task.channel + place), c.tid)
        gpu.barrier()
