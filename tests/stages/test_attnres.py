"""AttnRes twins against a softmax over normalised sources."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from k3lab.arith import KernelOrder, Oracle
from k3lab.geometry import Geometry
from k3lab.launches import K1
from k3lab.stages.attnres.gate.twin import stage_gate
from k3lab.stages.attnres.mix.twin import stage_mix
from k3lab.stages.attnres.slice.twin import stage_slice

MINI = Geometry.mini()


def inputs(key, seed: int, dtype=torch.float64) -> SimpleNamespace:
    source = torch.Generator().manual_seed(seed)

    def draw(*shape, scale=1.0):
        return (torch.randn(*shape, generator=source) * scale).bfloat16().to(dtype)

    return SimpleNamespace(
        prefix=draw(key.tokens, MINI.hidden),
        delta=draw(key.tokens, MINI.hidden),
        blocks=draw(key.tokens, key.nblocks + 2, MINI.hidden),
        ares_nw=draw(MINI.hidden),
        ares_qk=draw(MINI.hidden, scale=0.05),
        in_nw=draw(MINI.hidden),
    )


def seam(arith, t, key) -> dict[str, torch.Tensor]:
    made = stage_slice(arith, t, key)
    made |= stage_gate(arith, SimpleNamespace(**made), key)
    return made | stage_mix(arith, SimpleNamespace(**made, in_nw=t.in_nw), key)


@pytest.mark.parametrize("nblocks", [0, 1, 4, 8])
@pytest.mark.parametrize("delta", [True, False])
def test_equals_a_softmax_over_normalised_sources(nblocks, delta):
    key = K1.key(MINI, tokens=3, nblocks=nblocks, delta=delta)
    t = inputs(key, seed=nblocks)
    made = seam(Oracle("k1"), t, key)

    prefix = t.prefix + t.delta if delta else t.prefix
    sources = torch.cat([t.blocks[:, :nblocks], prefix[:, None]], dim=1)
    keys = sources / (sources.square().mean(-1, keepdim=True) + 1e-5).sqrt() * t.ares_nw
    weights = torch.softmax(keys @ t.ares_qk, dim=-1)
    mixed = (weights[..., None] * sources).sum(1)
    want = mixed / (mixed.square().mean(-1, keepdim=True) + 1e-5).sqrt() * t.in_nw
    torch.testing.assert_close(made["x"], want, rtol=1e-11, atol=1e-11)
    assert torch.equal(made["prefix"], prefix)


def test_the_written_block_is_the_new_prefix_and_no_source_changes():
    key = K1.key(MINI, tokens=2, nblocks=3, write_idx=4)
    t = inputs(key, seed=9)
    blocks = stage_slice(Oracle("k1"), t, key)["blocks"]
    assert torch.equal(blocks[:, 4], t.prefix + t.delta)
    assert torch.equal(blocks[:, :4], t.blocks[:, :4])


def test_the_mix_starts_from_zero():
    """Every source -0.0: the mix is +0.0 / den, so x has the sign of its weight alone."""
    key = K1.key(MINI, tokens=1, nblocks=2, delta=False)
    t = inputs(key, seed=1, dtype=torch.float32)
    t.prefix, t.blocks = torch.full_like(t.prefix, -0.0), torch.full_like(t.blocks, -0.0)
    x = seam(KernelOrder("k1"), t, key)["x"]
    assert not x.any() and torch.equal(x[0].signbit(), t.in_nw.signbit())


def test_a_nan_source_poisons_its_token_only():
    key = K1.key(MINI, tokens=2, nblocks=2)
    t = inputs(key, seed=2, dtype=torch.float32)
    t.blocks[0, 0, 5] = torch.nan
    made = seam(KernelOrder("k1"), t, key)
    assert made["x"][0].isnan().all() and made["x"][1].isfinite().all()
    assert made["WGT"][0].isnan().all()
