from __future__ import annotations

import subprocess
import sys
from math import prod

import pytest

import k3lab
from k3lab.analysis.timeline.formulas import expected_bytes
from k3lab.bench import floor
from k3lab.bench.sets import L2_TIMES, LEAST_LAUNCHES, LEAST_SETS, rotation, weight_bytes

CASES = {
    "k1": {"tokens": 4, "qlen": 2},
    "m1a": {"tokens": 3, "ranks": 1},
    "m1a bf16": {"tokens": 3, "ranks": 1, "qbf16": True},
    "k2a": {"tokens": 4, "ranks": 1},
    "k2a two ranks": {"tokens": 4, "ranks": 2},
}


def case_of(name, geometry="mini"):
    return k3lab.make_case(name.split()[0], nblocks=2, null="none", geometry=geometry, **CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_the_timelines_and_a_lone_ranks_queries(name):
    case = case_of(name)
    counted = sum(sum(expected_bytes(case.declaration, case.key, tensors).values()) for tensors in case.ranks)
    sizes = case.key.sizes
    queries = prod((sizes["S"], sizes["QH"], sizes["ENTRY"])) * (2 if "bf16" in name else 1) if "m1a" in name else 0
    assert floor.bytes_to_move(case) == counted + queries


def test_the_same_without_jsonschema():
    code = (
        "import sys; sys.modules['jsonschema'] = None; sys.modules['flydsl'] = None\n"
        "import k3lab, k3lab.bench.make, k3lab.bench.write, k3lab.cli\n"
        "from k3lab.bench import floor\n"
        "case = k3lab.make_case('k1', nblocks=2, null='none', geometry='mini', tokens=4, qlen=2)\n"
        "print(floor.bytes_to_move(case))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) == floor.bytes_to_move(case_of("k1"))


def test_the_ranks_of_one_gpu_all_count():
    one, two = case_of("k2a"), case_of("k2a two ranks")
    assert floor.bytes_to_move(two) == 2 * floor.bytes_to_move(one)


@pytest.mark.full
def test_k1_at_full_size_reads_its_in_proj_and_not_much_else():
    case = k3lab.make_case("k1", tokens=4, qlen=4, nblocks=4, null="none")
    in_proj = 6288 * 7168 * 2
    states = 5 * 12 * 128 * 128 * 4  # one read, four written
    assert weight_bytes(case) == in_proj + 1536 * 128 * 2
    assert in_proj + states < floor.bytes_to_move(case) < 1.02 * (in_proj + states)
    assert floor.seconds(90_000_000, 4.25e12) == pytest.approx(21.2e-6, rel=0.01)


def test_weights_are_the_matrices():
    case = case_of("m1a")
    names = ("w_qkv", "w_g", "w_qb", "w_k", "w_k_scale")
    assert weight_bytes(case) == sum(case.tensors[name].nbytes for name in names)


def test_sets_outgrow_the_cache_and_launches_outlast_the_events():
    case = case_of("k1")
    weights = weight_bytes(case)
    for cache in (1 << 10, weights, 10 * weights):
        turn = rotation(case, cache)
        assert turn.sets * weights >= L2_TIMES * cache and turn.sets >= LEAST_SETS
        assert turn.launches >= LEAST_LAUNCHES and turn.launches % turn.sets == 0 and turn.launches <= 256
        assert turn.covers == pytest.approx(turn.sets * weights / cache)


def test_a_step_has_no_more_launches_than_slots():
    turn = rotation(case_of("k2a"), 1 << 40)
    assert turn.sets == turn.launches == 256 and turn.covers < 1
