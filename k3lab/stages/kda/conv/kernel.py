"""conv, as the kernel does it: a task's 48 channels (16 each of q, k, v), a thread each, the tokens in order."""

from typing import Any

from flydsl.expr import const_expr, gpu, range_constexpr

from k3lab.device.context import Context, dump, given
from k3lab.device.dsl import F32, I16, Int32, Int64, Opaque, fx, traced
from k3lab.device.floats import from_zero, low_bf16, rnd, sigmoid
from k3lab.device.mailbox import Spec, poll_rows_to_lds, put
from k3lab.device.memory import load, store
from k3lab.device.stamps import stamp
from k3lab.geometry import CONV_WIDTH, HEAD_DIM
from k3lab.stages.kda.task import CHUNK, GROUPS, OWNED, KdaLds, Task, readable

WINDOW = CONV_WIDTH - 1


class Issued(Opaque):
    """What a thread's channel needs and no hand-off brings: the window's three bf16 (raw bits) and the four taps."""

    def __init__(self, c: Context, task: Task) -> None:
        self.group, self.channel = owned_channel(c, task, fx.min(c.tid, Int32(OWNED - 1)))
        self.window = [
            load(I16, c.args.conv_state, state_element(c, self.channel, readable(task.conv_slot), task.accepted + i))
            for i in range(WINDOW)
        ]
        self.taps = load(F32, c.args.conv_w, self.channel * CONV_WIDTH, CONV_WIDTH)


def owned_channel(c: Context, task: Task, place: Any) -> tuple[Any, Any]:
    """Of the task's 48 channels number `place`: 0 for q, 1 for k, 2 for v; and its number among the conv's."""
    group = place >> (CHUNK.bit_length() - 1)
    channel = group * c.g.proj + task.head * HEAD_DIM + task.channel + (place & (CHUNK - 1))
    return group, channel


def state_element(c: Context, channel: Any, slot: Any, entry: Any) -> Any:
    """Element of conv_state, whose strides are all free."""
    a = c.args
    return Int64(slot) * a.conv_state_0 + Int64(channel) * a.conv_state_1 + Int64(entry) * a.conv_state_2


def issue(c: Context, task: Task) -> Issued:
    """The windows and taps."""
    return Issued(c, task)


@traced
def run(c: Context, lds: KdaLds, task: Task, issued: Issued) -> None:
    """o = silu(4 taps): q and k into QK, v into LDS; the window and the new values into conv_state."""
    stamp(c, "conv_entered")
    pairs = c.pairs("PROJ")

    def spec(item: Any) -> Spec:
        j, place = item // OWNED, item % OWNED
        _, channel = owned_channel(c, task, place)
        return Spec(pairs, task.token(c, j) * c.g.nproj + channel)

    poll_rows_to_lds(c, c.key.qlen * OWNED, spec, lambda item, word: lds.seq.store(word, item))
    stamp(c, "conv_inputs")
    if c.tid < OWNED:
        fresh = [lds.seq.load(j * OWNED + c.tid) for j in range(c.key.qlen)]
        _convolve(c, lds, task, issued, fresh)
        if task.conv_slot > 0:
            _store_state(c, task, issued, fresh)
    stamp(c, "conv_stored")
    gpu.barrier()


@traced
def _convolve(c: Context, lds: KdaLds, task: Task, issued: Issued, fresh: list[Any]) -> None:
    """One channel's tokens in order; `fresh` are the projected values' fp32 bits."""
    sequence = [low_bf16(bits.to(Int32)) for bits in issued.window] + [bits.bitcast(F32) for bits in fresh]
    for j in range_constexpr(c.key.qlen):
        z = from_zero([sequence[j + i] * issued.taps[i] for i in range(CONV_WIDTH)])
        out = rnd(z * sigmoid(z))
        place = c.tid & (CHUNK - 1)
        if issued.group < GROUPS - 1:
            vector = ((task.request * c.g.heads + task.head) * c.key.qlen + j) * 2 + issued.group
            put(c, c.pairs("QK"), vector * HEAD_DIM + task.channel + place, out)
        else:
            lds.v.store(out, j * CHUNK + place)
            dump(c, "v", task.per_token(c, j) * HEAD_DIM + task.channel + place, out)


def _store_state(c: Context, task: Task, issued: Issued, fresh: list[Any]) -> None:
    """The window's last two entries as raw bits, then the projected values."""
    entries = [*issued.window[1:], *((bits >> 16).to(I16) for bits in fresh)]
    for entry, bits in enumerate(entries):
        store(I16, bits, c.args.conv_state, state_element(c, issued.channel, task.conv_slot, Int32(entry)))


@traced
def load_given(c: Context, lds: KdaLds, task: Task) -> None:
    """In a build without this stage: the task's `v` as it was given."""
    if const_expr(not c.runs("conv")):
        if c.tid < c.key.qlen * CHUNK:
            j, place = c.tid >> (CHUNK.bit_length() - 1), c.tid & (CHUNK - 1)
            lds.v.store(given(c, "v", task.per_token(c, j) * HEAD_DIM + task.channel + place), c.tid)
        gpu.barrier()
