"""The torch baselines do the launches' work: held against the float64 oracle beside the twin in torch order."""

from __future__ import annotations

import pytest
import torch

import k3lab
from k3lab.bench.baselines import BASELINES, baseline, prepared
from k3lab.bench.check import MARGIN_DB, checked, reference, values_of
from k3lab.errors import BadInput

MINI = {"geometry": "mini", "nblocks": 2, "null": "none", "values": "outliers"}
CASES = {
    "k1 L2": ("k1", {"tokens": 4, "qlen": 2}),
    "k1 L1": ("k1", {"tokens": 3, "qlen": 1}),
    "k1 L4 no delta": ("k1", {"tokens": 4, "qlen": 4, "delta": False}),
    "k1 writes a block": ("k1", {"tokens": 2, "qlen": 2, "write_idx": 3}),
    "m1a": ("m1a", {"tokens": 4, "ranks": 1}),
    "m1a no blocks": ("m1a", {"tokens": 1, "ranks": 1, "nblocks": 0}),
    "m1a bf16": ("m1a", {"tokens": 2, "ranks": 1, "qbf16": True}),
    "k2a one rank": ("k2a", {"tokens": 4, "ranks": 1}),
    "k2a two ranks": ("k2a", {"tokens": 3, "ranks": 2}),
    "k2a restarts": ("k2a", {"tokens": 3, "ranks": 1, "reset": True}),
}
FULL = {"k1": {"tokens": 4, "qlen": 4}, "m1a": {"tokens": 4, "ranks": 1}, "k2a": {"tokens": 4, "ranks": 1}}


def case_of(name):
    launch, options = CASES[name]
    return k3lab.make_case(launch, **{**MINI, **options})


def against(case):
    """Oracle and twin; M1a's without the rounding of q_nope to MXFP4, which the baseline does not do either."""
    if case.launch != "m1a":
        return reference(case)
    with k3lab.probe(ablate="m1a.uk.q_nope"):
        return reference(case)


def stepped(case):
    """Outputs by name on each rank, after one step on copies of the case."""
    ranks = prepared(case, "cpu")
    made = baseline(case)(ranks)
    return [values_of(case, {**held, **new}) for held, new in zip(ranks, made, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_a_baseline_is_as_close_to_the_oracle_as_the_twin(name):
    case = case_of(name)
    found = checked(against(case), stepped(case))
    assert set(found.snr) >= set(case.declaration.outputs) - {"blocks"}
    assert found.fine, (found.snr, found.wanted)


@pytest.mark.full
@pytest.mark.parametrize("launch", FULL)
def test_at_full_size_too(launch):
    case = k3lab.make_case(launch, nblocks=4, null="none", **FULL[launch])
    found = checked(against(case), stepped(case))
    assert found.fine, (found.snr, found.wanted)


@pytest.mark.parametrize("name", ["k1 L2", "m1a", "k2a two ranks"])
def test_a_wrong_baseline_is_found(name):
    case = case_of(name)
    ranks = prepared(case, "cpu")
    for held in ranks:  # an RMS norm without its weight
        held["norm_w"] = torch.ones_like(held["norm_w"])
    made = baseline(case)(ranks)
    found = checked(against(case), [values_of(case, {**h, **n}) for h, n in zip(ranks, made, strict=True)])
    assert not found.fine


def test_the_prefix_is_the_twins_bit_for_bit():
    for name in ("k1 L2", "m1a"):
        case = case_of(name)
        twin = k3lab.run(case.launch, case, order="torch")
        assert torch.equal(stepped(case)[0]["prefix"], twin["prefix"])


def test_margin_is_what_twice_the_error_power_is():
    assert pytest.approx(3.0103, abs=1e-4) == MARGIN_DB


@pytest.mark.parametrize(("launch", "options"), [("k1", {"tokens": 6, "qlen": 2}), ("m1a", {"tokens": 4, "ranks": 1})])
def test_null_slots_are_refused(launch, options):
    case = k3lab.make_case(launch, geometry="mini", nblocks=2, null="mixed", **options)
    with pytest.raises(BadInput, match="null='none'"):
        prepared(case, "cpu")


def test_a_gather_is_refused():
    case = k3lab.make_case("m1a", geometry="mini", nblocks=2, tokens=2, ranks=2)
    with pytest.raises(BadInput, match="ranks of M1a's baseline"):
        prepared(case, "cpu")


@pytest.mark.parametrize("name", ["k1 L2", "m1a", "k2a two ranks"])
def test_a_baseline_is_one_graph_for_torch_compile(name):
    """Traced whole, without a break; compiled by the tracer's own eager backend the bits are the same."""
    case = case_of(name)
    eager = stepped(case)
    ranks = prepared(case, "cpu")
    step = BASELINES[case.launch].step
    compiled = torch.compile(lambda held: step(case.key, held), fullgraph=True, dynamic=False, backend="aot_eager")
    made = compiled(ranks)
    for held, new, wanted in zip(ranks, made, eager, strict=True):
        got = values_of(case, {**held, **new})
        assert all(torch.equal(got[name], wanted[name]) for name in wanted)
