"""Bodies for the toy launch of `toy.py`: what a launch's roles are, traced functions of the context."""

import flydsl.expr as fx
from flydsl.expr import const_expr, gpu, range_constexpr, rocdl

from k3lab.device import memory
from k3lab.device.context import dump, given
from k3lab.device.dsl import F32, Int32, Vector, traced
from k3lab.device.mailbox import Spec, poll, poll_rows_to_lds, publish_rows, put
from k3lab.device.memory import DEVICE, load, load_words, store, store_words
from k3lab.device.stamps import clock, stamp
from k3lab.geometry import THREADS

LANES = 64
SINGLES, DOUBLES = 6, 6
HANDED = SINGLES + 2 * DOUBLES


def batch(c, lane, extra=0):
    """A full batch of a lane's pairs: 6 specs of one pair and 6 of two."""
    a, first = c.pairs("A"), lane * HANDED
    ones = [Spec(a, first + i) for i in range(SINGLES)]
    return [*ones, *(Spec(a, first + SINGLES + 2 * i, 2) for i in range(DOUBLES + extra))]


@traced
def handing(c):
    """CTA 0 puts 18 pairs a lane, fp32 and Int32 in turn; CTA 1's first wave takes them in one batch."""
    if c.cta == 0:
        if c.tid < LANES:
            for i in range_constexpr(HANDED):
                kind = F32 if i % 2 else Int32
                put(c, c.pairs("A"), c.tid * HANDED + i, load(kind, c.args.src, c.tid * HANDED + i))
    if c.cta == 1:
        if c.wave == 0:
            taken = poll(c, batch(c, c.lane))
            found = [word for spec in taken for word in spec]
            for i in range_constexpr(HANDED):
                store(Int32, found[i], c.args.out, c.lane * HANDED + i)


@traced
def too_many(c):
    if c.wave == 0:
        poll(c, batch(c, c.lane, extra=1))


@traced
def tagging(c):
    if c.cta == 0:
        if c.tid == 0:
            store(Int32, c.tag, c.args.out, 0)


@traced
def silent(c):
    """CTA 1 waits for what nobody puts."""
    if c.cta == 1:
        if c.wave == 0:
            poll(c, batch(c, c.lane))


