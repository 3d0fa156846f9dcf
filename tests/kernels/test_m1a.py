"""M1a's kernel in the simulator equals the kernel-order twin bit for bit, on everything it exposes, on every rank.

Quick: a cover of all pairs of options at mini size, each stage on its own, the detectors, two ranks and the rule that
peer buffers are used again by. Slow: more tokens and distributions, eight ranks, full size.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import k3lab
from k3lab.arith import KernelOrder
from k3lab.backends.chain import simulated_chain
from k3lab.backends.session import Session, filled, twin_values
from k3lab.bench.tune import spread
from k3lab.geometry import NOPE, Geometry
from k3lab.kernels import peers
from k3lab.kernels.host import loaded
from k3lab.kernels.lowered import lowered
from k3lab.launches import M1A
from k3lab.launches.eager import run_twin
from k3lab.lowering.isa import cached_isa
from k3lab.sim.decode.program import decode
from k3lab.sim.faults import SimFault
from k3lab.sim.options import Options
from tests.cover import options_of, pairwise
from tests.kernels.harness import (
    DETECTORS,
    ON_A_GPU,
    ORDERS,
    Buffers,
    differences,
    exposed,
    faults,
    faults_of,
    mini_case,
    simulated,
    under_orders,
)
from tests.kernels.m1a_cases import (
    FACTORS,
    LARGE,
    gaps,
    hunted_latents,
    lone_slot,
    mxfp4_edges,
    stated_blocks,
    w_k_of_unity,
)

SMALL = {"tokens": 3, "nblocks": 2}
SHARED = ({"prefetch": 1, "ahead": 1}, {"k_parts": 2, "at_once": 2, "qb0": 1})
SLOW = pytest.mark.slow
STAGES = [stage.name for stage in M1A.stages]
CASES = pairwise(FACTORS)
SCHEDULES = {
    "random": {"schedule": "random", "seed": 2},
    "adversarial": {"schedule": "adversarial", "seed": 1},
    "relaxed-random": {"memory": "relaxed", "schedule": "random", "seed": 5},
}


def m1a_faults(sim=None, **options):
    return faults("m1a", sim, gaps if options.pop("restride", False) else None, **options)


@pytest.mark.parametrize("labels", CASES, ids="-".join)
def test_the_kernel_equals_the_twin(labels):
    assert m1a_faults(seed=1, **options_of(FACTORS, labels)) == []


@pytest.mark.slow
@pytest.mark.parametrize("labels", pairwise(LARGE), ids="-".join)
def test_the_kernel_equals_the_twin_on_more_tokens_and_values(labels):
    assert m1a_faults(seed=2, **options_of(LARGE, labels)) == []


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [48, 17])
def test_as_many_tokens_as_kernels_take(blocks):
    """With 17 CTAs one has all the products' tasks."""
    assert m1a_faults(tokens=64, nblocks=1, blocks=blocks) == []


@pytest.mark.parametrize(
    "values", ["specials:nans", *(pytest.param(f"specials:{v}", marks=SLOW) for v in ("infinities:w_qb", "nans:w_qkv"))]
)
def test_nan_and_infinity_go_where_the_twin_says(values):
    assert m1a_faults(values=values, **SMALL) == []


@pytest.mark.parametrize("qbf16", [False, True])
def test_every_kind_of_mxfp4_block(qbf16):
    assert faults_of(mxfp4_edges(mini_case("m1a", qbf16=qbf16, **SMALL))) == []


