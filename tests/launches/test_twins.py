"""Whole launches as twins: against the oracle, across orders, ranks and modes, on every distribution."""

from __future__ import annotations

import pytest
import torch

import k3lab
from k3lab.analysis.compare import difference
from k3lab.analysis.ends import run_error, tensor_names
from k3lab.cases import DISTRIBUTIONS
from k3lab.errors import BackendUnavailable, BadInput
from k3lab.hardware.mfma import MODELS
from k3lab.launches import LAUNCHES

MODES = {
    "k1": {"tokens": 12, "qlen": 3},
    "k1 no delta": {"delta": False},
    "k1 write": {"write_idx": 5},
    "k1 one block": {"nblocks": 1, "tokens": 3, "qlen": 1},
    "m1a": {},
    "m1a bf16": {"qbf16": True},
    "m1a ranks": {"ranks": 2},
    "m1a pads": {"ranks": 2, "q_heads": 7},
    "m1a ranks 8": {"ranks": 8, "q_heads": 20},
    "k2a": {"ranks": 2},
    "k2a two shots": {"ranks": 8, "tokens": 9},
    "k2a reset": {"ranks": 2, "reset": True},
    "k2a sentinel": {"ranks": 2, "sentinel": True, "shots": "two"},
}


def case_for(mode: str, **more) -> k3lab.Case:
    return k3lab.make_case(mode.split()[0], geometry="mini", **{**MODES[mode], **more})


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return difference(a, b, "fp32").differ == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", ["kernel", "torch"])
def test_with_every_point_ablated_twin_and_oracle_agree_to_fp32_accuracy(mode, order):
    """Worst seen 2.6e-7 at mini size, 4.9e-7 at full size (core_out): a dozen fp32 operations in a row, half of 2^-23
    each at most, after sums that add their own. 2^-20 is 16 such steps."""
    case = case_for(mode)
    oracle = k3lab.run(case.launch, case, backend="oracle")
    with k3lab.probe(ablate=["*", "m1a.attention.*"]):
        run = k3lab.run(case.launch, case, order=order)
        for name in tensor_names(run):
            assert run_error(run, oracle, name).relative_rms < 2.0**-20, name


@pytest.mark.parametrize("mode", MODES)
def test_every_declared_point_is_passed_and_rounds_within_half_an_ulp(mode):
    case = case_for(mode)
    with k3lab.probe(record="*") as probe:
        run = k3lab.run(case.launch, case)
    assert set(probe.stats) == set(run.points) == set(run.launch.points_for(case.key))
    assert all(stats.max_ulp <= 0.5 for stats in probe.stats.values())


@pytest.mark.parametrize("mode", MODES)
def test_a_run_leaves_its_case_alone_and_repeats_itself(mode):
    case = case_for(mode)
    before = case.hash
    first, second = (k3lab.run(case.launch, case) for _ in range(2))
    again = k3lab.Case(case.launch, case.key, case.tensors, per_rank=case.per_rank)
    assert again.hash == before
    for name in first.values:
        for rank, value in first.distinct(name):
            assert same(value, second.ranks[rank][name])


@pytest.mark.parametrize("values", DISTRIBUTIONS)
@pytest.mark.parametrize("launch", LAUNCHES)
def test_every_distribution_runs_in_every_order(launch, values):
    options = {"k1": {"tokens": 10, "qlen": 2}, "m1a": {"ranks": 2}, "k2a": {"ranks": 2}}[launch]
    case = k3lab.make_case(launch, geometry="mini", values=values, **options)
    kernel = k3lab.run(launch, case)
    plain = k3lab.run(launch, case, order="torch")
    k3lab.run(launch, case, backend="oracle")
    assert kernel.values.keys() == plain.values.keys()
    if not case.allow_nonfinite and values != "huge":
        assert all(value.isfinite().all() for value in kernel.values.values())


@pytest.mark.parametrize("model", sorted(set(MODELS) - {"fused"}))
def test_another_mfma_model_shows_where_products_cancel(model):
    """Where products cancel, an MFMA's inner order shows even in bf16; nothing before the first product moves."""
    case = case_for("k1", values="adversarial")
    fused, other = k3lab.run("k1", case), k3lab.run("k1", case, mfma=model)
    assert same(fused["x"], other["x"])
    found = difference(other["PROJ"], fused["PROJ"], "bf16")
    assert found.differ > 0 and found.relative_rms < 0.1


@pytest.mark.parametrize("ranks", [2, 8])
def test_k2a_is_the_same_on_every_rank_and_in_every_mode(ranks):
    runs = []
    for mode in ({"shots": "one"}, {"shots": "two"}, {"shots": "two", "sentinel": True}, {"sentinel": True}):
        case = k3lab.make_case("k2a", geometry="mini", ranks=ranks, **mode)
        runs.append(k3lab.run("k2a", case))
    for name in ("delta", "prefix", "x_out"):
        assert all(same(values[name], runs[0][name]) for run in runs for values in run.ranks)


def test_m1a_gathers_what_single_ranks_make():
    """q_out of two ranks is each rank's own query, side by side: runs of one rank on each rank's tensors."""
    case = k3lab.make_case("m1a", geometry="mini", ranks=2)
    gathered = k3lab.run("m1a", case)["q_out"]
    key = k3lab.make_case("m1a", geometry="mini").key
    for rank, tensors in enumerate(case.ranks):
        alone = k3lab.run("m1a", k3lab.Case("m1a", key, tensors))["q_out"]
        assert same(alone, gathered[:, 2 * rank : 2 * rank + 2])


