"""A KDA task of a CTA - (request, head, value chunk) - and the LDS its stages share."""

from typing import Any

from k3lab.device.context import Context
from k3lab.device.dsl import BF16, F32, Int32, Int64, Opaque, fx
from k3lab.device.memory import lds_offsets, load
from k3lab.device.wave import lane_value, uniform
from k3lab.geometry import HEAD_DIM, LDS_PAD, V_CHUNKS
from k3lab.stages.tensors import Key

CHUNK = HEAD_DIM // V_CHUNKS
GROUPS = 3
"""q, k and v."""
OWNED = GROUPS * CHUNK
"""Conv channels of a task: 16 each of q, k and v."""


class KdaLds(Opaque):
    """Hand-offs between the stages of a task.

    seq: [L, 48] projected values; f_a: [L, 128 + pad]; decay: [L, 128]; qk: [L, 2, 128], normed in place; v, o:
    [L, 16]; beta: [L]; parts: [L, 8]; gate: [L, 16].
    """

    def __init__(self, c: Context) -> None:
        made = c.lds.carve(*_arrays(c.key))
        self.seq, self.f_a, self.decay, self.qk, self.v, self.o, self.beta, self.parts, self.gate = made


F_A_ROW = HEAD_DIM + LDS_PAD


def _arrays(key: Key) -> list[tuple[Any, int]]:
    n = key.qlen
    return [
        *((Int32, n * OWNED), (BF16, n * F_A_ROW), (F32, n * HEAD_DIM), (F32, n * 2 * HEAD_DIM)),
        *((F32, n * CHUNK), (F32, n * CHUNK), (F32, n), (F32, n * V_CHUNKS), (F32, n * CHUNK)),
    ]


def kda_bytes(key: Key) -> int:
    """LDS of the KDA role."""
    return lds_offsets([(kind.width // 8, count) for kind, count in _arrays(key)])[1]


def task_count(key: Key) -> int:
    """KDA tasks of a launch: requests x heads x value chunks."""
    return int(key.requests) * int(key.geometry.heads) * V_CHUNKS


class Task(Opaque):
    """Where a task stands, and its request's slots.

    Attributes:
        request, head, chunk: Int32; `channel` the first of its 16 value channels within the head's 128.
        accepted: a = num_acc - 1; `conv_slot` c0; `first_slot` s0, the state's slot before the first token.
        slots: lane j's is the slot that token j's state goes to; one vector register, whatever L is.
    """

    def __init__(self, c: Context, number: Any) -> None:
        self.number = number
        self.chunk = number & (V_CHUNKS - 1)
        pair = number >> (V_CHUNKS.bit_length() - 1)
        self.request = pair // c.g.heads
        self.head = pair - self.request * c.g.heads
        self.channel = self.chunk * CHUNK
        row = Int64(self.request) * c.args.st_idx_0
        self.accepted = uniform(load(Int32, c.args.num_acc, self.request)) - 1
        self.slots = load(Int32, c.args.st_idx, row + Int64(fx.min(c.lane, Int32(c.key.qlen - 1))))
        self.conv_slot = self.target(0)
        self.first_slot = self.target(self.accepted)

    def target(self, j: Any) -> Any:
        """The slot that token `j`'s state goes to, in a scalar register; all lanes share `j`."""
        return lane_value(self.slots, j)

    @property
    def live(self) -> Any:
        """Whether the request has a state; without one its output is 0."""
        return self.first_slot > 0

    def token(self, c: Context, j: Any) -> Any:
        """The step's token row of the request's token `j`."""
        return self.request * c.key.qlen + j

    def per_token(self, c: Context, j: Any) -> Any:
        """Element (request, j, head) of a [R, L, HEADS] local."""
        return self.token(c, j) * c.g.heads + self.head


def readable(slot: Any) -> Any:
    """Null slots read slot 0."""
    return fx.max(slot, Int32(0))
