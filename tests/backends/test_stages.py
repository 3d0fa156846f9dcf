"""Stage mode: a stage's kernel alone, on the twin's values, gives the twin's bits in everything it writes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import k3lab
from k3lab import launches
from k3lab.backends import Session
from k3lab.backends.session import filled
from k3lab.errors import BadInput
from k3lab.kernels.host import Buffers, puts, written

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

STAGES = [stage.name for stage in launches.get("k1").stages]
KEYS = [
    {"tokens": 4, "qlen": 1},
    {"tokens": 4, "qlen": 4, "write_idx": 5, "values": "specials"},
    {"tokens": 16, "qlen": 16, "delta": False, "null": "none", "values": "ties"},
]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: "-".join(map(str, key.values())))
@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_of_k1_alone_is_its_twin(bench, stage, key):
    run = k3lab.run_stage(f"k1.{stage}", bench.case(**key), backend="sim")
    twin = k3lab.run_stage(f"k1.{stage}", bench.case(**key))
    assert set(run.values) == set(twin.values) and run.stages == twin.stages == (stage,)
    assert bench.differing(run, bench.twin(**key)) == {}
    assert f"stages={stage}" in repr(run)


@pytest.mark.parametrize("stages", [("slice", "gate"), ("mix", "gemv"), ("conv", "norm"), ("gates", "recur"), STAGES])
def test_any_subset_of_stages(bench, stages):
    run = k3lab.run_stage("k1", bench.case(values="specials"), backend="sim", stages=stages)
    assert bench.differing(run, bench.twin(values="specials")) == {}
    assert set(run.values) == {name for stage in stages for name in bench.case().declaration.stage(stage).writes} - {
        "XRDY",
        "blocks",
    }


@pytest.mark.parametrize("launch", ["m1a", "k2a"])
def test_stages_of_two_ranks(bench, launch):
    """The stage that gathers finds its regions in the peer buffers filled, the one that makes the words fills them."""
    gatherer = next(stage.name for stage in launches.get(launch).stages if stage.gathers)
    run = k3lab.run_stage(f"{launch}.{gatherer}", bench.case(launch, ranks=2), backend="sim")
    assert bench.differing(run, bench.twin(launch, ranks=2)) == {} and len(run.ranks) == 2


def test_a_gate_that_stays_in_its_cta_writes_nothing(bench):
    run = k3lab.run_stage("k1.gate", bench.case(gate_local=True), backend="sim")
    assert not run.values
    both = k3lab.run_stage("k1.mix", bench.case(gate_local=True), backend="sim", stages=["gate"])
    assert set(both.values) == {"MSQ", "x"} and bench.differing(both, bench.twin(gate_local=True)) == {}


def test_a_stage_of_the_twin_has_its_writes_and_points(bench):
    run = k3lab.run_stage("k1.conv", bench.case())
    assert set(run.values) == {"QK", "v", "conv_state"} and set(run.points) == {"k1.conv.out", "k1.conv.state"}
    assert all(torch.equal(run[name], bench.twin()[name]) for name in run.values)
    assert k3lab.run_stage("k1.conv", bench.case(), backend="oracle")["v"].dtype == torch.float64


def test_the_stage_reads_what_it_is_given_and_not_what_it_could_make(bench):
    """With PART moved by hand, gate alone follows it: the values are its input, not a by-product."""
    case, twin = bench.case(), bench.twin()
    moved = {**twin.values, "PART": twin.values["PART"] * 2}
    run = Session(case, "sim", stages=["gate"]).step(twin=[moved])
    assert "WGT" in bench.differing(run, twin)


def test_what_a_stage_writes_is_not_filled_before(bench):
    """Else a store that is left out would not show."""
    declared, twin = bench.case().declaration, bench.twin().values
    for stage in declared.stages:
        values = filled(declared, {stage.name}, twin)
        assert not set(values) & set(stage.writes), stage.name


def test_tensors_changed_in_place_start_as_the_first_reader_finds_them(bench):
    """No launch has a stage that reads what an earlier one changed in place; a made-up one does."""
    declared = bench.case().declaration
    norm = declared.stage("norm")
    reader = replace(norm, reads=(*norm.reads, "prefix", "conv_state"))
    made_up = replace(declared, stages=(*declared.stages[:-1], reader))
    twin = bench.twin().values
    assert {"prefix", "conv_state"} <= set(filled(made_up, {"norm"}, twin))
    assert "prefix" not in filled(made_up, {"slice", "norm"}, twin)
    assert not {"prefix", "conv_state", "rstate"} & set(filled(declared, {"recur"}, twin))
    buffers = Buffers.of(declared, bench.case().key, bench.case().ranks[0], frozenset({"norm"}))
    buffers.fill({"prefix": twin["prefix"], "conv_state": twin["conv_state"]})
    assert torch.equal(buffers.tensors["prefix"].float(), twin["prefix"])


@pytest.mark.parametrize("launch", launches.LAUNCHES)
def test_a_tensor_is_changed_in_place_by_one_stage_at_most(launch):
    """What lets a build take a changed tensor from the end of the twin's run."""
    declared = launches.get(launch)
    names = [name for stage in declared.stages for name in stage.writes]
    assert len(names) == len(set(names))


def test_words_in_peer_buffers_are_put_by_those_who_make_them():
    k2a = launches.get("k2a")
    assert "AR" in puts(k2a, k2a.stage("o")) and "AR" not in puts(k2a, k2a.stage("reduce"))
    key = k2a.key(k3lab.Geometry.mini(), tokens=4, nblocks=4, ranks=2, sentinel=True)
    assert "AR" not in written(k2a, key, {"o"}) and "AR" in written(k2a, key, {"reduce"})


@pytest.mark.parametrize(
    ("stage", "options", "says"),
    [
        ("k1.nosuch", {}, "stage: expected one of"),
        ("k1", {}, "as in 'k1.STAGE', got 'k1'"),
        ("k9.conv", {}, "launch: expected one of"),
        ("k1.conv", {"stages": ["qb"]}, "stage: expected one of"),
        ("k1.conv", {"backend": "sim", "order": "torch"}, "order: expected 'kernel'"),
    ],
)
def test_what_is_no_stage_is_refused(bench, stage, options, says):
    with pytest.raises(BadInput, match=says):
        k3lab.run_stage(stage, bench.case(), **options)
