"""K2a's kernel in the simulator equals the kernel-order twin bit for bit, on every rank and all that it exposes.

Quick: a cover of all pairs of options at the smallest size, each stage alone, every detector, the variants against each
other, the sentinel's corners, ranks that never arrive. Slow: more values and sizes, other orders, full size. Launches
in a row are in `test_k2a_chains.py`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise as pairwise_of

import numpy as np
import pytest
import torch

import k3lab
from k3lab.geometry import Geometry
from k3lab.kernels import peers
from k3lab.kernels.health import GaveUp
from k3lab.kernels.host import Buffers
from k3lab.layout import ARMED_GROUP
from k3lab.sim.options import Options
from k3lab.words import DISARMED
from tests.cover import options_of, pairwise
from tests.kernels.harness import DETECTORS, ON_A_GPU, ORDERS, differences, mini_case
from tests.kernels.k2a_cases import FACTORS, QUICK, TINY, VARIANTS

# These need flydsl, which the harness asks for.
from k3lab.backends import chain  # isort: skip
from k3lab.backends.chain import simulated_chain  # isort: skip
from k3lab.device import peers as device_peers  # isort: skip
from k3lab.kernels.lowered import _text  # isort: skip
from k3lab.lowering.parse import parse  # isort: skip
from k3lab.sim.faults import SimFault  # isort: skip

CASES, MORE = pairwise(QUICK), pairwise(FACTORS)
SMALL = {"tokens": 3, "nblocks": 2, "ranks": 2, "values": "outliers"}
STAGES = ("o", "reduce", "slice", "gate", "mix")
WAVES_APART = 4  # a seed for which waves of a workgroup go on their own
MISSING = {"tagged": "expected 257, seen 0", "sentinel": "expected other than -1, seen -1"}
"""What a deadlock's report says of a word of AR that has not come."""


def faults(case, sim=None):
    """Where any rank differs from the twin; nothing exposed may be missing but an armed AR."""
    run, twin = k3lab.run("k2a", case, backend="sim", sim=sim, dumps=True), k3lab.run("k2a", case)
    missing = set(twin.values) - set(run.values) - ({"AR"} if case.key.sentinel else set())
    lines = [f"missing: {name}" for name in sorted(missing)]
    for rank, values in enumerate(run.ranks):
        lines += [f"rank {rank}: {line}" for line in differences(values, twin.ranks[rank])]
    return lines


def k2a_faults(sim=None, **options):
    return faults(mini_case("k2a", **options), sim)


def tiny_case(blocks=TINY.blocks, **options):
    return k3lab.make_case("k2a", geometry=replace(TINY, blocks=blocks), **options)


@pytest.mark.parametrize("labels", CASES, ids="-".join)
def test_the_kernel_equals_the_twin(labels):
    assert faults(tiny_case(seed=1, **options_of(QUICK, labels))) == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_detector_is_silent(variant):
    assert faults(tiny_case(**SMALL, **VARIANTS[variant]), Options(**DETECTORS)) == []


def agree(values, options):
    """Whether every variant leaves the same bits on every one of four ranks: two would sum the same in either order."""
    given = {"tokens": 2, "nblocks": 1, "ranks": 4, "values": values}
    cases = [tiny_case(**given, **variant) for variant in VARIANTS.values()]
    found = []
    for case in cases:
        for tensors, others in zip(case.ranks, cases[0].ranks, strict=True):
            assert all(differences({name: tensors[name]}, others) == [] for name in tensors)
        run = k3lab.run("k2a", case, backend="sim", sim=options, dumps=True)
        assert run.provenance["simulation"]["findings"] == []
        found += [{name: rank[name].view(torch.int32) for name in ("prefix", "x_out", "delta")} for rank in run.ranks]
    assert len(found) == 4 * len(VARIANTS)
    return all(torch.equal(held[name], found[0][name]) for held in found for name in found[0])


def test_one_shot_two_shot_and_the_sentinel_agree_on_every_rank():
    assert agree("outliers", Options())


