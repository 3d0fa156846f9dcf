"""Which cases the reference is held against: a pairwise cover of distributions and modes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.cover import Factors, Labels, options_of, pairwise

QUICK = ("outliers", "adversarial", "ties", "tiny", "specials", "specials:zeros")
MORE = ("normal", "huge", "constant", "specials:infinities", "specials:nans", "specials:extremes")
LONG = ("specials:subnormals",)  # half a minute a case: nearly every sum of an MFMA is an exact one

BLOCKS = {"nb1": {"nblocks": 1}, "nb4": {"nblocks": 4}, "nb8": {"nblocks": 8}}

MODES: Mapping[str, Factors] = {
    "k1": {
        # L2x3: three requests of two tokens, which have a null target, conv and initial slot (of L1, that is one slot).
        "rows": {
            "L1x3": {"tokens": 3, "qlen": 1},
            "L2x3": {"tokens": 6, "qlen": 2},
            "L3x3": {"tokens": 9, "qlen": 3},
            "L4x3": {"tokens": 12, "qlen": 4},
        },
        "prefix": {
            "delta": {},
            "delta+write": {"write_idx": 8},
            "plain": {"delta": False},
            "plain+write": {"delta": False, "write_idx": 8},
        },
        "blocks": BLOCKS,
        "eps": {"default": {}, "other": {"eps": 3e-6, "out_eps": 1e-6, "onorm_eps": 1e-4, "lower_bound": -3.0}},
    },
    "m1a": {
        "gather": {
            "one": {},
            "qbf16": {"qbf16": True},
            "ranks2+pads": {"ranks": 2, "q_heads": 7},
            "ranks8": {"ranks": 8},
        },
        "tokens": {"S1": {"tokens": 1}, "S3": {"tokens": 3}},
        "prefix": {"delta": {}, "plain": {"delta": False}},
        "blocks": BLOCKS,
        "eps": {
            "default": {},
            "other": {"eps": 3e-6, "out_eps": 1e-6, "q_eps": 1e-4, "kv_eps": 1e-6},
        },
    },
    "k2a": {
        "ranks": {"ranks1": {"ranks": 1}, "ranks2": {"ranks": 2}, "ranks8": {"ranks": 8}},
        "prefix": {"delta": {}, "reset": {"reset": True}},
        "tokens": {"S3": {"tokens": 3}, "S9": {"tokens": 9}},  # 9 is the first that is reduced in two shots
        "blocks": BLOCKS,
        "eps": {"default": {}, "other": {"eps": 3e-6, "out_eps": 1e-6}},
    },
}


def factors(launch: str, values: Sequence[str]) -> Factors:
    """The launch's modes with the distributions as one more factor, the first."""
    return {"values": {name: {"values": name} for name in values}, **MODES[launch]}


def options(launch: str, labels: Labels) -> dict[str, Any]:
    """What `labels`, one level a factor, ask of a case."""
    return options_of(factors(launch, (*QUICK, *MORE, *LONG)), labels)


def quick(launch: str) -> list[Labels]:
    """All pairs of `QUICK` and the modes, and each distribution of `MORE` once, the modes in turn."""
    once = [
        (name, *(list(level)[number % len(level)] for level in MODES[launch].values()))
        for number, name in enumerate(MORE)
    ]
    return pairwise(factors(launch, QUICK)) + once


def slow(launch: str) -> list[Labels]:
    """All pairs of the distributions of `QUICK` and `MORE` and the modes."""
    return pairwise(factors(launch, QUICK + MORE))
