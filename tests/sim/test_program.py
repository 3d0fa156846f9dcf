"""Decoding: made once for a module, safe to run again, and in time that grows with the kernel."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from k3lab.lowering.ir import Module
from k3lab.lowering.types import parse_type
from k3lab.sim.decode import program
from k3lab.sim.decode.program import decode
from k3lab.sim.launch import simulate
from k3lab.sim.semantics.vectors import insert_elements
from tests.sim.test_micro_kit import GLOBAL, I32, Build

FOUR = parse_type("vector<4xi32>")


def doubling() -> Module:
    """dst[thread] = 2 src[thread] + 5."""
    k = Build(GLOBAL, GLOBAL)
    src, dst = k.params
    thread = k.thread()
    value = k.load(I32, src, thread)
    k.store(k.add(k.add(value, value), k.constant(I32, 5)), dst, thread)
    k.ret()
    return k.module(groups=1)


def ladder(diamonds: int) -> Module:
    """Diamonds and loops in turn, printed in an order far from the one they run in."""
    k = Build(GLOBAL, I32)
    out, x = k.params
    one = k.constant(I32, 1)
    k.br("head0", x)
    for n in range(diamonds):
        (value,) = k.at(f"head{n}", I32)
        k.cond(k.icmp("slt", value, x), (f"yes{n}", ()), (f"no{n}", ()))
        for side in ("yes", "no"):
            k.at(f"{side}{n}")
            k.br(f"loop{n}", k.add(value, one))
        (count,) = k.at(f"loop{n}", I32)
        grown = k.add(count, x)
        k.cond(k.icmp("slt", grown, x), (f"loop{n}", (grown,)), (f"head{n + 1}", (grown,)))
    (value,) = k.at(f"head{diamonds}", I32)
    k.store(value, out, k.thread())
    k.ret()
    labels = [f"{part}{n}" for n in reversed(range(diamonds)) for part in ("loop", "no", "head", "yes")]
    return k.module(groups=1, order=["entry", *labels])


def test_a_module_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    module, src = doubling(), np.arange(64, dtype=np.int32)
    results = []
    for start in (0, 100, -7):
        out = np.zeros_like(src)
        simulate(module, src + np.int32(start), out)
        results.append(out)
        monkeypatch.setattr(program, "_decoded", None)  # nothing decodes from the second launch on
    for start, out in zip((0, 100, -7), results, strict=True):
        assert np.array_equal(out, 2 * (src + start) + 5)


def test_equal_modules_do_not_share_what_was_decoded() -> None:
    one, other = doubling(), doubling()
    assert one == other
    assert decode(one, "k") is decode(one, "k")
    assert decode(one, "k") is not decode(other, "k")


def test_constants_cannot_be_written_to() -> None:
    held = decode(doubling(), "k").constants.values()
    assert held and not any(value.flags.writeable for value in held)


def test_decoding_keeps_pace_with_the_kernel() -> None:
    """A kernel of over a thousand blocks in a fraction of a second; the limit is several times that."""
    module = ladder(280)
    begun = time.process_time()
    decoded = decode(module, "k")
    assert time.process_time() - begun < 1.5
    assert len(decoded.codes) == 4 * 280 + 2 and len(decoded.graph.loops) == 280


def gathering(*places: int, kept: bool = False) -> Module:
    """Inserts thread + i at each of `places` of a vector of four, and stores it; or the first state of it, too."""
    k = Build(GLOBAL, GLOBAL)
    out, early = k.params
    thread = k.thread()
    vector = k.constant(FOUR, [10, 11, 12, 13])
    states = []
    for i, place in enumerate(places):
        value = k.add(thread, k.constant(I32, i))
        vector = k.op("llvm.insertelement", vector, value, k.constant(I32, place), gives=FOUR)
        states.append(vector)
    if kept:
        k.store(states[0], early, thread)
    k.store(vector, out, thread)
    k.ret()
    return k.module(groups=1)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("places", [(2,), (0, 1, 2, 3), (3, 1), (1, 1, 1), (0, 1, 2, 3, 0)])
def test_chains_of_inserts(places: tuple[int, ...], kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []

    def counted(where: tuple[int, ...]) -> Any:
        runs.append(len(where))
        return insert_elements(where)

    monkeypatch.setattr(program, "insert_elements", counted)
    out, early = np.zeros((2, 64, 4), np.int32)
    simulate(gathering(*places, kept=kept), out, early)
    wanted = np.tile(np.arange(10, 14, dtype=np.int32), (64, 1))
    for i, place in enumerate(places):
        wanted[:, place] = np.arange(64) + i
        if i == 0 and kept:
            assert np.array_equal(early, wanted)
    assert np.array_equal(out, wanted)
    together = len(places) - kept  # what is stored on the way is made by itself
    assert runs == ([together] if together > 1 else [])
