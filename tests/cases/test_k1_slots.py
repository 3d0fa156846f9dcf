"""K1's shapes, state slots and accepted counts."""

import pytest
import torch

from k3lab.cases import Case, make_case


def mini(**options) -> Case:
    return make_case("k1", **{"geometry": "mini", "values": "constant", **options})


def roles(case: Case) -> list[tuple[bool, bool, bool]]:
    """By request: is the conv slot null, the initial slot, and any target that is neither?"""
    slots, counts, told = case.tensors["st_idx"], case.tensors["num_acc"], []
    for row, count in zip(slots.tolist(), counts.tolist(), strict=True):
        initial = count - 1
        others = [slot for column, slot in enumerate(row) if column not in (0, initial)]
        told.append((row[0] <= 0, row[initial] <= 0, any(slot <= 0 for slot in others)))
    return told


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, 4),
        ({"nblocks": 0}, 1),
        ({"nblocks": 8}, 8),
        ({"nblocks": 2, "write_idx": 2}, 3),
        ({"nblocks": 2, "write_idx": 6}, 7),
    ],
)
def test_blocks_have_a_row_for_each_that_is_read_or_written(options, rows):
    case = mini(**options)
    assert case.tensors["blocks"].shape == (4, rows, 2048) and case.checked


def test_delta_is_there_only_with_the_option():
    assert "delta" in mini().tensors and "delta" not in mini(delta=False).tensors


def test_one_request_has_no_null_slot():
    for seed in range(8):
        assert (mini(seed=seed).tensors["st_idx"] > 0).all()


@pytest.mark.parametrize("requests", [3, 4, 5, 11])
@pytest.mark.parametrize("qlen", [3, 4, 8])
def test_null_slots_come_independently(requests, qlen):
    case = mini(tokens=requests * qlen, qlen=qlen)
    told = roles(case)
    assert told[:3] == [(False, False, True), (True, False, False), (False, True, False)]
    assert told[3:4] in ([], [(False, False, False)])
    slots = case.tensors["st_idx"]
    assert (slots == 0).any() and (slots < 0).any()
    assert case.checked


@pytest.mark.parametrize("qlen", [1, 2])
def test_null_slots_come_as_far_apart_as_short_requests_allow(qlen):
    case = mini(tokens=6 * qlen, qlen=qlen)
    told = roles(case)
    assert any(conv for conv, _, _ in told) and any(initial for _, initial, _ in told) and case.checked
    if qlen == 2:
        assert told[:3] == [(False, False, True), (True, False, False), (False, True, False)]


def test_null_none_has_no_null_slot():
    assert (mini(tokens=40, null="none").tensors["st_idx"] > 0).all()


@pytest.mark.parametrize("null", ["mixed", "none"])
def test_live_slots_are_distinct_and_shuffled(null):
    live = mini(tokens=64, null=null).tensors["st_idx"].flatten()
    live = live[live > 0]
    assert len(live.unique()) == len(live) and not torch.equal(live, live.sort().values)


def test_accepted_counts_vary_over_1_to_l():
    counts = mini(tokens=64).tensors["num_acc"]
    assert set(counts.tolist()) == {1, 2, 3, 4}
    assert {mini(seed=seed).tensors["num_acc"].item() for seed in range(20)} == {1, 2, 3, 4}


def test_number_of_slots_can_be_chosen():
    case = mini(slots=9)
    assert case.tensors["conv_state"].shape == (9, 768, 6) and case.tensors["rstate"].shape == (9, 2, 128, 128)
    assert mini().tensors["rstate"].shape[0] == 6
    assert mini(slots=5).checked


@pytest.mark.parametrize(("tokens", "qlen"), [(1, 1), (2, 1), (16, 16), (6, 3), (64, 16), (64, 1)])
def test_every_step_shape_passes_its_checks(tokens, qlen):
    case = mini(tokens=tokens, qlen=qlen)
    assert case.checked and case.tensors["conv_state"].shape[-1] == qlen + 2
