"""Which elements an error is taken over: only the slots a launch wrote, only values away from saturation."""

from __future__ import annotations

import pytest
import torch

import k3lab
from k3lab.analysis.ends import run_error, tensor_names
from k3lab.stats import error_stats


@pytest.mark.parametrize(
    ("launch", "name", "written", "slot"),
    [("k1", "rstate", 4, 2 * 128 * 128), ("k1", "conv_state", 1, 768 * 6), ("m1a", "kv_cache", 3, 576)],
)
def test_only_written_slots_count(launch, name, written, slot):
    """K1 writes a state a token and a conv window a request; M1a an entry a token, but for the one of another rank."""
    case = k3lab.make_case(launch, geometry="mini")
    run, oracle = k3lab.run(launch, case), k3lab.run(launch, case, backend="oracle")
    stats = run_error(run, oracle, name)
    assert stats.count == written * slot < run[name].numel()


def test_derived_tensors_come_last():
    case = k3lab.make_case("m1a", geometry="mini")
    assert tensor_names(k3lab.run("m1a", case))[-1] == "attention"
    bare = {name: tensor for name, tensor in case.tensors.items() if name != "w_kv_b"}
    assert "attention" not in tensor_names(k3lab.run("m1a", k3lab.Case("m1a", case.key, bare)))


def test_clipped_values_do_not_hide_a_bad_rounding():
    """One value beyond 448, and one that is a whole ulp off: the second must show in the figure that is judged."""
    before = torch.tensor([1000.0, 16.0])
    stats = error_stats(before, torch.tensor([448.0, 18.0]), "fp8_e4m3")
    assert stats.clipped == 1
    assert stats.max_ulp == (1000 - 448) / 32 and stats.max_ulp_in_range == 1.0