@pytest.mark.parametrize("variant", ["one-tagged", "two-sentinel"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_on_its_own_equals_its_twin(stage, variant):
    case = tiny_case(**SMALL, **VARIANTS[variant])
    run, twin = k3lab.run_stage(f"k2a.{stage}", case, backend="sim"), k3lab.run("k2a", case)
    assert len(run.ranks) == 2 and run.values
    for rank, values in enumerate(run.ranks):
        assert differences(values, twin.ranks[rank]) == []


class TestWordsWithTheSentinelsBits:
    """With the pair that the simulator's NaN make as the sentinel. Sent as it is, it would be waited for for ever."""

    BITS = 0x7FC07FC0

    @pytest.fixture(autouse=True)
    def other_sentinel(self, monkeypatch):
        monkeypatch.setattr(device_peers, "SENTINEL", self.BITS)
        monkeypatch.setattr(peers, "SENTINEL", np.uint32(self.BITS))
        monkeypatch.setattr(chain, "lowered", lambda launch, key, stages: parse(_text(launch, key, stages)))

    def ranks(self, what, shots):
        """Every partial is such a pair, or no partial but their sum: half of each pair is of one rank's making."""
        case = tiny_case(ranks=2, tokens=2, nblocks=1, shots=shots, sentinel=True)
        made = []
        for rank, tensors in enumerate(case.ranks):
            weights = tensors["w_o"].clone()
            weights[slice(None) if what == "partial" else slice(rank, None, 2)] = float("nan")
            key, given = replace(case.key, dumps=True), {**tensors, "w_o": weights}
            made.append(Buffers.of(case.declaration, key, given))
        peers.join(made)
        for buffers in made:
            buffers.tensors["peer_buffer"].view(torch.int32).fill_(self.BITS)
        return made

    @pytest.mark.parametrize("shots", ["one", "two"])
    @pytest.mark.parametrize("what", ["partial", "sum"])
    def test_they_arrive_as_nan_and_everything_is_armed_again(self, what, shots):
        ranks = self.ranks(what, shots)
        simulated_chain([ranks])
        for values in peers.exposed(ranks):
            assert all(values[name].isnan().all() for name in ("delta", "prefix", "x_out"))
        if what == "sum":
            deltas = [self.delta_words(buffers) for buffers in ranks]
            assert np.array_equal(*deltas) and (deltas[0] == (DISARMED if shots == "two" else self.BITS)).all()

    @pytest.mark.parametrize(("what", "shots"), [("partial", "one"), ("partial", "two"), ("sum", "two")])
    def test_a_producer_that_does_not_disarm_them_hangs(self, what, shots, monkeypatch):
        monkeypatch.setattr(device_peers, "DISARMED", self.BITS)
        with pytest.raises(SimFault, match="deadlock"):
            simulated_chain([self.ranks(what, shots)])

    def delta_words(self, buffers):
        place = next(place for place in buffers.local_places if place.name == "delta")
        return buffers.tensors["locals"][place.offset : place.offset + place.nbytes].numpy().view(np.uint32)


def reduce_alone(ranks=2, tokens=2, **options):
    """A reduce that nobody has sent anything: its ranks' buffers, joined."""
    case = tiny_case(ranks=ranks, tokens=tokens, nblocks=1, **options)
    key = replace(case.key, dumps=True)
    made = [Buffers.of(case.declaration, key, tensors, frozenset({"reduce"})) for tensors in case.ranks]
    peers.join(made)
    return made


@pytest.mark.parametrize("variant", VARIANTS)
def test_partials_are_summed_in_rank_order(variant):
    """256 + 1 lies between two bf16 values; what the other ranks add is lost there, unless it is summed first."""
    source = torch.Generator().manual_seed(0)
    scale = torch.ldexp(torch.ones(2, TINY.hidden), torch.randint(-9, 9, (2, TINY.hidden), generator=source))
    scale = torch.where(torch.rand(2, TINY.hidden, generator=source) < 0.5, -scale, scale)
    partials = [scale * part for part in (256.0, 1.0, *[2.0**-17] * 6)]
    total, backwards, rotated = partials[0], partials[7], partials[1]
    for rank in range(1, 8):
        total, backwards = total + partials[rank], backwards + partials[7 - rank]
        rotated = rotated + partials[(rank + 1) % 8]
    assert all((total.bfloat16() != other.bfloat16()).all() for other in (backwards, rotated))
    ranks = reduce_alone(ranks=8, **VARIANTS[variant])
    peers.fill(ranks, [{"partial": partial} for partial in partials])
    simulated_chain([ranks])
    for values in peers.exposed(ranks):
        assert torch.equal(values["delta"], total.bfloat16().float())


@pytest.mark.parametrize("variant", VARIANTS)
def test_negative_zeros_add_up_to_one(variant):
    """A sum that started from 0.0 would be +0.0."""
    partials = torch.full((2, TINY.hidden), -0.0)
    ranks = reduce_alone(**VARIANTS[variant])
    peers.fill(ranks, [{"partial": partials}] * 2)
    simulated_chain([ranks])
    for values in peers.exposed(ranks):
        assert differences({"delta": values["delta"]}, {"delta": partials}) == []


@pytest.mark.parametrize("variant", ["one-sentinel", "two-sentinel"])
def test_words_of_a_second_round_are_armed_once_every_wave_has_read_them(variant):
    """With 17 tokens all waves poll the last item in the second round, and one of them arms it."""
    ranks = reduce_alone(tokens=17, **VARIANTS[variant])
    partials = torch.arange(17.0)[:, None].expand(17, TINY.hidden)
    peers.fill(ranks, [{"partial": partials}] * 2)
    simulated_chain([ranks], Options(schedule="random", seed=WAVES_APART))
    for values in peers.exposed(ranks):
        assert torch.equal(values["delta"], 2 * partials)


class TestARankThatNeverArrives:
    """A release build waits for ever, and the simulator's report names the wait; a bounded one says so itself."""

    def ranks(self, **options):
        """Rank 1 sends no partials."""
        case = tiny_case(tokens=2, nblocks=1, ranks=2, **options)
        stages = [frozenset({"o", "reduce"}), frozenset({"reduce"})]
        pairs = zip(case.ranks, stages, strict=True)
        made = [Buffers.of(case.declaration, case.key, tensors, mine) for tensors, mine in pairs]
        peers.join(made)
        return made

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_a_release_build_ends_in_a_report_of_its_words(self, variant):
        with pytest.raises(SimFault) as info:
            simulated_chain([self.ranks(**VARIANTS[variant])])
        waits = self.awaited(str(info.value))
        first = own = TINY.hidden  # rank 0's words come first: 2 tokens of half as many
        if "two" in variant:  # rank 1 sums the second half of the columns; a group of armed words holds both tokens'
            own = first + TINY.hidden // 4 * (2 if "sentinel" in variant else 1)
        assert {(rank, word) for rank, word, _ in waits} >= {(0, first), (1, own)}
        assert {what for *_, what in waits} == {MISSING["sentinel" if "sentinel" in variant else "tagged"]}

    @pytest.mark.parametrize("word", [256, 257])
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_a_word_that_never_comes_is_named_alone(self, variant, word):
        """Either of the two that a thread takes: whichever comes last is waited for."""
        ranks = reduce_alone(**VARIANTS[variant])
        peers.fill(ranks, [{"partial": torch.ones(2, TINY.hidden)}] * 2)
        number = self.unsend(ranks[word // (TINY.hidden // 4)], source=1, token=1, word=word)
        with pytest.raises(SimFault) as info:
            simulated_chain([ranks])
        waits = self.awaited(str(info.value))
        what = MISSING["sentinel" if "sentinel" in variant else "tagged"]
        assert (1, number, what) in waits and len(waits) == (2 if "two" in variant else 1), waits

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_a_bounded_build_says_whom_it_waited_for(self, variant):
        ranks = self.ranks(**VARIANTS[variant], bounded=True)
        for buffers in ranks:
            buffers.numbers["wait_ticks"] = 5000
        simulated_chain([ranks])
        with pytest.raises(GaveUp, match=r"CTA \d gave up waiting for pair \[1, \d, \d+\] .* of region AR") as info:
            ranks[0].check_health()
        first = info.value.records[0]
        assert (first.region, first.index[0], len(info.value.records)) == ("AR", 1, TINY.na)

    def unsend(self, buffers, source, token, word):
        """Take back what was sent as a word of AR; returns its number."""
        half = buffers.tensors["peer_buffer"][1].view(torch.int32)
        if buffers.key.sentinel:
            group = source * (TINY.hidden // 2 // ARMED_GROUP) + word // ARMED_GROUP
            number = (group * buffers.key.tokens + token) * ARMED_GROUP + word % ARMED_GROUP
            half[number] = -1
        else:
            number = (source * buffers.key.tokens + token) * (TINY.hidden // 2) + word
            half[2 * number + 1] = 0
        return number

    def awaited(self, report):
        """(rank, first word, what is wrong) of each wait for AR that a deadlock's report names."""
        found = re.findall(r"(?:pair|flag)s? (\d+)[\d, .]* of AR, half 1 of rank (\d) \(([^)]+)\)", report)
        return {(int(rank), int(word), what) for word, rank, what in found}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_bounded_wait_for_another_rank_is_given_up(variant):
    """Nobody has sent anything: every attention CTA says what it waited for, and the launch ends."""
    ranks = reduce_alone(**VARIANTS[variant], bounded=True)
    for buffers in ranks:
        buffers.numbers["wait_ticks"] = 5000
    simulated_chain([ranks])
    saw = "a word still armed" if "sentinel" in variant else r"tag 0 \(nothing yet\)"
    with pytest.raises(GaveUp, match=rf"gave up waiting for pair \[\d, \d, \d+\] .* of region AR .* saw {saw}") as info:
        ranks[1].check_health()
    assert len(info.value.records) == TINY.na


def test_stamps_of_every_point_are_written_and_a_skipped_one_is_zero():
    case = tiny_case(timeline=True, bounded=True, **SMALL)  # the simulator's clock moves where bounded waits read it
    points, na = case.declaration.stamps, case.key.geometry.na
    for stamps in k3lab.run("k2a", case, backend="sim").rank_stamps:
        attention, gemv = stamps[:na], stamps[na:]
        times = [attention[:, points.index(p)] for p in ("start", "reduced", "slice_gate", "mix")]
        assert all((a <= b).all() for a, b in pairwise_of(times)) and (times[1] > 0).all()
        assert (attention[:, points.index("pushed")] == 0).all() and (gemv[:, points.index("mix")] == 0).all()
        staged, pushed = (gemv[:, points.index(p)] for p in ("core_staged", "pushed"))
        assert (pushed >= staged).all()


@pytest.mark.slow
@pytest.mark.parametrize("values", ["normal", "huge", "tiny", "constant", "specials:infinities", "specials:nans"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_kernel_equals_the_twin_on_more_values(variant, values):
    assert k2a_faults(tokens=5, nblocks=3, ranks=2, values=values, **VARIANTS[variant]) == []


@pytest.mark.slow
@pytest.mark.parametrize("labels", MORE, ids="-".join)
def test_the_kernel_equals_the_twin_at_mini_size(labels):
    assert k2a_faults(seed=2, **options_of(FACTORS, labels)) == []


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("tokens", [16, 33, 64])
def test_every_number_of_tokens(variant, tokens):
    assert k2a_faults(tokens=tokens, nblocks=8, ranks=2, values="outliers", **VARIANTS[variant]) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"schedule": "random", "seed": 2}, {"memory": "relaxed", "seed": 1}], ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_other_orders_of_events_give_the_same_bits_and_no_finding(variant, how):
    case = tiny_case(**SMALL, **VARIANTS[variant])
    assert faults(case, Options(**how, **DETECTORS)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "order"),
    [*(("outliers", order) for order in (None, *ORDERS)), ("specials", None), ("specials", "relaxed")],
)
def test_the_variants_agree_in_every_order_of_events_and_no_detector_finds_anything(values, order):
    assert agree(values, Options(**DETECTORS, **(ORDERS[order](3) if order else {})))


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_detector_is_silent_with_one_task_ahead(variant):
    case = tiny_case(17, **SMALL, token_tile=3, prefetch=1, **VARIANTS[variant])
    assert faults(case, Options(**DETECTORS)) == []


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("knobs", [{"at_once": 4}, {"k_parts": 2, "blocks": 20}], ids=str)
def test_where_all_multiply_no_detector_finds_anything(knobs, variant):
    """Rows' LDS is taken over by attention's; two tokens in a tile, so that rows come twice."""
    case = tiny_case(**SMALL, gemv_all=True, prefetch=1, token_tile=2, **knobs, **VARIANTS[variant])
    for order in ({}, ORDERS["adversarial"](1), ORDERS["relaxed-random"](5)):
        assert faults(case, Options(**order, **DETECTORS)) == []


@pytest.mark.full
@pytest.mark.parametrize("knobs", [{}, {"gemv_all": True, "at_once": 4}], ids=str)
def test_full_size_as_on_a_gpu_equals_the_twin(knobs):
    """One rank; as many GEMV CTAs as an H200 has multiprocessors, beside attention ones or all of them."""
    geometry = ON_A_GPU if knobs else replace(Geometry.k3(), blocks=188)
    case = k3lab.make_case("k2a", geometry=geometry, tokens=4, nblocks=4, ranks=1, token_tile=4, prefetch=1, **knobs)
    assert faults(case) == []


@pytest.mark.full
@pytest.mark.parametrize(
    "variant", [pytest.param(v, marks=[] if v == "one-tagged" else [pytest.mark.slow], id=v) for v in VARIANTS]
)
def test_full_size_on_eight_ranks_equals_the_twin(variant):
    case = k3lab.make_case("k2a", tokens=4, nblocks=4, **VARIANTS[variant])
    assert len(case.ranks) == 8 and faults(case) == []


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("sentinel", [False, True])
@pytest.mark.parametrize("tokens", [1, 4, 8, 16])
def test_full_size_takes_no_scratch_memory_and_spills_nothing(tokens, sentinel):
    from k3lab.kernels.lowered import lowered
    from k3lab.launches import K2A
    from k3lab.lowering.isa import cached_isa

    key = K2A.key(Geometry.k3(), tokens=tokens, nblocks=8, sentinel=sentinel)
    taken = cached_isa(lowered(K2A, key)).resources["attn_post"]
    assert (taken.vgpr_spills, taken.sgpr_spills, taken.scratch) == (0, 0, 0)
