"""o_proj twins: the split product against the unsplit one, one-shot against two-shot, the sentinel."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from k3lab.arith import KernelOrder, Oracle
from k3lab.geometry import Geometry
from k3lab.launches import K2A
from k3lab.rounding import Probe
from k3lab.stages.oproj.push.twin import stage_o
from k3lab.stages.oproj.reduce.twin import stage_reduce
from k3lab.words import DISARMED, SENTINEL, bf16_pair_values, bf16_pair_words, disarmed

MINI = Geometry.mini()


def partials(ranks: int, tokens: int = 2, dtype=torch.float32) -> torch.Tensor:
    source = torch.Generator().manual_seed(ranks)
    return torch.randn(ranks, tokens, MINI.hidden, generator=source).bfloat16().to(dtype)


def key_for(ranks: int, **options):
    return K2A.key(MINI, tokens=2, nblocks=1, ranks=ranks, **options)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_the_split_product_is_the_unsplit_one(ranks):
    key = key_for(ranks)
    source = torch.Generator().manual_seed(7)
    core = torch.randn(2, ranks * MINI.proj, generator=source, dtype=torch.float64)
    w_o = torch.randn(MINI.hidden, ranks * MINI.proj, generator=source, dtype=torch.float64)
    arith = Oracle("k2a")
    parts = [
        stage_o(arith, SimpleNamespace(core=c, w_o=w), key)["partial"]
        for c, w in zip(core.chunk(ranks, dim=1), w_o.chunk(ranks, dim=1), strict=True)
    ]
    delta = stage_reduce(arith, SimpleNamespace(partial=torch.stack(parts)), key)["delta"]
    torch.testing.assert_close(delta, core @ w_o.T, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("ranks", [2, 8])
def test_the_sum_goes_in_rank_order_and_is_rounded_once(ranks):
    parts = partials(ranks)
    delta = stage_reduce(KernelOrder("k2a"), SimpleNamespace(partial=parts), key_for(ranks))["delta"]
    total = parts[0].numpy().copy()
    for part in parts[1:]:
        total = total + part.numpy()
    assert torch.equal(delta, torch.from_numpy(total).bfloat16().float())


def test_minus_zero_partials_sum_to_minus_zero():
    parts = torch.full((8, 2, MINI.hidden), -0.0)
    delta = stage_reduce(KernelOrder("k2a"), SimpleNamespace(partial=parts), key_for(8))["delta"]
    assert delta.signbit().all() and not delta.any()


@pytest.mark.parametrize("ranks", [2, 8])
def test_two_shot_owners_sum_the_same(ranks):
    """Each owner sums its own columns and sends the rounded result: formed here owner by owner."""
    parts = partials(ranks)
    arith, t = KernelOrder("k2a"), SimpleNamespace(partial=parts)
    one = stage_reduce(arith, t, key_for(ranks, shots="one"))["delta"]
    two = stage_reduce(arith, t, key_for(ranks, shots="two"))["delta"]
    armed = stage_reduce(arith, t, key_for(ranks, shots="two", sentinel=True))["delta"]
    owners = [
        stage_reduce(arith, SimpleNamespace(partial=columns), key_for(ranks))["delta"]
        for columns in parts.chunk(ranks, dim=-1)
    ]
    assert torch.equal(one, two) and torch.equal(two, armed) and torch.equal(two, torch.cat(owners, dim=-1))


def test_shots_follow_the_tokens():
    assert not K2A.key(MINI, tokens=8, nblocks=1, ranks=2).two_shot
    assert K2A.key(MINI, tokens=9, nblocks=1, ranks=2).two_shot
    assert not K2A.key(MINI, tokens=9, nblocks=1, ranks=2, shots="one").two_shot


def test_rotated_sums_are_one_swap_away():
    """Each owner's columns start at the owner's rank; values of many magnitudes, for the order to show."""
    spread = torch.randint(-14, 14, (8, 2, MINI.hidden), generator=torch.Generator().manual_seed(0))
    parts = torch.ldexp(partials(8), spread)
    t, key = SimpleNamespace(partial=parts), key_for(8)
    plain = stage_reduce(KernelOrder("k2a"), t, key)["delta"]
    with Probe(swap={"k2a.reduce.sum": "rotated", "k2a.reduce.delta": "fp32"}):
        rotated = stage_reduce(KernelOrder("k2a"), t, key)["delta"]
    for owner, columns in enumerate(parts.chunk(8, dim=-1)):
        total = columns[owner].clone()
        for step in range(1, 8):
            total = total + columns[(owner + step) % 8]
        assert torch.equal(rotated.chunk(8, dim=-1)[owner], total)
    assert not torch.equal(plain, rotated.bfloat16().float())


def test_the_sentinel_is_never_sent_and_nan_stays_nan():
    values = np.array([1.0, -2.0, np.nan, 0.5], np.float32)
    words = np.append(bf16_pair_words(values), SENTINEL)
    sent = disarmed(words)
    assert SENTINEL not in sent and sent[-1] == DISARMED
    assert np.array_equal(sent[:-1], words[:-1])
    assert np.isnan(bf16_pair_values(sent)[-2:]).all()


def test_a_sum_can_be_the_sentinel_when_no_partial_is():
    """Two partial pairs of NaNs whose sums are NaN with all bits set: the owner must disarm its own delta too."""
    quiet = np.array([0xFFFF0000, 0xFFFF0000], np.uint32).view(np.float32)  # bf16 0xFFFF twice
    words = (quiet.view(np.uint32) >> 16).astype(np.uint32)
    word = np.array([words[0] | words[1] << 16], np.uint32)
    assert word[0] == SENTINEL
    assert disarmed(word)[0] == DISARMED


@pytest.mark.parametrize("values", [np.zeros(2, np.float32), np.array([-0.0, np.inf], np.float32)])
def test_words_round_trip(values):
    assert np.array_equal(bf16_pair_values(bf16_pair_words(values)).view(np.uint32), values.view(np.uint32))
