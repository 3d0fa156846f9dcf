"""K2a's launches in a row on the same scratch and peer buffers, skewed as far as the ranks let each other.

Quick: the reuse rule kept and broken, a few steps of each chain. Slow: 1,000 steps and more under every adversary.
"""

from __future__ import annotations

import pytest

from k3lab.layout import EPOCHS
from tests.kernels.harness import DETECTORS
from tests.kernels.k2a_cases import EVEN, ODD, ONE_HALF, TINY, VARIANTS, Chain, in_turn

LAUNCHES, CHAINS = 13, 2
"""Launches in a simulation, and simulations that follow each other on the same memory."""
INPUTS = 7
"""Different inputs, in turn: an odd number, so that a half never gets the words that it held."""
ADVERSARIES = {
    "none": lambda seed: {},
    "a reducing CTA": lambda seed: {"hold": frozenset({(0, 0)}), "scopes": True},
    "an owner's CTA": lambda seed: {"hold": frozenset({(1, TINY.na - 1)}), "guards": True},
    "an o_proj CTA": lambda seed: {"hold": frozenset({(1, TINY.na + seed)})},
    "a rank": lambda seed: {"hold": frozenset((seed % 2, cta) for cta in range(TINY.blocks))},
    "a rank, later": lambda seed: {"hold": frozenset((0, cta) for cta in range(0, TINY.blocks, 2)), "hold_launch": 3},
    "drawn": lambda seed: {"schedule": "adversarial", "seed": seed},
    "drawn, watched": lambda seed: {"schedule": "adversarial", "seed": 100 + seed, **DETECTORS},
    "random": lambda seed: {"schedule": "random", "seed": 3 * seed},
    "relaxed": lambda seed: {"memory": "relaxed", "seed": seed, "hold": frozenset({(seed % 2, 0)})},
}
"""Options of the simulator by seed: who is held back."""


@pytest.mark.parametrize("steps", [EVEN, ODD], ids=["even", "odd"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_launches_in_a_row_keep_the_reuse_rule(variant, steps):
    """Skewed as far as it lets them: one CTA of a rank goes on only when nothing else can."""
    chain = Chain.of(steps, **VARIANTS[variant])
    assert chain.run(hold=frozenset({(0, 0)}), scopes=True) == "right"
    assert all((peer.data.numpy() == 0xFF).all() for peer in chain.peers if peer.armed)


def test_builds_of_different_sizes_share_peer_buffers():
    """Each of the two takes either half: one's second half would lie over the other's first if sizes set it."""
    for variant in ("one-tagged", "two-sentinel"):
        chain = Chain.of(ODD, tokens=(2, 5, 5), **VARIANTS[variant])
        assert chain.run(hold=frozenset({(1, 2)})) == "right", variant


class TestTheReuseRuleBroken:
    """The same half in launches that nothing lies between. The default order passes it; a directed one shows it."""

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_the_default_order_does_not_show_it(self, variant):
        assert Chain.of(ONE_HALF, **VARIANTS[variant]).run() == "right"

    def test_one_shot_tagged_hangs(self):
        chain = Chain.of(ONE_HALF, **VARIANTS["one-tagged"])
        assert chain.run(hold=frozenset({(0, 0)})) == "deadlock"
        assert not [found for found in chain.wrong() if found[0] == 0 and found[1] == 1]

    def test_one_shot_sentinel_gives_wrong_values_in_launches_that_finish(self):
        """The held CTA takes the words of the launch after; only the last launch finds none left."""
        chain = Chain.of(ONE_HALF, **VARIANTS["one-sentinel"])
        assert chain.run(hold=frozenset({(0, 0)})) == "deadlock"
        finished = [(launch, rank) for launch, rank, name in chain.wrong() if name == "x_out"]
        assert {(0, 0), (1, 0)} <= set(finished) and (0, 1) not in finished

    def test_two_shot_sentinel_hangs(self):
        """A late re-arming wipes the next word."""
        assert Chain.of(ONE_HALF, **VARIANTS["two-sentinel"]).run(hold=frozenset({(0, 0)})) == "deadlock"

    @pytest.mark.parametrize("slot", [(0, 0), (1, 0), (1, 5)])
    def test_two_shot_tagged_protects_itself(self, slot):
        """Whoever has finished it knows that every owner has read all partials."""
        assert Chain.of(ONE_HALF, **VARIANTS["two-tagged"]).run(hold=frozenset({slot})) == "right"


def run_steps(variant, adversary, launches, chains):
    """Consecutive launches on every rank, `chains` simulations of `launches` each on the same memory; their number.

    Each launch has other inputs than the one before, and is held against its twin. The epochs pass the last one that
    tags can tell from the first.
    """
    uses = 1 + list(ADVERSARIES).index(adversary) % 3
    steps = in_turn(launches * chains, uses, EPOCHS - max(1, launches // 2 // uses))
    assert steps[0][0] < EPOCHS <= steps[launches - 1][0]
    chain = None
    for number in range(chains):
        mine = range(number * launches, (number + 1) * launches)
        seeds = [i % INPUTS for i in mine]
        chain = Chain.of([steps[i] for i in mine], seeds=seeds, after=chain, **VARIANTS[variant])
        assert chain.run(**ADVERSARIES[adversary](number)) == "right", f"simulation {number}"
        assert all((peer.data.numpy() == 0xFF).all() for peer in chain.peers if peer.armed)
    return len(steps)


@pytest.mark.parametrize(
    ("variant", "adversary"),
    [
        ("one-tagged", "a rank"),
        ("two-tagged", "drawn"),
        ("one-sentinel", "an o_proj CTA"),
        ("two-sentinel", "an owner's CTA"),
    ],
)
def test_a_sample_of_steps_in_a_row(variant, adversary):
    assert run_steps(variant, adversary, launches=5, chains=1) == 5


def test_all_steps_in_a_row_are_a_thousand():
    assert LAUNCHES * CHAINS * len(VARIANTS) * len(ADVERSARIES) >= 1000


@pytest.mark.slow
@pytest.mark.parametrize("adversary", ADVERSARIES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_thousand_steps_in_a_row(variant, adversary):
    """All the parameters together."""
    assert run_steps(variant, adversary, LAUNCHES, CHAINS) == LAUNCHES * CHAINS


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("seed", range(4))
def test_launches_in_a_row_under_drawn_adversaries(variant, seed):
    assert Chain.of(ODD, **VARIANTS[variant]).run(schedule="adversarial", seed=seed, **DETECTORS) == "right"
