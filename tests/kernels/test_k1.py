"""K1's kernel in the simulator equals the kernel-order twin bit for bit, on everything it exposes.

Quick: a cover of all pairs of options at mini size, steps in a row, every detector and schedule, one launch of full
size. Slow: more distributions, full size at every S.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

import k3lab
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
    with_tensors,
)
from tests.kernels.k1_cases import FACTORS, MORE, RESTRIDES

CASES = pairwise(FACTORS)
LAST_EPOCH = 2**22
SCHEDULES = {
    "default": {},
    "random": {"schedule": "random", "seed": 1},
    "adversarial": {"schedule": "adversarial", "seed": 1},
    "relaxed": {"memory": "relaxed", "seed": 1},
    "relaxed-random": {"memory": "relaxed", "schedule": "random", "seed": 0},
}
SMALL = {"tokens": 4, "qlen": 2, "nblocks": 2}
SHARED = ({"prefetch": 1, "ahead": 1}, {"k_parts": 2, "at_once": 2}, {"k_parts": 2, "token_tile": 3, "prefetch": 1})


def k1_faults(sim=None, **options):
    restride = options.pop("restride", None)
    return faults("k1", sim, RESTRIDES.get(restride), **options)


@pytest.mark.parametrize("labels", CASES, ids="-".join)
def test_the_kernel_equals_the_twin(labels):
    assert k1_faults(seed=1, **options_of(FACTORS, labels)) == []


@pytest.mark.parametrize("values", MORE)
def test_the_kernel_equals_the_twin_on_more_values(values):
    assert k1_faults(values=values, tokens=6, qlen=2, nblocks=4, write_idx=5, seed=1) == []


def test_one_small_launch_equals_the_twin():
    assert k1_faults(**SMALL) == []


def test_many_tokens_more_than_a_tile_holds_and_a_ragged_last_one():
    """Two tiles of 16, the second with one token in it."""
    assert k1_faults(tokens=17, qlen=1, nblocks=2) == []


@pytest.mark.parametrize("kda0", [0, 31, 47])
def test_tasks_deals_start_at_any_cta_and_wrap_round(kda0):
    """128 tasks on 48 CTAs, so that some have three."""
    assert k1_faults(tokens=8, qlen=1, nblocks=1, kda0=kda0) == []


def test_zeros_tell_a_sum_from_zero_from_one_from_its_first_value():
    case = mini_case("k1", **SMALL, delta=False, values="normal")
    zeros = {name: torch.full_like(case.tensors[name], -0.0) for name in ("prefix", "blocks", "conv_w")}
    assert faults_of(with_tensors(case, **zeros)) == []


@pytest.mark.parametrize("values", ["adversarial", "ties"])
def test_another_order_of_a_long_sum_would_show(values):
    """Cancelling sums and hunted ties, and so many values that one ulp before a bf16 rounding turns some of them."""
    assert k1_faults(tokens=64, qlen=1, nblocks=1, values=values, seed=3) == []


def test_norm_weights_that_overflow_when_taken_first():
    """(o r) w is finite where r w is not."""
    case = mini_case("k1", **SMALL, values="normal", null="none")
    assert faults_of(with_tensors(case, on_w=torch.full_like(case.tensors["on_w"], 2.5e38))) == []


def test_a_slice_that_comes_last_is_waited_for_in_every_step():
    """CTA 1 goes on only when nothing else can, so its pairs of the step before lie there when others first look."""
    cases = [mini_case("k1", seed=seed, tokens=4, qlen=4, nblocks=2) for seed in range(2)]
    buffers = Buffers.of(cases[0].declaration, cases[0].key, cases[0].ranks[0])
    for step, case in enumerate(cases):
        for name, tensor in case.tensors.items():
            buffers.tensors[name].copy_(tensor)
        buffers.tensors["epoch"].fill_(1 + step)
        simulated(buffers, Options(hold=frozenset({1})))
        assert differences(buffers.exposed(), k3lab.run("k1", case).values) == []


def test_null_slots_of_every_kind_and_slot_zero_is_never_stored():
    """Conv slot, initial slot and a later target are null or not, each on its own."""
    kinds = list(product((False, True), repeat=3))
    case = mini_case("k1", tokens=3 * len(kinds), qlen=3, nblocks=1, null="none", values="normal")
    slots = case.tensors["st_idx"].clone()
    for request, kind in enumerate(kinds):
        for column, null in enumerate(kind):
            if null:
                slots[request, column] = (0, -1)[(request + column) % 2]
    for accepted in (1, 2):
        counts = torch.full_like(case.tensors["num_acc"], accepted)
        assert faults_of(with_tensors(case, st_idx=slots, num_acc=counts)) == []


@pytest.mark.parametrize("how", SCHEDULES)
def test_every_order_of_events_gives_the_same_bits_and_no_finding(how):
    assert k1_faults(Options(**SCHEDULES[how], **DETECTORS), **SMALL) == []


@pytest.mark.parametrize("how", SCHEDULES)
@pytest.mark.parametrize("knobs", SHARED, ids=str)
def test_where_all_multiply_no_detector_finds_anything(knobs, how):
    """Attention's LDS is taken over by rows, one part of these by the next."""
    assert k1_faults(Options(**SCHEDULES[how], **DETECTORS), gemv_all=True, **knobs, **SMALL) == []


