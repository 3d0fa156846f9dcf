"""On an NVIDIA GPU: graphs of launches, and a small benchmark from end to end."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import k3lab
from k3lab.backends.cuda import device
from k3lab.backends.cuda.replay import Step
from k3lab.bench.clock import DeviceClock
from k3lab.bench.make import Plan, run_bench
from k3lab.errors import BackendUnavailable
from k3lab.geometry import Geometry
from k3lab.kernels import peers
from k3lab.kernels.host import Buffers
from tests.kernels import k2a_cases

pytestmark = pytest.mark.gpu
CASES = {
    "k1": {"tokens": 4, "qlen": 2, "nblocks": 2, "geometry": "mini", "null": "none"},
    "m1a": {"tokens": 2, "nblocks": 2, "ranks": 1, "geometry": "mini", "null": "none"},
    "k2a": {"tokens": 2, "nblocks": 2, "ranks": 2, "geometry": k2a_cases.TINY},
}
SETS, LAUNCHES, REPLAYS = 2, 8, 20


@pytest.fixture
def clock():
    try:
        return DeviceClock()
    except BackendUnavailable as error:
        pytest.skip(str(error))


def step_of(case):
    ranks = [Buffers.of(case.declaration, case.key, tensors) for tensors in case.ranks]
    if case.declaration.peers(case.key):
        peers.join(ranks)
    return Step(device.Launcher(ranks, fast=True), SETS, LAUNCHES)


def left(step):
    names = [name for name in step.sets[0][0].launch.outputs if name in step.sets[0][0].tensors]
    return [held.tensors[name].cpu() for ranks in step.sets for held in ranks for name in names]


@pytest.mark.parametrize("launch", CASES)
def test_replays_of_a_graph_give_the_bits_of_launches_one_by_one(launch, clock):
    case = k3lab.make_case(launch, **CASES[launch])
    plain, captured = step_of(case), step_of(case)
    for _ in range(REPLAYS):
        plain.advance()
        for number in range(LAUNCHES):
            plain.put(number)
    graph = torch.cuda.CUDAGraph()
    clock.wait()
    with torch.cuda.graph(graph):
        for number in range(LAUNCHES):
            captured.put(number)
    for _ in range(REPLAYS):
        captured.advance()
        graph.replay()
    clock.wait()
    assert all(torch.equal(a, b) for a, b in zip(left(plain), left(captured), strict=True))


def test_a_copy_is_no_quicker_than_memory_and_no_slower_than_a_tenth_of_it(clock):
    assert 2e11 < clock.bandwidth() < 2e13


def test_times_grow_with_the_work(clock):
    big = torch.zeros(1 << 28, dtype=torch.uint8, device=clock.device)
    small = torch.zeros(1 << 10, dtype=torch.uint8, device=clock.device)
    slow, quick = (clock.graph([partial(x.add_, 1)] * 4, 5, lambda: None).median for x in (big, small))
    assert slow > 5 * quick


def test_a_small_benchmark_is_right_everywhere(clock):
    plan = Plan(("k1", "m1a", "k2a"), (2,), Geometry.mini(), 2, repeats=3, compile_modes=("default",))
    found = run_bench(plan, clock, lambda what: None)
    for table in found.tables:
        for row in table.rows:
            assert row.part or row.samples, (table.launch, row.name, row.note)
            assert row.fine is not False, (table.launch, row.name, row.snr)
            assert row.mode != "stream" or row.name == "torch, eager"
