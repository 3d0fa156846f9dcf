"""Decode attention: the absorbed form against plain attention over expanded keys and values, and the merge of ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import k3lab
from k3lab.analysis.attention import CONTEXT, SCALE, attend, decode_attention, merge
from k3lab.errors import BadInput
from k3lab.geometry import NOPE

LATENT = 512


def test_merging_split_entries_equals_one_softmax():
    source = torch.Generator().manual_seed(0)
    query = torch.randn(3, 2, 576, generator=source, dtype=torch.float64)
    entries = torch.randn(40, 576, generator=source, dtype=torch.float64)
    seen = torch.rand(3, 40, generator=source) < 0.7
    seen[0, :20] = False  # the first rank has nothing for token 0
    whole = attend(query, entries, seen, LATENT)
    parts = [attend(query, entries[i : i + 10], seen[:, i : i + 10], LATENT) for i in range(0, 40, 10)]
    merged = merge(parts)
    torch.testing.assert_close(merged.out, whole.out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(merged.lse, whole.lse, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("qlen", [4, 2])
def test_the_absorbed_form_is_plain_attention(qlen):
    """With W_UK unquantised: keys (K rows times latent, k_pe) and values (V rows times latent), head by head."""
    case = k3lab.make_case("m1a", geometry="mini", tokens=4, nblocks=1, values="normal", null="none", slots=200)
    with k3lab.probe(swap={"m1a.uk.w_k": "unquantised"}):
        run = k3lab.run("m1a", case, backend="oracle")
    core = decode_attention(run, qlen)[0]

    w_kv_b = case.ranks[0]["w_kv_b"].double().unflatten(0, (-1, 2, NOPE))
    cache = run["kv_cache"].flatten(0, 1)
    slots = case.ranks[0]["slots"]
    free = [slot for slot in range(len(cache)) if slot not in slots.tolist()]
    heads = run["QN"].shape[1]
    for s in range(4):
        r = s // qlen
        tokens = [t for t in range(4) if t // qlen == r and t <= s]
        entries = torch.cat([cache[free[CONTEXT * r : CONTEXT * (r + 1)]], cache[slots[tokens]]])
        for h in range(heads):
            keys = torch.cat([entries[:, :LATENT] @ w_kv_b[h, 0].T, entries[:, LATENT:]], dim=1)
            values = entries[:, :LATENT] @ w_kv_b[h, 1].T
            query = torch.cat([run["QN"][s, h], run["q_pe"][s, h]])
            out = torch.softmax(keys @ query * SCALE, dim=0) @ values
            want = out * run["gate_out"][s, 128 * h : 128 * h + 128]
            torch.testing.assert_close(core[s, 128 * h : 128 * h + 128], want, rtol=1e-9, atol=1e-12)


def test_a_nan_reaches_only_the_tokens_that_see_it():
    case = k3lab.make_case("m1a", geometry="mini", tokens=4, nblocks=1, values="normal", null="none")
    run = k3lab.run("m1a", case)
    cache = run["kv_cache"].clone()
    slot = int(case.ranks[0]["slots"][3])
    cache[slot // cache.shape[1], slot % cache.shape[1]] = torch.nan
    spoiled = replace(run, ranks=[{**run.values, "kv_cache": cache}])
    core = decode_attention(spoiled)[0]
    assert core[:3].isfinite().all() and core[3].isnan().all()


def test_every_rank_gets_its_own_heads():
    case = k3lab.make_case("m1a", geometry="mini", tokens=4, nblocks=1, ranks=2, values="normal")
    cores = decode_attention(k3lab.run("m1a", case, backend="oracle"))
    assert len(cores) == 2 and cores[0].shape == (4, 256)
    assert not torch.equal(cores[0], cores[1])


def test_too_few_cache_slots_are_refused():
    case = k3lab.make_case("m1a", geometry="mini", tokens=4, nblocks=1, values="normal")
    run = k3lab.run("m1a", case)
    with pytest.raises(BadInput, match="cache slots beside"):
        decode_attention(run, qlen=1)
    with pytest.raises(BadInput, match="qlen: expected a divisor"):
        decode_attention(run, qlen=3)