@pytest.mark.parametrize("gate_local", [False, True])
@pytest.mark.parametrize("first", [1, LAST_EPOCH - 1])
def test_steps_in_a_row_take_no_stale_pair(first, gate_local):
    """Three epochs on one scratch that nobody clears, the tag's wrap among them; each step has other inputs."""
    cases = [mini_case("k1", seed=seed, gate_local=gate_local, **SMALL) for seed in range(3)]
    buffers = Buffers.of(cases[0].declaration, replace(cases[0].key, dumps=True), cases[0].ranks[0])
    for step, case in enumerate(cases):
        for name, tensor in case.tensors.items():
            buffers.tensors[name].copy_(tensor)
        buffers.tensors["epoch"].fill_(first + step)
        simulated(buffers, Options(schedule="random", seed=step))
        assert differences(buffers.exposed(), k3lab.run("k1", case).values) == []


def test_launches_of_one_step_have_tags_of_their_own():
    """Two launches of an epoch, slots 0 and 255, on one scratch."""
    for slot in (0, 255):
        case = mini_case("k1", seed=slot, **SMALL)
        buffers = Buffers.of(case.declaration, case.key, case.ranks[0])
        buffers.numbers["slot"] = slot
        simulated(buffers)
        assert differences(buffers.exposed(), k3lab.run("k1", case).values) == []


def test_bits_that_are_only_copied_keep_nan_payloads():
    """The conv window's carried entries never pass through a float type."""
    case = mini_case("k1", tokens=2, qlen=2, nblocks=1, null="none")
    payload = torch.tensor([0x7F81, -0x0002], dtype=torch.int16).view(torch.bfloat16)
    state = case.tensors["conv_state"].clone()
    slot, last = int(case.tensors["st_idx"][0, 0]), int(case.tensors["num_acc"][0]) - 1
    state[slot, :, last + 1 : last + 3] = payload
    case = replace(case, tensors={**case.tensors, "conv_state": state}, allow_nonfinite=True)
    buffers = Buffers.of(case.declaration, case.key, case.ranks[0])
    simulated(buffers)
    kept = buffers.tensors["conv_state"][slot, :, :2].view(torch.int16)
    assert torch.equal(kept, payload.view(torch.int16).expand_as(kept))


def test_a_stamp_of_every_stage_is_written_and_a_skipped_one_is_zero():
    case = mini_case("k1", timeline=True, **SMALL)
    buffers = Buffers.of(case.declaration, case.key, case.ranks[0])
    simulated(buffers)
    stamps, points = buffers.tensors["tl"], case.declaration.stamps
    attention, gemv = stamps[: case.key.geometry.na], stamps[case.key.geometry.na]
    assert (attention[:, [points.index(p) for p in ("slice", "gate", "mix")]] > 0).all()
    assert (attention[:, points.index("x_in_lds")] == 0).all()
    assert gemv[points.index("slice")] == 0 and gemv[points.index("first_task")] >= gemv[points.index("x_in_lds")] > 0


@pytest.mark.full
def test_full_size_equals_the_twin():
    case = k3lab.make_case("k1", tokens=4, qlen=4, nblocks=4)
    assert differences(exposed(case), k3lab.run("k1", case).values) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("tokens", "knobs"), [(4, {"ahead": 3}), pytest.param(16, {"k_parts": 2, "ahead": 3}, marks=pytest.mark.slow)]
)
def test_full_size_as_on_a_gpu_equals_the_twin(tokens, knobs):
    """With a CTA for each multiprocessor of an H200."""
    some = {"geometry": ON_A_GPU, "tokens": tokens, "qlen": 4, "nblocks": 4, "token_tile": tokens}
    case = k3lab.make_case("k1", gemv_all=True, prefetch=1, **knobs, **some)
    assert differences(exposed(case), k3lab.run("k1", case).values) == []


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "qlen"), [(1, 1), (8, 4), (16, 4), (64, 4), (64, 16)])
def test_full_size_equals_the_twin_at_every_s(tokens, qlen):
    case = k3lab.make_case("k1", tokens=tokens, qlen=qlen, nblocks=8, write_idx=8)
    assert differences(exposed(case), k3lab.run("k1", case).values) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("labels", CASES, ids="-".join)
def test_the_kernel_equals_the_twin_on_more_seeds(labels, seed):
    assert k1_faults(seed=seed, **options_of(FACTORS, labels)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("labels", "how"), under_orders(CASES, lambda labels: options_of(FACTORS, labels)["tokens"]))
def test_every_option_under_other_orders_of_events_and_no_finding(labels, how):
    seed = CASES.index(labels)
    assert k1_faults(Options(**ORDERS[how](seed), **DETECTORS), seed=1, **options_of(FACTORS, labels)) == []