def test_stated_mxfp4_blocks():
    """Zeros, subnormals, both sides of 1.75, saturation, NaN and infinity, through a W_K that copies: as stated, and as
    the twin. Of a head with an infinity the rest is NaN: the model multiplies it by W_K's zeros."""
    case = w_k_of_unity(mini_case("m1a", qbf16=True, tokens=7, nblocks=1))
    (values,) = twin_values(case, "fused")
    QN, held = stated_blocks(values["QN"].shape)
    got = Session(case, stages=["uk"], dumps=True).step(twin=[{**values, "QN": QN}])["query"]
    given = {**values, **case.tensors, "QN": QN}
    assert differences({"query": got}, run_twin(M1A.stage("uk"), KernelOrder("m1a"), given, case.key)) == []
    copied = held @ torch.eye(NOPE)
    assert ((got[..., :NOPE] == copied) | (got[..., :NOPE].isnan() & copied.isnan())).all()
    assert not got[..., NOPE : case.key.geometry.kv_lora].nan_to_num().any()


def test_the_q_latents_squares_are_summed_in_the_stated_order():
    case = mini_case("m1a", values="normal", tokens=24, nblocks=1, seed=6)
    case = hunted_latents(case, k3lab.run("m1a", case).values["QA"])
    twin = k3lab.run("m1a", case).values
    assert differences(Session(case, stages=["norm"]).step().values, twin) == []


def test_another_ranks_tokens_leave_the_cache_as_it_is():
    case = lone_slot(mini_case("m1a", **SMALL))
    buffers = Buffers.of(M1A, case.key, case.ranks[0])
    simulated(buffers)
    assert differences(buffers.exposed(), k3lab.run("m1a", case).values) == []
    changed = (buffers.tensors["kv_cache"] != case.tensors["kv_cache"]).any(-1)
    assert changed.nonzero().tolist() == [[size - 1 for size in changed.shape]]


@pytest.mark.parametrize(
    ("stage", "qbf16"), [*((stage, False) for stage in STAGES), ("qb", True), ("uk", True), ("unpack", True)]
)
def test_each_stage_on_its_own(stage, qbf16):
    case = mini_case("m1a", qbf16=qbf16, **SMALL)
    got = Session(case, stages=[stage], dumps=True, sim=Options(**DETECTORS)).step().values
    assert got and differences(got, k3lab.run("m1a", case).values) == []


@pytest.mark.parametrize("memory", ["sequential", "relaxed"])
def test_no_finding_with_every_detector(memory):
    assert m1a_faults(Options(memory=memory, seed=1, **DETECTORS), **SMALL) == []


@pytest.mark.parametrize("how", ["relaxed", *SCHEDULES])
@pytest.mark.parametrize("knobs", SHARED, ids=str)
def test_where_all_multiply_no_detector_finds_anything(knobs, how):
    """The CTAs that norm a row take projections before, q_b's tasks after."""
    order = SCHEDULES.get(how, {"memory": "relaxed", "seed": 1})
    assert m1a_faults(Options(**order, **DETECTORS), gemv_all=True, **knobs, **SMALL) == []


@pytest.mark.slow
@pytest.mark.parametrize("how", SCHEDULES)
def test_every_order_of_events_gives_the_same_bits_and_no_finding(how):
    assert m1a_faults(Options(**SCHEDULES[how], **DETECTORS), **SMALL) == []


@pytest.mark.slow
@pytest.mark.parametrize(("labels", "how"), under_orders(CASES, lambda labels: options_of(FACTORS, labels)["tokens"]))
def test_every_option_under_other_orders_of_events_and_no_finding(labels, how):
    sim = Options(**ORDERS[how](CASES.index(labels)), **DETECTORS)
    assert m1a_faults(sim, seed=1, **options_of(FACTORS, labels)) == []


@pytest.mark.parametrize("blocks", [96, 131])
def test_a_workgroup_does_nothing_for_a_task_past_the_last(blocks):
    """Of the 132 projection tasks: each workgroup has two turns, and some have none in the second."""
    case = mini_case("m1a", timeline=True, tokens=2, nblocks=1, blocks=blocks)
    buffers = Buffers.of(M1A, case.key, case.ranks[0])
    simulated(buffers)
    twice = buffers.stamps()[case.key.geometry.na :, M1A.stamps.index("second_proj")] != 0
    second = 132 - case.key.gemv_ctas
    assert 0 < second < len(twice) and twice[:second].all() and not twice[second:].any()


