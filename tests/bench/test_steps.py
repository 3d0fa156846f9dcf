"""A step of launches in a row, replayed: no launch takes a word of another one's.

Translated kernels run on this machine's processor, so this is about tags, slots and halves; graphs are tried in
`test_gpu.py`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import k3lab
from k3lab.backends.cuda import hostbuild
from k3lab.backends.cuda.replay import Step
from k3lab.errors import BadInput
from k3lab.kernels import peers
from k3lab.kernels.host import Buffers
from tests.bench.fakes import FiberLauncher
from tests.kernels import k2a_cases

pytestmark = pytest.mark.skipif(not hostbuild.compiler(), reason="needs a C++ compiler")
SETS, LAUNCHES, REPLAYS = 2, 2, 2
QUICK = "k2a"
"""The others take a minute each, with their compilation."""
WEIGHT = {"k1": "w_in", "m1a": "w_qkv", "k2a": "w_o"}
CASES = {
    "k1": {"tokens": 2, "qlen": 2, "nblocks": 1, "geometry": "mini", "null": "none"},
    "m1a": {"tokens": 1, "nblocks": 1, "ranks": 1, "geometry": "mini", "null": "none"},
    "k2a": {"tokens": 1, "nblocks": 1, "ranks": 2, "geometry": k2a_cases.TINY},
    "k2a sentinel": {"tokens": 1, "nblocks": 1, "ranks": 2, "geometry": k2a_cases.TINY, "sentinel": True},
}


def buffers_of(case):
    ranks = [Buffers.of(case.declaration, case.key, tensors) for tensors in case.ranks]
    if case.declaration.peers(case.key):
        peers.join(ranks)
    return ranks


def weighed(sets, launch):
    """Every set with weights of its own: stale words would then be wrong ones."""
    for number, ranks in enumerate(sets):
        for held in ranks:
            held.tensors[WEIGHT[launch]].mul_(1 + number)


def outputs(ranks, launch):
    return [held.tensors[name].clone() for held in ranks for name in launch.outputs if name in held.tensors]


def expected(case, launch):
    """Set by set, plain launches, each with an epoch of its own."""
    sets = [buffers_of(case) for _ in range(SETS)]
    weighed(sets, case.launch)
    for ranks in sets:
        for epoch in range(1, 1 + REPLAYS * LAUNCHES // SETS):
            for held in ranks:
                held.next_step(epoch=epoch)
            hostbuild.launched(ranks)
    return [outputs(ranks, launch) for ranks in sets]


def replayed(case, launch, slots=True):
    step = Step(FiberLauncher(buffers_of(case)), SETS, LAUNCHES)
    weighed(step.sets, case.launch)
    if not slots:
        step._given = [[replace(held, numbers={**held.numbers, "slot": 0}) for held in ranks] for ranks in step._given]
    left = {}
    for _ in range(REPLAYS):
        step.advance()
        for number in range(LAUNCHES):
            step.put(number)
            left[number % SETS] = outputs(step.sets[number % SETS], launch)
    return [left[number] for number in range(SETS)]


def same(left, right):
    return all(
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for some, others in zip(left, right, strict=True)
        for a, b in zip(some, others, strict=True)
    )


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n == QUICK else pytest.mark.slow) for n in CASES])
def test_replays_of_a_step_give_the_bits_of_single_launches(name):
    case = k3lab.make_case(name.split()[0], **CASES[name])
    assert same(replayed(case, case.declaration), expected(case, case.declaration))


def test_without_slots_a_launch_takes_what_the_one_before_left():
    case = k3lab.make_case(QUICK, **CASES[QUICK])
    assert not same(replayed(case, case.declaration, slots=False), expected(case, case.declaration))


def test_sets_share_all_but_the_inputs():
    case = k3lab.make_case("k1", **CASES["k1"])
    step = Step(FiberLauncher(buffers_of(case)), 2, 4)
    (first,), (second,) = step.sets
    own = {name for name in first.tensors if first.tensors[name] is not second.tensors[name]}
    assert own == {decl.name for decl in case.declaration.inputs_for(case.key)}
    assert [held.numbers["slot"] for (held,) in step._given] == [0, 1, 2, 3]


def test_a_step_counts_on_the_uses_of_the_peer_buffer():
    case = k3lab.make_case("k2a", **CASES["k2a"])
    step = Step(FiberLauncher(buffers_of(case)), 2, 4)
    assert [(ranks[1].numbers["uses"], ranks[1].numbers["use"]) for ranks in step._given] == [(4, i) for i in range(4)]


def test_the_launcher_is_left_as_it_was():
    case = k3lab.make_case("m1a", **CASES["m1a"])
    launcher = FiberLauncher(buffers_of(case))
    live = launcher.live
    Step(launcher, 2, 2).put(1)
    assert launcher.live is live and launcher.launches == 1


@pytest.mark.parametrize(("sets", "launches"), [(0, 4), (1, 0), (1, 257)])
def test_steps_that_tags_cannot_tell_apart_are_refused(sets, launches):
    case = k3lab.make_case("m1a", **CASES["m1a"])
    with pytest.raises(BadInput):
        Step(FiberLauncher(buffers_of(case)), sets, launches)