def test_knobs_change_nothing():
    base = case_for("k1")
    want = k3lab.run("k1", base)
    for knob in ({"token_tile": 2}, {"prefetch": 1}, {"kda0": 3}, {"gate_local": True}):
        got = k3lab.run("k1", case_for("k1", **knob))
        assert all(same(got[name], want[name]) for name in want.values)
    base = case_for("m1a")
    want = k3lab.run("m1a", base)
    for knob in ({"qb0": 3}, {"uk_ctas": 1}):
        got = k3lab.run("m1a", case_for("m1a", **knob))
        assert all(same(got[name], want[name]) for name in want.values)


@pytest.mark.parametrize("tokens", [1, 65])
def test_twins_take_any_number_of_tokens(tokens):
    for launch, options in (("k1", {"qlen": 1}), ("m1a", {}), ("k2a", {"ranks": 2})):
        case = k3lab.make_case(launch, geometry="mini", tokens=tokens, **options)
        assert k3lab.run(launch, case)["prefix"].shape[0] == tokens


@pytest.mark.parametrize(
    ("launch", "swap"),
    [
        ("k1", {"k1.gates.beta": "bf16"}),
        ("k1", {"k1.mix.mixed": "bf16", "k1.mix.normed": "bf16"}),
        ("k1", {"k1.slice.source": "unrounded"}),
        ("k1", {"hw.exp2": "ulp:+1"}),
        ("m1a", {"m1a.uk.q_nope": "mxfp4:floor"}),
        ("m1a", {"m1a.uk.w_k": "unquantised"}),
        ("m1a", {"m1a.norm.*_entry": "fp8_e5m2"}),
        ("k2a", {"k2a.slice.source": "unrounded"}),
    ],
)
def test_an_option_or_swap_changes_the_end_result(launch, swap):
    case = k3lab.make_case(launch, geometry="mini", **({"ranks": 2} if launch == "k2a" else {}))
    plain = k3lab.run(launch, case)
    with k3lab.probe(swap=swap):
        swapped = k3lab.run(launch, case)
    assert any(not same(plain[name], swapped[name]) for name in plain.launch.end_tensors if name in plain.values)


def test_an_inject_of_one_ulp_is_felt_downstream():
    case = case_for("k1")
    plain = k3lab.run("k1", case)
    with k3lab.probe(inject={"k1.conv.out": ((0, 5), +1)}):
        moved = k3lab.run("k1", case)
    before, after = (run.points["k1.conv.out"][0].after for run in (plain, moved))
    assert (before != after).nonzero().tolist() == [[0, 5]]
    assert not same(plain["qn"], moved["qn"]) and same(plain["rstate"], moved["rstate"])  # channel 5 is one of q's


def test_provenance_names_the_probes_that_changed_values():
    case = case_for("k1")
    assert k3lab.run("k1", case).provenance["probes"] == []
    with k3lab.probe(record="k1.*"), k3lab.probe(swap={"k1.mix.x": "fp8"}, inject={"k1.conv.out": ((0, 5), 1)}):
        (changes,) = k3lab.run("k1", case).provenance["probes"]
    assert changes == {"ablate": [], "swap": {"k1.mix.x": "fp8"}, "inject": {"k1.conv.out": [[0, 5], 1]}}


class TestBadRequests:
    def test_a_budget_inside_a_probe_that_changes_values(self):
        with k3lab.probe(ablate="k1.*"), pytest.raises(BadInput, match="error budget: expected no probe"):
            k3lab.error_budget("k1", case_for("k1"))

    def test_no_case_at_all(self):
        with pytest.raises(BadInput, match="case: expected a k3lab.Case"):
            k3lab.run("k1", None)

    def test_unknown_names(self):
        case = case_for("k1")
        with pytest.raises(BadInput, match="launch: expected one of"):
            k3lab.run("k9", case)
        with pytest.raises(BadInput, match="case: expected inputs of m1a"):
            k3lab.run("m1a", case)
        with pytest.raises(BadInput, match="order: expected one of"):
            k3lab.run("k1", case, order="random")
        with pytest.raises(BadInput, match="MFMA model: expected one of"):
            k3lab.run("k1", case, mfma="cdna5")
        with pytest.raises(BackendUnavailable, match="backend: this version has"):
            k3lab.run("k1", case, backend="nosuch")
        with pytest.raises(BadInput, match="device: expected a torch device"):
            k3lab.run("k1", case, device="nosuch")
        with pytest.raises(BadInput, match="expected one of"):
            k3lab.run("k1", case)["nosuch"]

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
    def test_a_missing_gpu(self):
        with pytest.raises(BackendUnavailable, match="torch sees no GPU here"):
            k3lab.run("k1", case_for("k1"), device="cuda")

    def test_runs_of_different_cases_are_not_compared(self):
        one, other = (k3lab.run("k1", case_for("k1", seed=seed)) for seed in (0, 1))
        with pytest.raises(BadInput, match="a run of the same case"):
            k3lab.compare(one, other)


@pytest.mark.full
@pytest.mark.parametrize("order", ["kernel", "torch"])
@pytest.mark.parametrize("launch", LAUNCHES)
def test_full_size_ablated_agrees_with_the_oracle(launch, order):
    """Full K3 size at S = 4: worst seen 4.9e-7 (7.2e-7 in the decode attention); the bound is the mini test's."""
    case = k3lab.make_case(launch)
    oracle = k3lab.run(launch, case, backend="oracle")
    with k3lab.probe(ablate=["*", "m1a.attention.*"]):
        run = k3lab.run(launch, case, order=order)
        for name in tensor_names(run):
            assert run_error(run, oracle, name).relative_rms < 2.0**-20, name
