"""The twins against the reference: an independent NumPy reading of the design, in float32, expression by expression.

bf16 outputs hide most orders of evaluation, so besides every exposed tensor the float32 value before every rounding
point is compared, bit for bit: -0.0 is not 0.0, a NaN equals a NaN. The quick list covers all pairs of distribution and
mode (`cover.py`), every null slot rule on its own, and the rows that tell a sum from 0.0 from one from its first value;
the slow one all pairs with all distributions, each special set in each tensor alone, other geometries and other MFMA
models.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

import k3lab
from k3lab import Case
from k3lab.cases.specials import SETS
from k3lab.hardware.mfma import MODELS
from k3lab.launches import LAUNCHES, get
from tests.cover import all_pairs, pairs_of
from tests.reference import cover
from tests.reference.compare import differs, faults, traces

QUICK_CASES = [(launch, labels) for launch in LAUNCHES for labels in cover.quick(launch)]
SLOW_CASES = [(launch, labels) for launch in LAUNCHES for labels in cover.slow(launch)]
SLOW_CASES += [("k1", ("specials:subnormals", "L2x3", "delta", "nb4", "default"))]
SMALL = {"k1": {"tokens": 6, "qlen": 2}, "m1a": {"tokens": 3, "ranks": 2}, "k2a": {"tokens": 3, "ranks": 2}}


def named(case: tuple[str, cover.Labels]) -> str:
    return "-".join([case[0], *case[1]])


def mini(launch: str, **options) -> Case:
    return k3lab.make_case(launch, geometry="mini", **options)


def with_tensors(case: Case, **tensors: torch.Tensor) -> Case:
    """`case` with some shared tensors replaced."""
    return replace(case, tensors={**case.tensors, **tensors})


@pytest.mark.parametrize(("launch", "labels"), QUICK_CASES, ids=[named(case) for case in QUICK_CASES])
def test_twin_equals_reference(launch, labels):
    assert faults(mini(launch, seed=1, **cover.options(launch, labels))) == []


@pytest.mark.parametrize("launch", LAUNCHES)
def test_the_quick_list_covers_every_pair(launch):
    levels = [list(level) for level in cover.factors(launch, cover.QUICK).values()]
    met = set().union(*(pairs_of(labels) for labels in cover.quick(launch)))
    assert all_pairs(levels) <= met
    assert {labels[0] for labels in cover.quick(launch)} == {*cover.QUICK, *cover.MORE}


class TestNullSlots:
    """A request for every way to make slots null, of three tokens each."""

    KEPT_OR_NULL = tuple(
        tuple(None if kept else (0, -3)[column % 2] for column, kept in enumerate(kind))
        for kind in product((True, False), repeat=3)
    )
    EVERY = tuple(product((None, 0, -3), repeat=3))

    def with_nulls(self, kinds: tuple[tuple[int | None, ...], ...], accepted: int) -> Case:
        """A kind says for each column of st_idx what null slot it holds; None keeps the one it has."""
        case = mini("k1", tokens=3 * len(kinds), qlen=3, nblocks=1, null="none")
        slots = case.tensors["st_idx"].clone()
        for request, kind in enumerate(kinds):
            for column, null in enumerate(kind):
                slots[request, column] = slots[request, column] if null is None else null
        counts = torch.full_like(case.tensors["num_acc"], accepted)
        return with_tensors(case, st_idx=slots, num_acc=counts)

    @pytest.mark.parametrize("accepted", [1, 2, 3])
    def test_k1_null_slots(self, accepted):
        assert faults(self.with_nulls(self.KEPT_OR_NULL, accepted)) == []

    @pytest.mark.slow
    @pytest.mark.parametrize("accepted", [1, 2, 3])
    def test_k1_every_combination_of_null_slots(self, accepted):
        assert faults(self.with_nulls(self.EVERY, accepted)) == []

    def test_k1_silenced_requests_give_a_signed_zero(self):
        case = self.with_nulls(self.KEPT_OR_NULL[:2], 2)
        on_w = -case.tensors["on_w"].abs()
        case = with_tensors(case, on_w=on_w, st_idx=torch.zeros_like(case.tensors["st_idx"]))
        core = traces(case)[0].exposed["core_out"]
        assert (core == 0).all() and np.signbit(core).all()
        assert faults(case) == []


class TestSignedZeros:
    """Where a sum starts shows only in sums of -0.0."""

    def all_negative_zero(self, launch: str, *names: str, **options) -> Case:
        case = mini(launch, values="normal", **options)
        zeros = {name: torch.full_like(case.tensors[name], -0.0) for name in names if name in case.tensors}
        return with_tensors(case, **zeros)

    def test_k1_mix_and_taps_start_from_zero(self):
        case = self.all_negative_zero("k1", "prefix", "delta", "blocks", tokens=6, qlen=3)
        taps = torch.full_like(case.tensors["conv_w"], -0.0)  # the projected values are +0.0, the older ones positive
        state = case.tensors["conv_state"].abs()
        case = with_tensors(case, conv_w=taps, conv_state=state)
        found = traces(case)[0]
        assert not np.signbit(found.points["mix.x"][0]).any() and not np.signbit(found.points["conv.out"][0]).any()
        assert np.signbit(found.exposed["prefix"]).all()
        assert faults(case) == []

    def test_m1a_mix_starts_from_zero(self):
        assert faults(self.all_negative_zero("m1a", "prefix", "delta", "blocks", tokens=2)) == []

    def test_k1_waves_start_from_zero(self):
        """Negative products that vanish leave -0.0 in every wave's accumulator; their sum is +0.0."""
        case = mini("k1", values="normal", tokens=4, delta=False)
        rows = {name: case.tensors[name].abs() for name in ("prefix", "blocks")}
        tiny = {name: torch.full_like(case.tensors[name], 2.0**-130) for name in ("in_nw", "w_in")}
        case = with_tensors(case, **rows, in_nw=tiny["in_nw"], w_in=-tiny["w_in"])
        proj = traces(case)[0].points["gemv.proj"][0]
        assert (proj == 0).all() and not np.signbit(proj).any()
        assert faults(case) == []

    @pytest.mark.parametrize("reset", [False, True])
    def test_k2a_ranks_start_from_the_first(self, reset):
        """Partials too small for bf16 become -0.0 on every rank, and so does their sum."""
        case = mini("k2a", tokens=2, ranks=2, reset=reset, values="normal")
        own = [
            {"core": torch.full_like(rank["core"], 2.0**-70), "w_o": torch.full_like(rank["w_o"], -(2.0**-75))}
            for rank in case.per_rank
        ]
        case = replace(case, per_rank=own)
        delta = traces(case)[0].points["reduce.delta"][0]
        assert (delta == 0).all() and np.signbit(delta).all()
        assert faults(case) == []


