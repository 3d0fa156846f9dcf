"""What `cuda_ranks` runs, as plain data: launches of several ranks on several GPUs, each an item of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.cuda_items import FULL, GPU_BLOCKS, Item, Maker, deals
from k3lab.backends.cuda.ranks.plan import Plan
from k3lab.geometry import Geometry

VARIANTS: dict[str, dict[str, Any]] = {
    "one-shot": {"shots": "one"},
    "two-shot": {"shots": "two"},
    "one-shot sentinel": {"shots": "one", "sentinel": True},
    "two-shot sentinel": {"shots": "two", "sentinel": True},
}
EQUAL, STEPS, KILLED, TIMED, STAMPED = "ranks-equal", "ranks-steps", "ranks-killed", "ranks-timed", "ranks-stamped"
ENDS = {STEPS: "steps", TIMED: "timed", STAMPED: "stamped"}
SHAPES = (132, 188)
"""CTAs of a rank that has a GPU to itself: one on each of an H200's multiprocessors, or as many GEMV CTAs as those."""
MORE_THAN_TWO = 8
"""Ranks of which one a GPU runs, beside words of the others that the twin says they send."""


def items() -> list[Item]:
    """Every item, test size first."""
    made = Maker()
    _mini(made)
    _full(made)
    return made.items


def plan_of(item: Item, gpus: int, fast: bool = False) -> Plan:
    """Who runs where: all ranks, of eight one a GPU."""
    ranks = item.options["ranks"]
    live = range(min(gpus, ranks)) if ranks >= MORE_THAN_TWO else range(ranks)
    return Plan(ranks, tuple(live), min(gpus, ranks), fast)


def is_fast(item: Item) -> bool:
    """Whether it is the fast build that runs."""
    return "fast" in item.name


def _mini(made: Maker) -> None:
    mini, some = Geometry.mini(), {"tokens": 3, "nblocks": 1}
    for ranks in (2, 4, 8):
        for name, variant in VARIANTS.items():
            made.add(f"k2a mini {name}, {ranks} ranks", EQUAL, "k2a", mini, ranks=ranks, **some, **variant)
        made.add(f"m1a mini, {ranks} ranks", EQUAL, "m1a", mini, ranks=ranks, **some)
    for name in ("one-shot", "two-shot sentinel"):
        made.add(f"k2a mini {name}, steps", STEPS, "k2a", mini, ranks=2, **some, **VARIANTS[name])
        bounded = {"bounded": True, **some, **VARIANTS[name]}
        made.add(f"k2a mini {name}, killed", KILLED, "k2a", mini, ranks=2, **bounded)
    made.add("k2a mini two-shot, 4 ranks, steps", STEPS, "k2a", mini, ranks=4, **some, **VARIANTS["two-shot"])
    made.add("k2a mini two-shot, 8 ranks, steps", STEPS, "k2a", mini, ranks=8, **some, **VARIANTS["two-shot"])
    made.add("m1a mini, steps", STEPS, "m1a", mini, ranks=2, **some)
    made.add("m1a mini, killed", KILLED, "m1a", mini, ranks=2, bounded=True, **some)
    made.add("k2a mini, killed without bounds", KILLED, "k2a", mini, ranks=2, **some)


def _full(made: Maker) -> None:
    some: dict[str, Any] = {"nblocks": 4, **FULL}
    two = replace(Geometry.k3(2), blocks=GPU_BLOCKS)
    four = replace(Geometry.k3(4), blocks=GPU_BLOCKS // 2)
    eight = Geometry.k3()
    for name, variant in VARIANTS.items():
        tokens = 4 if name.startswith("one") else 16
        for geometry, ranks in ((two, 2), (four, 4), (eight, 8)):
            more = {"tokens": tokens, "ranks": ranks, **some, **variant}
            made.add(f"k2a full S{tokens} {name}, {ranks} ranks", EQUAL, "k2a", geometry, **more)
    for ranks in (2, 8):
        made.add(f"m1a full S4, {ranks} ranks", EQUAL, "m1a", eight, tokens=4, ranks=ranks, **some)
    for name in ("one-shot", "two-shot sentinel"):
        _fast(made, f"k2a full S4 {name}", STEPS, "k2a", 4, SHAPES[-1], **VARIANTS[name])
    _fast(made, "m1a full S4", STEPS, "m1a", 4, SHAPES[-1])
    for blocks in SHAPES:
        for tokens in (1, 4, 8, 16) if blocks == SHAPES[0] else (1, 4):  # more rows leave no room for a second CTA
            _fast(made, f"k2a full S{tokens}, {blocks} CTAs", TIMED, "k2a", tokens, blocks)
        _fast(made, f"k2a full S4 sentinel, {blocks} CTAs", TIMED, "k2a", 4, blocks, sentinel=True)
        _fast(made, f"m1a full S4, {blocks} CTAs", TIMED, "m1a", 4, blocks)
    for launch in ("k2a", "m1a"):
        _fast(made, f"{launch} full S4", STAMPED, launch, 4, SHAPES[-1], timeline=True)


def _fast(made: Maker, name: str, kind: str, launch: str, tokens: int, blocks: int, **more: Any) -> None:
    """An item of the fast build on two ranks: with a CTA a multiprocessor all multiply, rows in parts where they do not
    fit."""
    geometry = replace(Geometry.k3(2 if launch == "k2a" else 8), blocks=blocks)
    knobs: dict[str, Any] = {"token_tile": tokens, "prefetch": 1}
    if blocks == SHAPES[0]:
        knobs |= {"gemv_all": True, "k_parts": 1 if tokens < 16 else 2, "ahead": 3 if launch == "m1a" else 0}
    if launch == "m1a":
        knobs |= deals(geometry, tokens=tokens, ranks=2, **knobs)
    made.add(f"{name}, fast, {ENDS[kind]}", kind, launch, geometry, nblocks=4, tokens=tokens, ranks=2, **knobs, **more)