def test_a_stamp_of_every_stage_is_written_and_a_skipped_one_is_zero():
    case = mini_case("m1a", timeline=True, **SMALL)
    buffers = Buffers.of(M1A, case.key, case.ranks[0])
    simulated(buffers)
    seen = [{point for point, time in zip(M1A.stamps, row, strict=True) if time} for row in buffers.stamps()]
    assert seen[0] == {"start", "slice", "gate", "mix", "norm", "unpack"}
    assert seen[-1] == {"start", "first_proj", "second_proj", "q_b", "w_uk", "unpack"}
    first = case.key.geometry.na + 8
    assert ["q_b" in points for points in seen] == [cta >= first for cta in range(len(seen))]


# -- several ranks -----------------------------------------------------------------------------------------------------


def micro_case(**options):
    """Smaller than mini, and CTAs have several tasks of q_b."""
    geometry = replace(Geometry.mini(), name="micro", hidden=1024, heads=1, q_lora=512, blocks=16)
    return k3lab.make_case("m1a", geometry=geometry, **options)


def joined(cases, uses, use=None, dumps=False):
    """Launches in a row on every rank, on scratch and peer buffers they share; launch i is use i of its epoch's."""
    key, steps = cases[0].key, []
    buffers = [peers.PeerBuffer.of(M1A, key, most_tokens=key.tokens + 3) for _ in cases[0].ranks]
    for i, case in enumerate(cases):
        ranks = [Buffers.of(M1A, replace(key, dumps=dumps), tensors) for tensors in case.ranks]
        for rank, held in enumerate(ranks):
            held.tensors["scratch"] = steps[0][rank].tensors["scratch"] if steps else held.tensors["scratch"]
            held.tensors["epoch"].fill_(1 + i // uses)
            held.numbers["slot"] = i % uses
        peers.join(ranks, buffers, *((uses, i % uses) if use is None else use))
        steps.append(ranks)
    return steps


def gather_faults(sim=None, **options):
    """Where any rank of one launch differs from its twin."""
    case = micro_case(**options)
    (ranks,) = joined([case], 1, dumps=True)
    simulated_chain([ranks], sim)
    twin = k3lab.run("m1a", case)
    got = peers.exposed(ranks)
    missing = [f"missing: {name}" for name in twin.values if name not in got[0]]
    return missing + [line for rank, found in enumerate(got) for line in differences(found, twin.ranks[rank])]


@pytest.mark.parametrize("q_heads", [0, 3, 4])
def test_two_ranks_gather_all_heads_and_pads_repeat_the_first(q_heads):
    assert gather_faults(Options(**DETECTORS), ranks=2, q_heads=q_heads, **SMALL) == []


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("pads", [0, 3])
def test_more_ranks_gather_all_heads(ranks, pads):
    assert gather_faults(ranks=ranks, q_heads=ranks + pads, tokens=5, nblocks=1) == []


@pytest.mark.parametrize("stage", ["qb", "uk", "unpack"])
def test_each_stage_on_its_own_beyond_one_rank(stage):
    case = micro_case(ranks=2, q_heads=3, **SMALL)
    ranks = [Buffers.of(M1A, replace(case.key, dumps=True), tensors, {stage}) for tensors in case.ranks]
    peers.join(ranks)
    twin = k3lab.run("m1a", case).ranks
    peers.fill(ranks, [filled(M1A, {stage}, values) for values in twin])
    simulated_chain([ranks], Options(**DETECTORS))
    for got, values in zip(peers.exposed(ranks), twin, strict=True):
        assert got and differences(got, values) == []


def held_in_unpack(case):
    """Rank 0 goes on from its first poll of QG only when nothing else can."""
    graph = decode(lowered(M1A, case.key), M1A.published).graph
    place = next(i for i, block in enumerate(graph.blocks) if any("unpack" in str(op.loc) for op in block.ops))
    held = frozenset((0, cta) for cta in range(case.key.geometry.blocks))
    return Options(hold=held, hold_from=place, **DETECTORS)


@pytest.mark.parametrize("uses", [1, pytest.param(2, marks=SLOW), pytest.param(3, marks=SLOW)])
def test_launches_in_a_row_take_the_halves_in_turn(uses):
    cases = [micro_case(seed=seed, ranks=2, tokens=1, nblocks=0) for seed in range(3)]
    steps = joined(cases, uses)
    simulated_chain(steps, held_in_unpack(cases[0]))
    for step, case in zip(steps, cases, strict=True):
        for buffers, values in zip(step, k3lab.run("m1a", case).ranks, strict=True):
            assert differences({"q_out": loaded(buffers.tensors["q_out"], "fp8_e4m3")}, values) == []


def test_a_half_used_again_by_the_next_launch_hangs():
    """Both launches of an epoch say that they are the only one; the default order of events does not show it."""
    cases = [micro_case(seed=seed, ranks=2, tokens=1, nblocks=0) for seed in range(2)]
    with pytest.raises(SimFault, match="deadlock"):
        simulated_chain(joined(cases, 2, use=(1, 0)), held_in_unpack(cases[0]))


# -- the real compiler, and full size ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize("tokens", [pytest.param(s, marks=[SLOW] * (s != 4)) for s in (1, 4, 8, 16, 64)])
def test_full_size_for_gfx950_spills_nothing_and_uses_its_instructions(tokens, ranks):
    isa = cached_isa(lowered(M1A, M1A.key(Geometry.k3(), tokens=tokens, nblocks=8, ranks=ranks)))
    taken = isa.resources[M1A.published]
    assert (taken.vgpr_spills, taken.sgpr_spills, taken.scratch) == (0, 0, 0)
    assert taken.blocks_per_cu == 1
    for name in ("v_mfma_scale_f32_16x16x128_f8f6f4", "v_cvt_scalef32_pk_fp4_bf16", "v_cvt_pk_fp8_f32"):
        assert name in isa.text
    assert ("sc0 sc1" in isa.text) == (ranks > 1)


@pytest.mark.full
@pytest.mark.parametrize("tokens", [pytest.param(s, marks=[SLOW] * (s != 4)) for s in (1, 4, 8, 16, 64)])
def test_full_size_equals_the_twin(tokens):
    case = k3lab.make_case("m1a", tokens=tokens, nblocks=8)
    assert differences(exposed(case), k3lab.run("m1a", case).values) == []


@pytest.mark.full
@pytest.mark.parametrize(("tokens", "knobs"), [(4, {"ahead": 3}), pytest.param(16, {"k_parts": 2}, marks=SLOW)])
def test_full_size_as_on_a_gpu_equals_the_twin(tokens, knobs):
    """With a CTA for each multiprocessor of an H200, M1a's deals as the tuner sets them."""
    some = {"tokens": tokens, "nblocks": 4, "ranks": 1, "gemv_all": True, "token_tile": tokens, "prefetch": 1, **knobs}
    case = k3lab.make_case("m1a", geometry=ON_A_GPU, **some, **spread(M1A.key(ON_A_GPU, **some)))
    assert differences(exposed(case), k3lab.run("m1a", case).values) == []


@pytest.mark.full
@pytest.mark.slow
def test_full_size_on_eight_ranks_equals_the_twin():
    case = k3lab.make_case("m1a", tokens=4, nblocks=8, ranks=8)
    run, twin = k3lab.run("m1a", case, backend="sim", dumps=True), k3lab.run("m1a", case)
    assert len(run.ranks) == 8
    for values, wanted in zip(run.ranks, twin.ranks, strict=True):
        assert set(values) == set(wanted) and differences(values, wanted) == []
