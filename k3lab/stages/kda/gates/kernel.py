"""gates, as the kernel does it: f_b f_a by MFMA, a wave 16 key columns; l2 norms a wave a vector."""

from typing import Any

from flydsl.expr import const_expr, gpu, range_constexpr

from k3lab.device.context import Context, dump, given
from k3lab.device.dsl import BF16, F32, Int32, Opaque, fx, traced
from k3lab.device.floats import exp, rnd, rsq, sigmoid
from k3lab.device.mailbox import Spec, poll_rows_to_lds
from k3lab.device.matrix import mma_bf16, zero_tile
from k3lab.device.memory import load
from k3lab.device.wave import bfly64
from k3lab.geometry import HEAD_DIM, LANES, THREADS, WAVES
from k3lab.stages.kda.gates.twin import L2_EPS
from k3lab.stages.kda.task import F_A_ROW, KdaLds, Task

QUADS, LANE_K = 4, 8
LANE_COLUMNS = 4
"""Key columns a lane has of its wave's 16."""


class Issued(Opaque):
    """Loads that need no hand-off: f_b's 16 rows of the wave (32 columns a lane), a_log, dt_bias of 4 columns."""

    def __init__(self, c: Context, task: Task) -> None:
        row = task.head * HEAD_DIM + c.wave * 16 + (c.lane & 15)
        first = (c.lane >> 4) * (QUADS * LANE_K)
        self.f_b = [load(BF16, c.args.w_fb, row * HEAD_DIM + first + q * LANE_K, LANE_K) for q in range(QUADS)]
        self.column = c.wave * 16 + (c.lane >> 4) * LANE_COLUMNS
        self.bias = load(F32, c.args.dt_bias, task.head * HEAD_DIM + self.column, LANE_COLUMNS)
        self.a_log = load(F32, c.args.a_log, task.head)


def issue(c: Context, task: Task) -> Issued:
    """f_b's rows, the decay rate and its bias."""
    return Issued(c, task)


@traced
def run(c: Context, lds: KdaLds, task: Task, issued: Issued) -> None:
    """decay per key column, beta, and the l2-normed q and k, all into LDS."""
    _take_proj(c, lds, task)
    _decay(c, lds, task, issued)  # while q and k are on their way
    _take_qk(c, lds, task)
    _normalise(c, lds, task)
    gpu.barrier()


def _take_proj(c: Context, lds: KdaLds, task: Task) -> None:
    """The f_a row (as bf16) and beta of every token."""
    pairs, f_a, n = c.pairs("PROJ"), 4 * c.g.proj, HEAD_DIM + 1

    def spec(item: Any) -> Spec:
        j, place = item // n, item % n
        beta = Int32(f_a + HEAD_DIM) + task.head
        column = (place < HEAD_DIM).select(place + f_a, beta)
        return Spec(pairs, task.token(c, j) * c.g.nproj + column)

    poll_rows_to_lds(c, c.key.qlen * n, spec, lambda item, word: _keep_proj(c, lds, task, item, word.bitcast(F32)))


@traced
def _keep_proj(c: Context, lds: KdaLds, task: Task, item: Any, value: Any) -> None:
    j, place = item // (HEAD_DIM + 1), item % (HEAD_DIM + 1)
    if place < HEAD_DIM:
        lds.f_a.store(value.to(BF16), j * F_A_ROW + place)
    else:
        beta = sigmoid(value)
        lds.beta.store(beta, j)
        if task.chunk == 0:
            dump(c, "beta", task.per_token(c, j), beta)


def _take_qk(c: Context, lds: KdaLds, task: Task) -> None:
    """The head's q and k of every token: [L, 2, 128] neighbouring pairs."""
    pairs, n = c.pairs("QK"), c.key.qlen * 2 * HEAD_DIM
    first = (task.request * c.g.heads + task.head) * n
    poll_rows_to_lds(c, n, lambda item: Spec(pairs, first + item), lambda i, w: lds.qk.store(w.bitcast(F32), i))


@traced
def _decay(c: Context, lds: KdaLds, task: Task, issued: Issued) -> None:
    """exp(lower_bound sigmoid(exp(a_log) (bf16(f_b f_a) + dt_bias))): lane l has token l % 16, 4 key columns."""
    token = c.lane & 15
    place = fx.min(token, Int32(c.key.qlen - 1)) * F_A_ROW + (c.lane >> 4) * (QUADS * LANE_K)
    acc = zero_tile()
    for q in range_constexpr(QUADS):
        acc = mma_bf16(issued.f_b[q], lds.f_a.load(place + q * LANE_K, LANE_K), acc)
    rate = exp(issued.a_log)
    gates = [F32(c.key.lower_bound) * sigmoid(rate * (rnd(acc[i]) + issued.bias[i])) for i in range(LANE_COLUMNS)]
    decay = fx.Vector.from_elements([exp(gate) for gate in gates], F32)
    if token < c.key.qlen:
        lds.decay.store(decay, token * HEAD_DIM + issued.column)
        if c.wave == task.chunk:
            for i in range_constexpr(LANE_COLUMNS):
                dump(c, "decay", task.per_token(c, token) * HEAD_DIM + issued.column + i, decay[i])


@traced
def _normalise(c: Context, lds: KdaLds, task: Task) -> None:
    """Each of the 2 L vectors times its l2 factor, in place; lane l has columns l and l + 64."""
    vectors = 2 * c.key.qlen
    for i in range_constexpr(-(-vectors // WAVES)):
        vector = c.wave + i * WAVES
        if vector < vectors:
            _normalise_vector(c, lds, task, vector)


@traced
def _normalise_vector(c: Context, lds: KdaLds, task: Task, vector: Any) -> None:
    first = vector * HEAD_DIM + c.lane
    low, high = lds.qk.load(first), lds.qk.load(first + LANES)
    factor = rsq(bfly64(low * low + high * high) + F32(L2_EPS))
    factor = ((vector & 1) == 0).select(factor * F32(HEAD_DIM**-0.5), factor)
    for value, place in ((low * factor, c.lane), (high * factor, c.lane + LANES)):
        lds.qk.store(value, vector * HEAD_DIM + place)
        if place >> 4 == task.chunk:
            _dump_vector(c, task, vector, place, value)


@traced
def _dump_vector(c: Context, task: Task, vector: Any, place: Any, value: Any) -> None:
    element = task.per_token(c, vector >> 1) * HEAD_DIM + place
    if (vector & 1) == 0:
        dump(c, "qn", element, value)
    else:
        dump(c, "kn", element, value)


@traced
def load_given(c: Context, lds: KdaLds, task: Task) -> None:
    """In a build without this stage: decay, beta, qn and kn as they were given."""
    if const_expr(not c.runs("gates")):
        for i in range_constexpr(-(-c.key.qlen * HEAD_DIM // THREADS)):
            item = c.tid + i * THREADS
            j, column = item >> 7, item & (HEAD_DIM - 1)
            if j < c.key.qlen:
                element = task.per_token(c, j) * HEAD_DIM + column
                lds.decay.store(given(c, "decay", element), item)
                lds.qk.store(given(c, "qn", element), 2 * j * HEAD_DIM + column)
                lds.qk.store(given(c, "kn", element), (2 * j + 1) * HEAD_DIM + column)
        if c.tid < c.key.qlen:
            lds.beta.store(given(c, "beta", task.per_token(c, c.tid)), c.tid)
        gpu.barrier()
