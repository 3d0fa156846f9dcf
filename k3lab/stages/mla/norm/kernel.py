"""norm, as the kernel does it: a token on one CTA, 4 columns a thread, the q latent's waves before the kv latent's."""

from typing import Any

from flydsl.expr import gpu, range_constexpr

from k3lab.device.context import Context
from k3lab.device.dsl import I8, Int32, Int64, Opaque, Vector, fx, traced
from k3lab.device.floats import bf16_words, from_words, in_order, rms_scale, rnd, sum4
from k3lab.device.mailbox import Spec, poll, publish_rows
from k3lab.device.memory import DEVICE, load, store, store_words
from k3lab.device.narrow import fp8_word
from k3lab.device.wave import bfly64, uniform
from k3lab.geometry import LANES, ROPE
from k3lab.stages.mla.role import NormLds

COLUMNS = 4
PE_THREADS = ROPE // COLUMNS


class Latents(Opaque):
    """A thread's place in a token's latents; threads past the last share its columns and store nothing.

    Attributes:
        q_waves, waves: those of the q latent, and of both.
        column: first of the thread's 4 columns; `is_q` whether they are the q latent's, for the whole wave.
        weight: norm weights of the columns, 2 words.
    """

    def __init__(self, c: Context) -> None:
        width = c.g.q_lora + c.g.kv_lora
        self.q_waves, self.waves = c.g.q_lora // (COLUMNS * LANES), width // (COLUMNS * LANES)
        self.column = fx.min(c.tid, Int32(width // COLUMNS - 1)) * COLUMNS
        self.is_q = c.wave < self.q_waves
        weights = self.is_q.select(c.args.q_nw, c.args.kv_nw - c.g.q_lora * 2)
        self.weight = load(Int32, weights, self.column >> 1, 2)


@traced
def run(c: Context, lds: NormLds) -> None:
    """Tokens cta, cta + NA, ...: q_c into the plain rows QC with a flag in QCR, and the token's cache entry."""
    at = Latents(c)
    for i in range_constexpr(-(-c.key.tokens // c.g.na)):
        token = c.cta + i * c.g.na
        if token < c.key.tokens:
            stage_norm(c, lds, at, token)


@traced
def stage_norm(c: Context, lds: NormLds, at: Latents, token: Any) -> None:
    """One token: its latents polled from QA, normed, and rounded to where they go."""
    slot = uniform(load(Int32, c.args.slots, token * 2))  # the low half of an int64
    qa, row = c.pairs("QA"), token * (c.g.qkv_a // 2)
    pe = (c.g.q_lora + c.g.kv_lora) // 2 + (c.lane & (PE_THREADS - 1)) * 2
    latent, k_pe = poll(c, [Spec(qa, row + (at.column >> 1), 2), Spec(qa, row + pe, 2)])
    v, weight = from_words(latent, 2), from_words(at.weight, 2)
    q_sum, kv_sum = block_sum2(c, lds, at, sum4([x * x for x in v]))
    q_scale, kv_scale = rms_scale(q_sum, c.g.q_lora, c.key.q_eps), rms_scale(kv_sum, c.g.kv_lora, c.key.kv_eps)
    scale = at.is_q.select(q_scale, kv_scale)
    normed = [(x * scale) * w for x, w in zip(v, weight, strict=True)]
    if at.is_q:
        offset = c.places["QC"].offset + (token * c.g.q_lora + at.column) * 2
        store_words(bf16_words(normed), c.scratch, offset, DEVICE)
    else:
        if slot >= 0:
            _store_entry(c, at, slot, normed, from_words(k_pe, 2))
    publish_rows(c, c.pairs("QCR"), token)


@traced
def block_sum2(c: Context, lds: NormLds, at: Latents, value: Any) -> tuple[Any, Any]:
    """The q waves' sum and the kv waves', each the waves in order from the first."""
    total = bfly64(value)
    if c.lane == 0:
        lds.sums.store(total, c.wave)
    gpu.barrier()
    q = in_order([lds.sums.load(wave) for wave in range(at.q_waves)])
    return q, in_order([lds.sums.load(wave) for wave in range(at.q_waves, at.waves)])


@traced
def _store_entry(c: Context, at: Latents, slot: Any, normed: list[Any], k_pe: list[Any]) -> None:
    """The token's cache entry: fp8 of the bf16 kv latent, then fp8 of k_pe, neither normed nor rotated."""
    block = slot // c.args.block_size
    offset = slot - block * c.args.block_size
    entry = c.args.kv_cache + Int64(block) * c.args.kv_cache_0 + Int64(offset) * c.args.kv_cache_1
    place = c.tid - c.g.q_lora // COLUMNS
    if c.wave < at.waves:
        _store_word(entry, place, fp8_word([rnd(x) for x in normed]))
    if place < PE_THREADS:
        _store_word(entry, place + c.g.kv_lora // COLUMNS, fp8_word(k_pe))


def _store_word(entry: Any, place: Any, word: Any) -> None:
    """4 bytes of an entry, which may lie at any address."""
    store(I8, Vector.from_elements([word], Int32).bitcast(I8), entry, place * COLUMNS)
