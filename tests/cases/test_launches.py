"""Cases of every launch: made, checked, run by the twins, saved and loaded, on one rank and on several."""

import pytest
import torch

from k3lab.arith import make
from k3lab.cases import DISTRIBUTIONS, Case, load, make_case, save
from k3lab.errors import BadInput
from k3lab.launches import LAUNCHES
from k3lab.launches.eager import run_twins

RANKS = {"k1": [None], "m1a": [1, 2], "k2a": [1, 2]}
EACH = pytest.mark.parametrize(("launch", "ranks"), [(n, r) for n in LAUNCHES for r in RANKS[n]])


def mini(launch: str, ranks: int | None, values: str = "outliers", **options) -> Case:
    several = {} if ranks is None else {"ranks": ranks}
    return make_case(launch, geometry="mini", values=values, **several, **options)


@EACH
@pytest.mark.parametrize("values", DISTRIBUTIONS)
def test_round_trip(launch, ranks, values, tmp_path):
    case = mini(launch, ranks, values)
    again = load(save(case, tmp_path / "case"))
    assert again.hash == case.hash == mini(launch, ranks, values).hash
    assert len(again.per_rank) == len(case.per_rank) == (ranks if ranks and ranks > 1 else 0)


@EACH
def test_twins_run_on_it(launch, ranks):
    case = mini(launch, ranks)
    assert case.checked
    made, _ = run_twins(case.declaration, case.key, case.ranks, make("torch", launch))
    assert all(value.isfinite().all() for values in made for value in values.values() if value.is_floating_point())


@EACH
def test_ties_are_hunted(launch, ranks):
    case = mini(launch, ranks, "ties")
    assert set(case.notes["ties"]) == {point for point, _ in case.declaration.tie_weights}
    assert all(hits > 20 for hits in case.notes["ties"].values())


def test_ranks_share_what_is_declared_shared_and_differ_elsewhere():
    case = mini("k2a", 2)
    one, two = case.ranks
    for decl in case.declaration.inputs_for(case.key):
        assert (one[decl.name] is two[decl.name]) != decl.per_rank
        assert decl.per_rank != torch.equal(one[decl.name], two[decl.name])
    alone = mini("k2a", 1).tensors
    assert all(torch.equal(alone[name], tensor) for name, tensor in one.items())


def test_ranks_that_do_not_fit_are_refused():
    case = mini("k2a", 2)
    args = (case.launch, case.key)
    moved = {**case.tensors, "core": case.per_rank[0]["core"]}
    stray = [{**case.per_rank[0], "prefix": case.tensors["prefix"]}, case.per_rank[1]]
    wide = [case.per_rank[0], {**case.per_rank[1], "core": torch.ones(3, 3)}]
    for tensors, per_rank, says in [
        (case.tensors, case.per_rank[:1], "ranks: expected 2 sets of per-rank tensors, got 1"),
        (moved, case.per_rank, "shared tensors: expected none that every rank has its own of, got .*core"),
        (case.tensors, stray, "rank 0: expected only tensors .*, got .*prefix"),
        (case.tensors, wide, "rank 1: core: expected dtype"),
    ]:
        with pytest.raises(BadInput, match=says):
            Case(*args, tensors, per_rank=per_rank).check()


def test_a_case_prints_what_it_holds():
    case = mini("m1a", 2)
    assert repr(case).startswith("Case(m1a, S=4, geometry=mini, values=outliers, seed=0, ")
    assert all(name in case._repr_html_() for name in case.ranks[0])
    assert case.describe()["hash"] == case.hash and case.declaration is LAUNCHES["m1a"]


def test_scale_rule_changes_the_quantised_weight_alone():
    even, ceil = mini("m1a", 1).tensors, mini("m1a", 1, scale_rule="ceil").tensors
    assert {name for name in even if not torch.equal(even[name], ceil[name])} == {"w_k", "w_k_scale"}
    with pytest.raises(BadInput, match="scale_rule: expected one of"):
        mini("m1a", 1, scale_rule="up")


@pytest.mark.parametrize(("name", "byte"), [("kv_cache", 0xFF), ("kv_cache", 0x7F), ("w_k_scale", 0xFF)])
def test_nan_bytes_are_refused(name, byte):
    case = mini("m1a", 1)
    bad = case.tensors[name].clone()
    bad[0, 3, 2] = byte
    with pytest.raises(BadInput, match=rf"{name}: expected finite values, got NaN \(byte 0x{byte:X}\) at \[0, 3, 2\]"):
        Case("m1a", case.key, {**case.tensors, name: bad}).check()


@EACH
def test_huge_values_stay_finite(launch, ranks):
    case = mini(launch, ranks, "huge")
    made, _ = run_twins(case.declaration, case.key, case.ranks, make("kernel", launch))
    assert all(value.isfinite().all() for values in made for value in values.values() if value.is_floating_point())
