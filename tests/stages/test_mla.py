"""MLA twins against float64 formulas and an fp8 library."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import torch

from k3lab.arith import KernelOrder, Oracle
from k3lab.formats import FP8_E4M3
from k3lab.geometry import NOPE, ROPE, Geometry
from k3lab.launches import M1A
from k3lab.stages.mla.norm.twin import stage_norm
from k3lab.stages.mla.proj.twin import stage_proj
from k3lab.stages.mla.qb.twin import stage_qb
from k3lab.stages.mla.uk.twin import stage_uk
from k3lab.stages.mla.unpack.twin import stage_unpack

MINI = Geometry.mini()
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def key_for(tokens: int, **options):
    return M1A.key(MINI, tokens=tokens, nblocks=1, **options)


def bf16(*shape, seed=0, scale=1.0) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).bfloat16().float()


class TestProjAndNorm:
    def test_projections_and_gate(self):
        key = key_for(2)
        t = SimpleNamespace(
            x=bf16(2, MINI.hidden).double(),
            w_qkv=bf16(MINI.qkv_a, MINI.hidden, seed=1).double(),
            w_g=bf16(MINI.proj, MINI.hidden, seed=2, scale=0.02).double(),
        )
        made = stage_proj(Oracle("m1a"), t, key)
        torch.testing.assert_close(made["QA"], t.x @ t.w_qkv.T, rtol=1e-12, atol=1e-9)
        torch.testing.assert_close(made["gate_out"], torch.sigmoid(t.x @ t.w_g.T), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("eps", [1e-5, 1e-6])
    def test_latent_norms_are_rms_norms(self, eps):
        key = key_for(3, q_eps=eps, kv_eps=eps)
        t = norm_inputs(3, torch.float64)
        made = stage_norm(Oracle("m1a"), t, key)
        q, kv = t.QA[:, : MINI.q_lora], t.QA[:, MINI.q_lora : -ROPE]

        def normed(v, w):
            return v / (v.square().mean(-1, keepdim=True) + eps).sqrt() * w

        torch.testing.assert_close(made["QC"], normed(q, t.q_nw), rtol=1e-12, atol=1e-12)
        entry = torch.cat([normed(kv, t.kv_nw), t.QA[:, -ROPE:]], dim=-1)
        torch.testing.assert_close(made["kv_cache"][1, 3], entry[0], rtol=1e-12, atol=1e-12)

    def test_the_cache_entry_is_what_an_fp8_library_makes_of_the_bf16_values(self):
        key = key_for(3)
        t = norm_inputs(3, torch.float32, scale=200.0)  # k_pe reaches beyond 448
        before = t.kv_cache.clone()
        arith = KernelOrder("m1a")
        made = stage_norm(arith, t, key)
        kv = stage_norm_bf16(arith, t, key)
        for token, slot in ((0, (1, 3)), (2, (0, 0))):
            bf = torch.cat([kv[token], t.QA[token, -ROPE:]]).numpy()
            want = np.clip(bf, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
            assert np.array_equal(FP8_E4M3.encode(made["kv_cache"][slot].numpy()), want)
        untouched = torch.ones(before.shape[:2], dtype=torch.bool)
        untouched[1, 3] = untouched[0, 0] = False
        assert torch.equal(made["kv_cache"][untouched], before[untouched])

    def test_another_ranks_token_leaves_the_cache_but_has_its_query_latent(self):
        key = key_for(1)
        t = norm_inputs(1, torch.float32)
        t.slots = torch.tensor([-1])
        made = stage_norm(KernelOrder("m1a"), t, key)
        assert torch.equal(made["kv_cache"], t.kv_cache) and made["QC"].abs().sum() > 0


def norm_inputs(tokens: int, dtype, scale: float = 1.0) -> SimpleNamespace:
    return SimpleNamespace(
        QA=bf16(tokens, MINI.qkv_a, seed=5, scale=scale).to(dtype),
        q_nw=bf16(MINI.q_lora, seed=6).to(dtype),
        kv_nw=bf16(MINI.kv_lora, seed=7).to(dtype),
        kv_cache=torch.ones(2, 4, MINI.entry, dtype=dtype),
        slots=torch.tensor([7, -1, 0])[:tokens],
    )


def stage_norm_bf16(arith, t, key) -> torch.Tensor:
    """The bf16 kv latent before its fp8 rounding, from the recorded point."""
    from k3lab.rounding import Probe

    with Probe(record="m1a.norm.kv", keep=True) as seen:
        stage_norm(arith, t, key)
    return seen.values["m1a.norm.kv"][0].after


def uk_inputs(tokens: int, seed: int = 0) -> SimpleNamespace:
    rng = np.random.default_rng(seed)
    shape = (MINI.heads, MINI.kv_lora)
    return SimpleNamespace(
        QN=bf16(tokens, MINI.heads, NOPE, seed=seed),
        q_pe=torch.from_numpy(FP8_E4M3.round(rng.standard_normal((tokens, MINI.heads, ROPE)).astype(np.float32))),
        w_k=torch.from_numpy(rng.integers(0, 256, (*shape, NOPE // 2), dtype=np.uint8)),
        w_k_scale=torch.from_numpy(rng.integers(118, 124, (*shape, NOPE // 32), dtype=np.uint8)),
        w_kv_b=bf16(MINI.kv_b, MINI.kv_lora, seed=seed + 1, scale=0.05),
    )


def decoded(t: SimpleNamespace) -> np.ndarray:
    """W_K in float64, by a table and a power of two: no code of k3lab."""
    codes = np.stack([t.w_k.numpy() & 15, t.w_k.numpy() >> 4], axis=-1).reshape(*t.w_k.shape[:-1], NOPE)
    return E2M1[codes] * np.repeat(2.0 ** (t.w_k_scale.numpy().astype(int) - 127), 32, axis=-1)


def even_rule(x: np.ndarray) -> np.ndarray:
    """A block of 32 bf16 values in MXFP4, `even`: amax m 2^k has scale 2^(k-2) for m < 1.75, else 2^(k-1)."""
    amax = np.abs(x).max()
    k = int(np.floor(np.log2(amax)))
    scale = 2.0 ** (k - 2 if amax / 2.0**k < 1.75 else k - 1)
    return np.clip(x / scale, -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float64) * scale


class TestQuery:
    def test_q_b_cuts_each_head_into_nope_and_pe(self):
        key = key_for(2)
        t = SimpleNamespace(QC=bf16(2, MINI.q_lora).double(), w_qb=bf16(MINI.q_b, MINI.q_lora, seed=1).double())
        made = stage_qb(Oracle("m1a"), t, key)
        q = (t.QC @ t.w_qb.T).view(2, MINI.heads, NOPE + ROPE)
        torch.testing.assert_close(made["QN"], q[..., :NOPE], rtol=1e-12, atol=1e-9)
        torch.testing.assert_close(made["q_pe"], q[..., NOPE:], rtol=1e-12, atol=1e-9)

    def test_unrounded_is_the_float64_w_uk_product(self):
        key = key_for(3)
        t = uk_inputs(3)
        t.QN, t.q_pe = t.QN.double(), t.q_pe.double()
        query = stage_uk(Oracle("m1a"), t, key)["query"]
        want = np.einsum("shn,hln->shl", t.QN.numpy(), decoded(t))
        np.testing.assert_allclose(query[..., : MINI.kv_lora], want, rtol=1e-12, atol=1e-12)
        assert torch.equal(query[..., MINI.kv_lora :], t.q_pe)

    def test_exact_given_the_codes(self):
        """bf16 and fp8 of the exact product of MXFP4 values, summed in fractions."""
        key = key_for(2)
        t = uk_inputs(2, seed=3)
        query = stage_uk(KernelOrder("m1a"), t, key)["query"].numpy()
        w = decoded(t)
        for s in range(2):
            for h in range(MINI.heads):
                q = np.concatenate([even_rule(block) for block in t.QN[s, h].double().numpy().reshape(4, 32)])
                for latent in range(0, MINI.kv_lora, 37):
                    terms = (Fraction(float(a)) * Fraction(float(b)) for a, b in zip(q, w[h, latent], strict=True))
                    # Products of E2M1 values within a few binades: the sum is exact in fp32, so bf16 rounds it once.
                    exact = np.float32(float(sum(terms)))
                    bf = exact.astype(ml_dtypes.bfloat16).astype(np.float32)
                    want = np.clip(bf, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
                    assert query[s, h, latent] == want

    def test_qbf16_keeps_bf16_queries(self):
        t = uk_inputs(2)
        wide = stage_uk(KernelOrder("m1a"), t, key_for(2, qbf16=True))["query"]
        narrow = stage_uk(KernelOrder("m1a"), t, key_for(2))["query"]
        assert np.array_equal(FP8_E4M3.round(wide.numpy()), narrow.numpy())
        assert not torch.equal(wide, narrow)

    def test_a_nan_in_q_nope_vanishes(self):
        """NaN has no E2M1 code: the head looks finite."""
        t = uk_inputs(1)
        t.QN[0, 0, 3] = torch.nan
        assert stage_uk(KernelOrder("m1a"), t, key_for(1))["query"].isfinite().all()


class TestUnpack:
    @pytest.mark.parametrize(("ranks", "q_heads"), [(1, 2), (2, 4), (2, 7), (8, 16), (8, 32)])
    def test_heads_in_rank_order_then_pads_that_repeat_the_first(self, ranks, q_heads):
        key = key_for(2, ranks=ranks, q_heads=q_heads)
        query = torch.randn(ranks, 2, MINI.heads, MINI.entry)
        made = stage_unpack(KernelOrder("m1a"), SimpleNamespace(query=query), key)
        q_out = made["q_out"]
        assert q_out.shape == (2, q_heads, MINI.entry)
        for slot in range(q_heads):
            gathered = slot % (ranks * MINI.heads)
            rank, head = divmod(gathered, MINI.heads)
            assert torch.equal(q_out[:, slot], query[rank, :, head])
        assert ("QG" in made) == (ranks > 1)