@traced
def dealing(c):
    """CTA 0 puts S pairs; CTAs 1 and 2 take all of them into LDS."""
    count, pairs = c.key.tokens, c.pairs("DEALT")
    (kept,) = c.lds.carve((Int32, count))
    rounds = -(-count // THREADS)
    if c.cta == 0:
        for i in range_constexpr(rounds):
            if c.tid + i * THREADS < count:
                put(c, pairs, c.tid + i * THREADS, load(Int32, c.args.src, c.tid + i * THREADS))
    if (c.cta == 1) | (c.cta == 2):
        take_dealt(c, kept)


@traced
def undealt(c):
    """`dealing` without the putting."""
    (kept,) = c.lds.carve((Int32, c.key.tokens))
    if c.cta == 1:
        take_dealt(c, kept)


@traced
def take_dealt(c, kept):
    """Every pair into LDS, then out by other threads than those that polled it."""
    count, pairs = c.key.tokens, c.pairs("DEALT")
    poll_rows_to_lds(c, count, lambda item: Spec(pairs, item), lambda item, word: kept.store(word, item))
    for i in range_constexpr(-(-count // THREADS)):
        item = count - 1 - c.tid - i * THREADS
        if item >= 0:
            store(Int32, kept.load(item), c.args.out, (c.cta - 1) * count + item)


PRODUCERS = 4


@traced
def write_rows(c):
    word = Vector.from_elements([load(Int32, c.args.src, c.cta * THREADS + c.tid)], Int32)
    store_words(word, c.scratch, c.places["X"].offset + (c.cta * THREADS + c.tid) * 4, DEVICE)


@traced
def read_rows(c):
    """Every flag by one wave, then every producer's row at device scope."""
    if c.wave == 0:
        poll(c, [Spec(c.pairs("XRDY"), fx.min(c.lane, Int32(PRODUCERS - 1)))])
    gpu.barrier()
    for p in range_constexpr(PRODUCERS):
        place = p * THREADS + (c.tid ^ 65)
        word = load_words(c.scratch, c.places["X"].offset + place * 4, 1, DEVICE)
        store(Int32, word[0], c.args.out, (c.cta - PRODUCERS) * PRODUCERS * THREADS + place)


@traced
def publishing(c):
    """CTAs 0 .. 3 write a row each and publish it; CTAs 4 and 5 read them all."""
    if c.cta < PRODUCERS:
        write_rows(c)
        publish_rows(c, c.pairs("XRDY"), c.cta)
    if (c.cta >= PRODUCERS) & (c.cta < PRODUCERS + 2):
        read_rows(c)


@traced
def undrained(c):
    """`publishing` by a copy of publish_rows that leaves out the drain."""
    if c.cta < PRODUCERS:
        write_rows(c)
        gpu.barrier()
        if c.tid == 0:
            put(c, c.pairs("XRDY"), c.cta, Int32(1))
    if (c.cta >= PRODUCERS) & (c.cta < PRODUCERS + 2):
        read_rows(c)


@traced
def unmet(c):
    """`publishing` by a copy of publish_rows that leaves out the barrier."""
    if c.cta < PRODUCERS:
        write_rows(c)
        memory.drain()
        if c.tid == 0:
            put(c, c.pairs("XRDY"), c.cta, Int32(1))
    if (c.cta >= PRODUCERS) & (c.cta < PRODUCERS + 2):
        read_rows(c)


PUT_LANES = 40


@traced
def waiting(c):
    """CTA 0 puts the pairs of some lanes, all but one; CTAs 1 .. 3 wait for every lane's on two waves, and go on."""
    if c.cta == 0:
        if c.tid < PUT_LANES:
            for i in range_constexpr(HANDED):
                if c.tid * HANDED + i != PUT_LANES * HANDED - 1:
                    put(c, c.pairs("A"), c.tid * HANDED + i, c.tid + i)
    if (c.cta >= 1) & (c.cta <= 3):
        if c.wave < 2:
            taken = poll(c, batch(c, fx.min(c.lane, Int32(PUT_LANES - 1))))
            store(Int32, taken[0][0], c.args.out, (c.cta - 1) * 128 + c.tid)


@traced
def prompt(c):
    """Nobody waits in vain: a bounded wait that ends well."""
    handing(c)


@traced
def stamping(c):
    """Every CTA stamps `one`, CTA 0 stamps `two`, nobody stamps `skipped`; work on either side."""
    if c.tid < LANES:
        store(Int32, load(Int32, c.args.src, c.tid) + 1, c.args.out, c.cta * LANES + c.tid)
    stamp(c, "one")
    if c.cta == 0:
        stamp(c, "two")
    gpu.barrier()
    stamp(c, "last")


@traced
def pause():
    """Until the clock has moved."""
    start = clock()
    now = start
    while now == start:
        rocdl.s_sleep(1)
        now = clock()


@traced
def pacing(c):
    """`stamping`, with time passing between the points."""
    pause()
    stamp(c, "one")
    pause()
    if c.cta == 0:
        stamp(c, "two")
        pause()
    stamp(c, "last")


@traced
def unstamped(c):
    """`stamping` without a stamp in its source."""
    if c.tid < LANES:
        store(Int32, load(Int32, c.args.src, c.tid) + 1, c.args.out, c.cta * LANES + c.tid)
    gpu.barrier()


@traced
def locals_made(c):
    """Stage `make`: what src holds as fp32, doubled, into both locals. Stage `take`: both locals' bits to out."""
    if c.cta == 0:
        if c.tid < LANES:
            if const_expr(c.runs("make")):
                value = load(F32, c.args.src, c.tid)
                dump(c, "half", c.tid, value)
                dump(c, "full", c.tid, value)
            if const_expr(c.runs("take")):
                store(F32, given(c, "half", c.tid), c.args.out, c.tid)
                store(F32, given(c, "full", c.tid), c.args.out, c.tid + LANES)