def test_k1_the_product_of_the_key_weights_comes_first():
    """Three bf16 factors fit float32's 24 bits, so their order shows only where the product of two is subnormal."""
    case = mini("k1", tokens=4, values="normal")
    weights = {name: torch.full_like(case.tensors[name], 2.0**-71 * (1 + 2.0**-7)) for name in ("ares_nw", "ares_qk")}
    assert faults(with_tensors(case, **weights)) == []


def test_k2a_ranks_of_unlike_sizes_are_summed_in_order():
    """Eight bf16 partials of one size have an exact sum in any order; these are 8 times larger from rank to rank."""
    case = mini("k2a", tokens=2, ranks=8, values="normal")
    own = [{**rank, "core": rank["core"] * 8.0**number} for number, rank in enumerate(case.per_rank)]
    assert faults(replace(case, per_rank=own)) == []


def test_k1_carries_nan_payloads():
    """The conv state's carried entries are copies; a signalling NaN with its payload passes."""
    case = mini("k1", tokens=12, qlen=3, values="specials:nans:conv_state", seed=2)
    trace = traces(case)[0]
    state = trace.exposed["conv_state"]
    quiet = state.view(np.uint32) & np.uint32(0x00400000) != 0
    assert (np.isnan(state) & ~quiet & trace.copies["conv_state"]).any()
    assert faults(case) == []


