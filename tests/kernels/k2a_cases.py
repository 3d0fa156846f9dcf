"""Which K2a launches the kernel is held against the twin on, and launches in a row that share their peer buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any

import k3lab
from k3lab import Case
from k3lab.backends.chain import simulated_chain
from k3lab.backends.run import Run
from k3lab.geometry import Geometry
from k3lab.kernels import peers
from k3lab.kernels.host import Buffers
from k3lab.sim.faults import SimFault
from k3lab.sim.options import Options
from tests.cover import Factors
from tests.kernels.harness import differences

VARIANTS: dict[str, dict[str, Any]] = {
    "one-tagged": {"shots": "one"},
    "two-tagged": {"shots": "two"},
    "one-sentinel": {"shots": "one", "sentinel": True},
    "two-sentinel": {"shots": "two", "sentinel": True},
}

QUICK: Factors = {
    "values": {name: {"values": name} for name in ("outliers", "ties", "specials")},
    # At 9 tokens and more two shots are the default.
    "rows": {"S4": {"tokens": 4}, "S1": {"tokens": 1}, "S9": {"tokens": 9}},
    "shots": {"auto": {}, "one": {"shots": "one"}, "two": {"shots": "two"}},
    "words": {"tagged": {}, "sentinel": {"sentinel": True}},
    "ranks": {"r2": {"ranks": 2}, "r4": {"ranks": 4}},
    "prefix": {"added": {}, "reset": {"reset": True}},
    "knobs": {
        "default": {},
        "few": {"blocks": 17, "token_tile": 3},  # more tasks a CTA than are unrolled
        "many": {"blocks": 31},  # tasks that do not divide
        "few-ahead": {"blocks": 17, "token_tile": 3, "prefetch": 1},  # one task's weights in flight
        "many-ahead": {"blocks": 27, "token_tile": 3, "prefetch": 2},
        "everyone": {"gemv_all": True, "prefetch": 1, "at_once": 4},
        "held": {"gemv_all": True, "blocks": 20, "token_tile": 3, "k_parts": 2, "ahead": 1},
    },
    "build": {"plain": {}, "bounded": {"bounded": True, "timeline": True}},
}
"""At the size of `TINY`."""

FACTORS: Factors = {
    "values": {name: {"values": name} for name in ("outliers", "ties", "specials", "adversarial")},
    # S17 has a ragged second tile.
    "rows": {"S4": {"tokens": 4}, "S1": {"tokens": 1}, "S9": {"tokens": 9}, "S17": {"tokens": 17}},
    "shots": {"auto": {}, "one": {"shots": "one"}, "two": {"shots": "two"}},
    "words": {"tagged": {}, "sentinel": {"sentinel": True}},
    "ranks": {"r2": {"ranks": 2}, "r8": {"ranks": 8}, "r1": {"ranks": 1}},
    "prefix": {"added": {}, "reset": {"reset": True}},
    "sources": {"nb1": {"nblocks": 1}, "nb4": {"nblocks": 4}},
    "knobs": {
        "default": {},
        "few": {"blocks": 23, "token_tile": 3},  # more tasks a CTA than are unrolled
        "many": {"blocks": 61},  # tasks that do not divide
        "few-ahead": {"blocks": 23, "token_tile": 3, "prefetch": 1},  # one task's weights in flight
        "many-ahead": {"blocks": 61, "prefetch": 1},
        "everyone": {"gemv_all": True},
        "held": {"blocks": 61, "token_tile": 7, "k_parts": 2, "at_once": 2, "prefetch": 1},
    },
    "build": {"plain": {}, "bounded": {"bounded": True, "timeline": True}},
}
"""At mini size."""

TINY = Geometry("tiny", hidden=1024, heads=2, tp=2, q_lora=1024, kv_lora=512, blocks=24)
"""Eight slices: enough for launches in a row."""

Step = tuple[int, int, int, int]
"""Epoch, slot, uses and use of a launch."""

EVEN: tuple[Step, ...] = tuple((epoch, slot, 2, slot) for epoch in (1, 2) for slot in (0, 1))[:3]
ODD: tuple[Step, ...] = tuple((epoch, slot, 3, slot) for epoch in (1, 2) for slot in (0, 1, 2))[1:5]
ONE_HALF: tuple[Step, ...] = tuple((1, slot, 2, 0) for slot in (0, 1, 2))
"""The reuse rule broken: launches of an epoch that all take the same half."""


def in_turn(count: int, uses: int, epoch: int = 1) -> tuple[Step, ...]:
    """`count` launches from step `epoch` on, `uses` a step."""
    return tuple((epoch + i // uses, i % uses, uses, i % uses) for i in range(count))


@lru_cache(maxsize=64)
def _case(options: frozenset[tuple[str, Any]]) -> tuple[Case, Run]:
    """A case and its twin's run."""
    case = k3lab.make_case("k2a", **dict(options))
    return case, k3lab.run("k2a", case)


@dataclass
class Chain:
    """Launches in a row on every rank, each with inputs of its own, on one scratch a rank and the same peer buffers."""

    steps: list[list[Buffers]]
    twins: list[Run]
    peers: list[peers.PeerBuffer]

    @classmethod
    def of(
        cls,
        steps: Sequence[Step],
        tokens: Sequence[int] = (2,),
        seeds: Sequence[int] | None = None,
        after: Chain | None = None,
        **options: Any,
    ) -> Chain:
        """Launch i has `tokens[i mod their number]` tokens; builds of different sizes have scratch of their own.

        Args:
            seeds: of each launch's inputs; its number, if None.
            after: launches that have run, on whose memory these go on.
        """
        given = {"geometry": TINY, "nblocks": 1, "ranks": 2, **options}
        seeds = range(len(steps)) if seeds is None else seeds
        sizes = [{"tokens": tokens[i % len(tokens)], "seed": seed} for i, seed in enumerate(seeds)]
        cases, twins = zip(*(_case(frozenset((given | size).items())) for size in sizes), strict=True)
        launch, keys = cases[0].declaration, [replace(case.key, dumps=True) for case in cases]
        shared = after.peers if after else [peers.PeerBuffer.of(launch, keys[0], 16) for _ in cases[0].ranks]
        made: list[list[Buffers]] = []
        for case, key, (epoch, slot, uses, use) in zip(cases, keys, steps, strict=True):
            ranks = [Buffers.of(launch, key, tensors) for tensors in case.ranks]
            before = next((old for old in chain(after.steps if after else (), made) if old[0].key == key), ranks)
            for buffers, old in zip(ranks, before, strict=True):
                buffers.next_step(epoch=epoch, slot=slot)
                buffers.tensors["scratch"] = old.tensors["scratch"]
            peers.join(ranks, shared, uses, use)
            made.append(ranks)
        return cls(made, list(twins), shared)

    def run(self, **options: Any) -> str:
        """`right`, `wrong`, or the kind of the first finding."""
        try:
            engine = simulated_chain(self.steps, Options(**options))
        except SimFault as fault:
            return fault.finding.kind
        kinds = [finding.kind for finding in engine.findings]
        return kinds[0] if kinds else "wrong" if self.wrong() else "right"

    def wrong(self) -> list[tuple[int, int, str]]:
        """Launch, rank and name of what differs from the twin, by bits."""
        return [
            (i, rank, name)
            for i, (ranks, twin) in enumerate(zip(self.steps, self.twins, strict=True))
            for rank, buffers in enumerate(ranks)
            for name in ("prefix", "x_out")
            if differences({name: buffers.tensors[name].float()}, twin.ranks[rank])
        ]
