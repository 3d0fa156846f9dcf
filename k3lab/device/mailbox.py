"""Hand-offs by tagged pairs: put a word with this launch's tag, poll a batch of pairs until every tag has come.

A 16-byte poll of two pairs assumes that each aligned 8-byte half is single-copy atomic.
"""

from typing import Any
from zlib import crc32

from flydsl.expr import const_expr, gpu, range_constexpr, rocdl

from k3lab.device.dsl import F32, Int32, Int64, Opaque, Vector, fx, located, traced
from k3lab.device.memory import load, load_words, pointer, store, store_words
from k3lab.device.stamps import clock
from k3lab.device.wave import ballot, lane_value
from k3lab.geometry import LANES, TAG_SLOTS, THREADS
from k3lab.layout import EPOCHS, PAIR_BYTES

BATCH = 12
"""Specs in one polled batch: more would not stay in registers."""
HEALTH_WORDS = 8


class Pairs(Opaque):
    """A region's pairs: `offset` bytes into `resource`, reached with `policy`."""

    def __init__(self, name: str, resource: Any, offset: int, policy: int) -> None:
        self.name, self.resource, self.offset, self.policy = name, resource, offset, policy

    @property
    def number(self) -> int:
        """What health records call the region."""
        return crc32(self.name.encode()) & 0x7FFFFFFF

    def at(self, index: Any) -> Any:
        """The byte offset of a pair."""
        return Int32(index) * PAIR_BYTES + self.offset

    def read(self, index: Any, count: int) -> Any:
        """`count` neighbouring pairs from number `index` on as they are now: a vector of value, tag, value, tag."""
        return load_words(self.resource, self.at(index), 2 * count, self.policy)


class Spec(Opaque):
    """`count` (1 or 2) neighbouring pairs of a region, from number `index` on."""

    def __init__(self, pairs: Pairs, index: Any, count: int = 1) -> None:
        self.pairs, self.index, self.count = pairs, Int32(index), count


def step_tag(epoch: Any, slot: Any) -> Any:
    """The 32-bit tag of launch `slot` of step `epoch`; never 0."""
    return ((epoch & (EPOCHS - 1)) * TAG_SLOTS) + slot + 1


@located
def current_tag(c: Any) -> Any:
    """The tag of this launch, from the epoch in device memory."""
    return step_tag(load(Int32, c.args.epoch, 0), c.args.slot)


@located
def put(c: Any, pairs: Pairs, index: Any, value: Any) -> None:
    """`value`, an fp32 or Int32, with this launch's tag as pair number `index`, in one 8-byte store."""
    word = value.bitcast(Int32) if isinstance(value, F32) else Int32(value)
    store_words(Vector.from_elements([word, c.tag], Int32), pairs.resource, pairs.at(index), pairs.policy)


@located
@traced
def poll(c: Any, specs: list[Spec]) -> list[Any]:
    """Load at most 12 specs' pairs until all carry this launch's tag, for all lanes; returns each spec's words."""
    if len(specs) > BATCH:
        raise ValueError(f"poll: expected at most {BATCH} specs, got {len(specs)}")
    seen = _ask(specs)
    stale = _stale(c, seen)
    if const_expr(c.key.bounded):
        seen = _poll_bounded(c, specs, seen, stale)
    else:
        while stale != 0:
            rocdl.s_sleep(1)  # without it LLVM deletes the loop, or hoists the load out of it
            seen = _ask(specs)
            stale = _stale(c, seen)
    return [[words[2 * i] for i in range(spec.count)] for words, spec in zip(seen, specs, strict=True)]


@located
@traced
def _poll_bounded(c: Any, specs: list[Spec], seen: list[Any], stale: Any) -> list[Any]:
    """`poll` that gives up once `wait_ticks` of the clock have passed, leaves a record, and goes on."""
    start = clock()
    late = Int32(0)
    while (stale != 0) & (late == 0):
        rocdl.s_sleep(1)
        seen = _ask(specs)
        stale = _stale(c, seen)
        late = (clock() - start > Int64(c.args.wait_ticks)).select(Int32(1), Int32(0))
    if stale != 0:
        _give_up(c, specs, seen, stale)
    return seen


@located
@traced
def _give_up(c: Any, specs: list[Spec], seen: list[Any], stale: Any) -> None:
    """The CTA's first give-up writes a record: 1, region, pair, tag expected and seen, CTA, time, 0."""
    region, index, tag = Int32(0), Int32(0), Int32(0)
    for words, spec in reversed(list(zip(seen, specs, strict=True))):
        for i in reversed(range(spec.count)):
            mine = words[2 * i + 1] != c.tag
            region = mine.select(Int32(spec.pairs.number), region)
            index = mine.select(spec.index + i, index)
            tag = mine.select(words[2 * i + 1], tag)
    if (stale >> Int64(c.lane)) & 1 != 0:
        first = fx.atomic_xchg(pointer(Int32, c.args.health) + c.cta * HEALTH_WORDS, Int32(1))
        if first == 0:
            now = clock().to(Int32) & 0x7FFFFFFF
            record = [region, index, c.tag, tag, c.cta, now, Int32(0)]
            for place in range_constexpr(len(record)):
                store(Int32, record[place], c.args.health, c.cta * HEALTH_WORDS + 1 + place)
            if c.args.alarm != 0:
                fx.atomic_xchg(pointer(Int32, c.args.alarm), Int32(1))  # other CTAs raise it too


def _ask(specs: list[Spec]) -> list[Any]:
    return [spec.pairs.read(spec.index, spec.count) for spec in specs]


def _stale(c: Any, seen: list[Any]) -> Any:
    """A bit for every lane that has a pair without this launch's tag."""
    stale = None
    for words in seen:
        for place in range(1, words.numel, 2):
            other = words[place] != c.tag
            stale = other if stale is None else stale | other
    return ballot(stale)


@located
@traced
def poll_rows_to_lds(c: Any, count: int, spec_of: Any, keep: Any) -> None:
    """Poll pairs 0 .. count - 1, dealt to the CTA's threads in turn, and hand each word to `keep(item, word)`.

    `spec_of(item)` is an item's spec of one pair. Ends at a barrier, after which what was kept can be read.
    """
    waves = min(THREADS, -(-count // 64) * 64) // 64
    rounds = -(-count // THREADS)
    tid = _thread(c)
    if c.wave < waves:
        for first in range_constexpr(0, rounds, BATCH):
            items = [tid + THREADS * i for i in range(first, min(first + BATCH, rounds))]
            words = poll(c, [spec_of(fx.min(item, Int32(count - 1))) for item in items])
            for i in range_constexpr(len(items)):
                if items[i] < count:
                    keep(items[i], words[i][0])
    gpu.barrier()


def _thread(c: Any) -> Any:
    """This thread's number, but nothing that LLVM moves out of a loop round the poll.

    A mask for each comparison with it would wait in scalar registers from one round of that loop to the next.
    """
    return (lane_value(c.tid, 0) & (THREADS - LANES)) | c.lane


@located
def publish_rows(c: Any, flags: Pairs, index: Any) -> None:
    """After plain rows: drain every wave's stores, meet, and let one thread put the flag that guards them."""
    rocdl.s_waitcnt(vmcnt=0)
    gpu.barrier()
    _put_flag(c, flags, index)


@located
@traced
def _put_flag(c: Any, flags: Pairs, index: Any) -> None:
    if c.tid == 0:
        put(c, flags, index, Int32(1))
