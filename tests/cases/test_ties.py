"""The tie hunt: weights for which bf16 shows the order of a sum."""

import numpy as np
import torch

from k3lab.arith import make
from k3lab.cases import Case, make_case
from k3lab.cases.ties import MANTISSAS, Backwards, InOrder, choose_weights, hunt_ties
from k3lab.formats import bf16_bits, bf16_values
from k3lab.launches.eager import run_twins


def x_of(case: Case, arith) -> torch.Tensor:
    return run_twins(case.declaration, case.key, case.ranks, arith)[0][0]["x"]


def test_orders_that_ordinary_weights_hide_show_in_mix_x():
    case = make_case("k1", geometry="mini", values="ties")
    kernel = x_of(case, make("kernel", "k1"))
    rivals = [x_of(case, order("k1")) for order in (InOrder, Backwards)]
    differing = sum(int((kernel != rival).sum()) for rival in rivals)
    assert differing == case.notes["ties"]["mix.x"] > 50
    assert all((kernel != rival).any() for rival in rivals)
    assert (kernel != x_of(case, make("torch", "k1"))).any()


def test_hunted_weights_are_bf16_in_1_to_2_and_others_stay():
    case = make_case("k1", geometry="mini", values="normal")
    chosen, hits = hunt_ties(case.declaration, case.key, case.ranks)
    before, after = case.tensors["in_nw"], chosen["in_nw"]
    assert list(chosen) == ["in_nw"] and after.dtype == torch.bfloat16
    moved = before != after
    assert 0 < moved.sum() <= hits["mix.x"]
    assert ((after[moved] >= 1) & (after[moved] < 2)).all()


def test_the_best_weight_is_found():
    kernel = np.array([[1.0, 1.0, 3.0], [1.0, 1.0, 5.0]], np.float32)
    rival = np.nextafter(kernel, np.float32(9))
    rival[0, 1] = 1.0
    rival[:, 2] = kernel[:, 2]
    # 257/256 is a tie that goes down to 1; one ulp more goes up. So weight 1 separates 257/256 from its neighbour.
    kernel[:, :2], rival[:, 0], rival[1, 1] = 257 / 256, np.nextafter(np.float32(257 / 256), 2), 1.01
    rival[0, 1] = 257 / 256
    weights, hits = choose_weights(kernel, [rival], np.full(3, 0.75, np.float32))
    differ = bf16_bits(kernel * weights) != bf16_bits(rival * weights)
    assert differ.sum(0).tolist() == [2, 1, 0] and hits == 3
    assert weights[2] == 0.75


def test_all_mantissas_are_tried():
    assert (bf16_values(bf16_bits(MANTISSAS)) == MANTISSAS).all() and len(set(MANTISSAS.tolist())) == 128
    assert MANTISSAS.min() == 1 and MANTISSAS.max() == 2 - 1 / 128


def test_a_hunt_leaves_its_inputs_alone():
    case = make_case("k1", geometry="mini", values="normal")
    before = case.tensors["in_nw"].clone()
    hunt_ties(case.declaration, case.key, case.ranks)
    assert torch.equal(before, case.tensors["in_nw"])
