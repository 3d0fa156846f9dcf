"""Which CTA writes what, against the addresses that every wave of the simulator stored to."""

from __future__ import annotations

import pytest
import torch

import k3lab
from k3lab.launches import LAUNCHES
from k3lab.sim.options import Options
from k3lab.ui import owners
from k3lab.ui.owners import Places
from tests.ui.stores import NOBODY, Stores

pytest.importorskip("flydsl", reason="needs flydsl to lower the kernels")

CARRIED = {"conv_state"}
"""Beside what is of a token, a slot's older entries are written again."""


@pytest.mark.parametrize(
    ("launch", "how"),
    [
        ("k1", {"qlen": 2}),
        ("k1", {"qlen": 4, "kda0": 5, "write_idx": 1}),
        ("m1a", {}),
        ("m1a", {"ranks": 2, "q_heads": 8}),
        ("m1a", {"qb0": 21, "uk_ctas": 5}),
        ("k2a", {"ranks": 2}),
        ("k1", {"qlen": 2, "gemv_all": True, "k_parts": 2}),
        ("m1a", {"gemv_all": True, "qb0": 21}),
        ("k2a", {"ranks": 2, "gemv_all": True, "at_once": 2}),
    ],
    ids=str,
)
def test_the_rules_name_the_workgroup_that_stored(launch, how):
    case = k3lab.make_case(launch, geometry="mini", tokens=4, nblocks=1, seed=0, **how)
    rank = len(case.ranks) - 1
    stores = Stores(rank=rank)
    run = k3lab.run(launch, case, backend="sim", dumps=True, sim=Options(trace=stores))
    checked = 0
    for name, value in run.ranks[rank].items():
        stored = stores.of(run, name)
        if stored is None:  # AR and QG lie in peer buffers
            assert name in ("AR", "QG")
            continue
        places = Places(run.case, name, value.shape, rank)
        tokens, ctas = places.tokens.expand(value.shape), places.ctas()
        mine = tokens != NOBODY
        if name == "blocks":  # one block is written
            mine = torch.zeros_like(mine)
            mine[:, case.key.write_idx] = True
        assert bool((ctas == stored).any(0)[mine].all()), name
        if name not in CARRIED:
            assert bool((stored[~mine] == NOBODY).all()), name
        checked += 1
    assert checked >= len(run.ranks[rank]) - 1


def test_a_mask_is_one_token_of_one_cta(walk):
    shape = walk.twin["core_out"].shape
    places = Places(walk.case, "core_out", shape)
    writers = places.writers(1)
    assert len(writers) == 16  # 2 heads of 8 chunks
    masks = [places.mask(1, cta) for cta in writers]
    assert [int(mask.sum()) for mask in masks] == [16] * 16
    assert torch.equal(torch.stack(masks).sum(0).bool(), places.mask(1)) and int(places.mask(1).sum()) == shape[1]
    assert int(places.mask(1, 999).sum()) == 0


def test_null_slots_have_no_token():
    case = k3lab.make_case("k1", geometry="mini", tokens=4, qlen=2, nblocks=1, seed=0)
    for inputs in case.ranks:
        inputs["st_idx"][1] = 0
    twin = k3lab.run("k1", case)
    for name in ("conv_state", "rstate"):
        places = Places(case, name, twin[name].shape)
        assert places.mask(0).any() and not places.mask(2).any() and places.writers(2) == []


def test_constants_that_need_flydsl_are_the_kernels():
    from k3lab.stages.gemv.product import TILE
    from k3lab.stages.mla.role import HEAD_TASKS, NOPE_TASKS

    assert (owners.UK_TILE, owners.HEAD_TASKS, owners.NOPE_TASKS) == (TILE, HEAD_TASKS, NOPE_TASKS)


@pytest.mark.parametrize("name", LAUNCHES)
def test_every_exposed_tensor_has_a_rule(name):
    launch = LAUNCHES[name]
    for exposed in launch.exposed:
        dims = owners.dims_of(launch, exposed).split()
        assert exposed in owners.RULES[name] or {"NA", "HIDDEN"} & set(dims), exposed
        assert {"S", "R"} & set(dims) or exposed in owners.SLOT_TOKENS, exposed