def test_m1a_an_infinite_weight_in_the_last_chunk_poisons_through_zero_activations():
    """K 1280 is 10 chunks on 8 waves: six waves read the last chunk once more, times zero."""
    case = mini("m1a", tokens=3, values="normal")
    w_qb = case.tensors["w_qb"].clone()
    w_qb[3, -1] = float("inf")
    case = replace(with_tensors(case, w_qb=w_qb), allow_nonfinite=True)
    assert np.isnan(traces(case)[0].exposed["QN"][:, 0, 3]).all()
    assert faults(case) == []


def test_m1a_slot_0_is_a_slot_and_minus_1_is_none():
    case = mini("m1a", tokens=3)
    assert faults(with_tensors(case, slots=torch.tensor([0, -1, 17]))) == []


def test_the_comparison_tells_signed_zeros_and_payloads_apart():
    one, other = np.float32([0.0, np.nan, 1.0]), np.float32([-0.0, np.nan, 1.0])
    other.view(np.uint32)[1] ^= 1
    assert differs(one, other).tolist() == [True, False, False]
    assert differs(one, other, np.array([True, True, True])).tolist() == [True, True, False]


@pytest.mark.full
@pytest.mark.parametrize("launch", LAUNCHES)
def test_full_size_twin_equals_reference(launch):
    assert faults(k3lab.make_case(launch, tokens=4, seed=1)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("launch", "labels"), SLOW_CASES, ids=[named(case) for case in SLOW_CASES])
def test_every_pair_with_every_distribution(launch, labels):
    assert faults(mini(launch, seed=2, **cover.options(launch, labels))) == []


def alone() -> list[tuple[str, str]]:
    """Every float tensor of every launch with every special set."""
    floats = [(launch, d.name) for launch in LAUNCHES for d in get(launch).inputs if d.dtype in ("bf16", "fp32")]
    return [(launch, f"specials:{name}:{tensor}") for launch, tensor in floats for name in SETS]


@pytest.mark.slow
@pytest.mark.parametrize(("launch", "values"), alone())
def test_each_special_set_in_each_tensor_alone(launch, values):
    assert faults(mini(launch, values=values, seed=2, **SMALL[launch])) == []


@pytest.mark.slow
@pytest.mark.parametrize("values", ["outliers", "adversarial", "specials"])
@pytest.mark.parametrize(
    "geometry",
    [
        k3lab.Geometry("three heads", hidden=1024, heads=3, tp=2, q_lora=512, kv_lora=512, blocks=20),
        k3lab.Geometry("groups of three", hidden=3072, heads=5, tp=8, q_lora=768, kv_lora=512, blocks=48),
        k3lab.Geometry("one head", hidden=1024, heads=1, tp=1, q_lora=1024, kv_lora=1024, blocks=20),
    ],
    ids=lambda geometry: geometry.name,
)
@pytest.mark.parametrize("launch", LAUNCHES)
def test_other_geometries(launch, geometry, values):
    assert faults(k3lab.make_case(launch, geometry=geometry, values=values, **SMALL[launch])) == []


@pytest.mark.slow
@pytest.mark.parametrize("values", ["outliers", "adversarial"])
@pytest.mark.parametrize("model", sorted(set(MODELS) - {"fused"}))
@pytest.mark.parametrize("launch", LAUNCHES)
def test_other_mfma_models(launch, model, values):
    assert faults(mini(launch, values=values, **SMALL[launch]), model) == []


@pytest.mark.slow
@pytest.mark.parametrize("qlen", [5, 8, 16])
def test_k1_long_requests(qlen):
    assert faults(mini("k1", tokens=4 * qlen, qlen=qlen, values="adversarial")) == []
