"""KDA twins against a second formulation: torch conv1d over the accepted history, a plain gated delta rule."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from k3lab.arith import KernelOrder, Oracle, TorchOrder
from k3lab.formats.tensor import bf16_pack, bf16_values
from k3lab.geometry import HEAD_DIM, Geometry
from k3lab.launches import K1
from k3lab.stages.kda.conv.twin import kda_conv
from k3lab.stages.kda.gates.twin import kda_gates
from k3lab.stages.kda.norm.twin import kda_norm
from k3lab.stages.kda.recur.twin import kda_recur

MINI = Geometry.mini()
CHANNELS = MINI.conv_channels


def key_for(requests: int, qlen: int, **options):
    return K1.key(MINI, tokens=requests * qlen, qlen=qlen, nblocks=1, **options)


def proj_rows(seed: int, key) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(key.tokens, MINI.nproj, generator=source).bfloat16().double()


class TestConv:
    @pytest.mark.parametrize("seed", range(3))
    def test_replay_equals_conv1d_over_the_accepted_history(self, seed):
        """Steps with random accepted counts: a rejected draft leaves no trace in output or state."""
        rng = np.random.default_rng(seed)
        qlen, requests = 4, 3
        key = key_for(requests, qlen)
        taps = torch.from_numpy(rng.standard_normal((CHANNELS, 4)))
        state = torch.zeros(requests + 1, CHANNELS, key.state_len, dtype=torch.float64)
        history = [torch.zeros(CHANNELS, 3, dtype=torch.float64) for _ in range(requests)]
        accepted = np.ones(requests, dtype=int)
        for step in range(5):
            proj = proj_rows(100 * seed + step, key)
            slots = torch.arange(1, requests + 1, dtype=torch.int32)[:, None].expand(-1, qlen)
            t = SimpleNamespace(
                PROJ=proj,
                conv_state=state,
                conv_w=taps,
                st_idx=slots,
                num_acc=torch.tensor(accepted, dtype=torch.int32),
            )
            made = kda_conv(Oracle("k1"), t, key)
            fresh = proj[:, :CHANNELS].view(requests, qlen, CHANNELS)
            for r in range(requests):
                sequence = torch.cat([history[r], fresh[r].T], dim=1)
                full = F.conv1d(sequence[None], taps[:, None], groups=CHANNELS)[0, :, -qlen:]
                want = (full * torch.sigmoid(full)).T
                q, k = (made["QK"][r, :, :, i].movedim(0, 1).reshape(qlen, -1) for i in (0, 1))
                got = torch.cat([q, k, made["v"][r].reshape(qlen, -1)], dim=1)
                torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
            accepted = rng.integers(1, qlen + 1, requests)
            history = [torch.cat([history[r], fresh[r, : accepted[r]].T], dim=1) for r in range(requests)]
            state = made["conv_state"]
            for r in range(requests):  # what the next step will read is the accepted history's tail
                window = state[r + 1, :, accepted[r] - 1 : accepted[r] + 2]
                assert torch.equal(window, history[r][:, -3:])

    @pytest.mark.parametrize("arith", [KernelOrder("k1"), TorchOrder("k1")], ids=["kernel", "torch"])
    def test_a_null_slot_reads_slot_zero_and_stores_nothing(self, arith):
        key = key_for(2, 2)
        state = torch.randn(3, CHANNELS, key.state_len).bfloat16().float()
        t = SimpleNamespace(
            PROJ=proj_rows(0, key).float(),
            conv_state=state,
            conv_w=torch.randn(CHANNELS, 4),
            st_idx=torch.tensor([[-1, 1], [0, 2]], dtype=torch.int32),
            num_acc=torch.tensor([1, 2], dtype=torch.int32),
        )
        made = kda_conv(arith, t, key)
        assert torch.equal(made["conv_state"], state)
        at_zero = kda_conv(arith, SimpleNamespace(**{**vars(t), "st_idx": torch.zeros(2, 2, dtype=torch.int32)}), key)
        assert torch.equal(made["QK"], at_zero["QK"]) and torch.equal(made["v"], at_zero["v"])
        assert made["QK"].abs().sum() > 0

    def test_carried_entries_keep_every_nan_payload(self):
        key = key_for(1, 2)
        bits = torch.tensor([0x7F81, -1, 0x7FC5, -0x7F], dtype=torch.int16)  # signalling and quiet payloads
        stored = torch.zeros(2, CHANNELS, key.state_len, dtype=torch.int16)
        stored[1] = bits
        t = SimpleNamespace(
            PROJ=proj_rows(0, key).float(),
            conv_state=bf16_values(stored.view(torch.bfloat16)),
            conv_w=torch.randn(CHANNELS, 4),
            st_idx=torch.tensor([[1, 1]], dtype=torch.int32),
            num_acc=torch.tensor([2], dtype=torch.int32),
        )
        new = bf16_pack(kda_conv(KernelOrder("k1"), t, key)["conv_state"]).view(torch.int16)
        assert torch.equal(new[1, :, :2], bits[2:].expand(CHANNELS, 2))

    def test_taps_are_summed_from_zero(self):
        """All products -0.0: a sum from 0.0 is +0.0, and silu keeps its sign."""
        key = key_for(1, 1)
        t = SimpleNamespace(
            PROJ=torch.full((1, MINI.nproj), -0.0),
            conv_state=torch.full((2, CHANNELS, key.state_len), -0.0),
            conv_w=torch.ones(CHANNELS, 4),
            st_idx=torch.tensor([[1]], dtype=torch.int32),
            num_acc=torch.tensor([1], dtype=torch.int32),
        )
        v = kda_conv(KernelOrder("k1"), t, key)["v"]
        assert not v.signbit().any() and not v.any()


def recur_inputs(key, seed: int, slots: int):
    source = torch.Generator().manual_seed(seed)
    shape = (key.requests, key.qlen, MINI.heads, HEAD_DIM)

    def unit(x):
        return x / x.norm(dim=-1, keepdim=True)

    return SimpleNamespace(
        rstate=torch.randn(slots, MINI.heads, HEAD_DIM, HEAD_DIM, generator=source, dtype=torch.float64),
        decay=torch.rand(shape, generator=source, dtype=torch.float64),
        beta=torch.rand(shape[:3], generator=source, dtype=torch.float64),
        qn=unit(torch.randn(shape, generator=source, dtype=torch.float64)),
        kn=unit(torch.randn(shape, generator=source, dtype=torch.float64)),
        v=torch.randn(shape, generator=source, dtype=torch.float64),
    )


def delta_rule(state: np.ndarray, decay, beta, q, k, v) -> tuple[np.ndarray, np.ndarray]:
    """One token of one head: S = S diag(decay) (I - beta k k^T) + beta v k^T; o = S q."""
    faded = state * decay[None, :]
    state = faded @ (np.eye(HEAD_DIM) - beta * np.outer(k, k)) + beta * np.outer(v, k)
    return state, state @ q


class TestRecur:
    @pytest.mark.parametrize("seed", range(2))
    def test_equals_the_textbook_delta_rule(self, seed):
        key = key_for(2, 3)
        t = recur_inputs(key, seed, slots=8)
        t.st_idx = torch.tensor([[1, 2, 3], [5, 4, 6]], dtype=torch.int32)
        t.num_acc = torch.tensor([1, 3], dtype=torch.int32)
        made = kda_recur(Oracle("k1"), t, key)
        for r, first in enumerate((1, 6)):
            for h in range(MINI.heads):
                state = t.rstate[first, h].numpy()
                for j in range(3):
                    parts = (getattr(t, n)[r, j, h].numpy() for n in ("decay", "beta", "qn", "kn", "v"))
                    state, out = delta_rule(state, *parts)
                    np.testing.assert_allclose(made["o"][r, j, h], out, rtol=1e-9, atol=1e-9)
                    np.testing.assert_allclose(made["rstate"][t.st_idx[r, j], h], state, rtol=1e-9, atol=1e-9)
        untouched = [0, 7]
        assert torch.equal(made["rstate"][untouched], t.rstate[untouched])

    def test_replay_with_rejected_drafts_equals_never_having_seen_them(self):
        """Two steps, one draft of three accepted: the second step's outputs are those of the accepted tokens alone."""
        key = key_for(1, 3)
        t = recur_inputs(key, 0, slots=4)
        t.st_idx, t.num_acc = torch.tensor([[1, 2, 3]], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
        after = kda_recur(Oracle("k1"), t, key)["rstate"]
        second = recur_inputs(key, 1, slots=4)
        second.rstate, second.st_idx = after, t.st_idx
        second.num_acc = torch.tensor([2], dtype=torch.int32)
        got = kda_recur(Oracle("k1"), second, key)["o"]

        plain_key = key_for(1, 5)
        joined = {
            name: torch.cat([getattr(t, name)[:, :2], getattr(second, name)], dim=1)
            for name in ("decay", "beta", "qn", "kn", "v")
        }
        plain = SimpleNamespace(
            **joined,
            rstate=torch.cat([t.rstate[:2], torch.zeros(4, *t.rstate.shape[1:], dtype=torch.float64)]),
            st_idx=torch.tensor([[1, 2, 3, 4, 5]], dtype=torch.int32),
            num_acc=torch.tensor([1], dtype=torch.int32),
        )
        want = kda_recur(Oracle("k1"), plain, plain_key)["o"][:, 2:]
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("initial", [0, -1, 2])
    @pytest.mark.parametrize("targets", [(1, 3), (0, 3), (1, -7), (0, 0)])
    def test_null_slots_one_by_one(self, initial, targets):
        """The initial slot and each target are null independently; a null initial slot silences the request."""
        key = key_for(1, 2)
        t = recur_inputs(key, 3, slots=4)
        t = SimpleNamespace(**{name: value.float() for name, value in vars(t).items()})
        t.rstate[0] = torch.nan  # never read as a state
        t.st_idx = torch.tensor([targets], dtype=torch.int32)
        t.num_acc = torch.tensor([1], dtype=torch.int32)
        if initial != targets[0]:  # read from the second column instead
            t.st_idx = torch.tensor([[targets[0], initial]], dtype=torch.int32)
            t.num_acc = torch.tensor([2], dtype=torch.int32)
        slots = t.st_idx[0].tolist()
        made = kda_recur(KernelOrder("k1"), t, key)
        live = slots[int(t.num_acc) - 1] > 0
        written = {slot for slot in slots if slot > 0} if live else set()
        for slot in range(1, 4):
            assert torch.equal(made["rstate"][slot], t.rstate[slot]) == (slot not in written)
        assert made["rstate"][0].isnan().all()
        if not live:
            assert not made["o"].any() and not made["o"].signbit().any() and not made["ONRM"].any()
        assert made["o"].isfinite().all()

    def test_chunk_squares_start_from_zero_and_follow_the_rounded_output(self):
        key = key_for(1, 1)
        t = SimpleNamespace(**{name: value.float() for name, value in vars(recur_inputs(key, 4, slots=2)).items()})
        t.st_idx, t.num_acc = torch.tensor([[1]], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
        made = kda_recur(KernelOrder("k1"), t, key)
        o = made["o"][0, 0].numpy()
        for h in range(MINI.heads):
            for chunk in range(8):
                total = np.float32(0)
                for value in o[h, 16 * chunk : 16 * chunk + 16]:
                    total = total + value * value
                assert made["ONRM"][0, h, 0, chunk].item() == total


class TestGatesAndNorm:
    def test_gates_against_plain_formulas(self):
        key = key_for(2, 2)
        proj = proj_rows(0, key)
        source = torch.Generator().manual_seed(1)
        t = SimpleNamespace(
            PROJ=proj,
            QK=torch.randn(2, MINI.heads, 2, 2, HEAD_DIM, generator=source, dtype=torch.float64),
            w_fb=torch.randn(MINI.proj, HEAD_DIM, generator=source, dtype=torch.float64) / 11,
            a_log=torch.randn(MINI.heads, generator=source, dtype=torch.float64),
            dt_bias=torch.randn(MINI.proj, generator=source, dtype=torch.float64),
        )
        made = kda_gates(Oracle("k1"), t, key)
        p = MINI.proj
        f_a, beta = proj[:, 4 * p : 4 * p + 128], proj[:, 4 * p + 128 : 4 * p + 128 + MINI.heads]
        for s in range(key.tokens):
            r, j = divmod(s, 2)
            for h in range(MINI.heads):
                rows = slice(128 * h, 128 * h + 128)
                raw = t.w_fb[rows] @ f_a[s] + t.dt_bias[rows]
                decay = torch.exp(-5 / (1 + torch.exp(-t.a_log[h].exp() * raw)))
                torch.testing.assert_close(made["decay"][r, j, h], decay, rtol=1e-12, atol=0)
                torch.testing.assert_close(made["beta"][r, j, h], torch.sigmoid(beta[s, h]), rtol=1e-12, atol=0)
                q, k = t.QK[r, h, j]
                torch.testing.assert_close(made["kn"][r, j, h], k / (k @ k + 1e-6).sqrt(), rtol=1e-12, atol=0)
                want = q / (q @ q + 1e-6).sqrt() / HEAD_DIM**0.5
                torch.testing.assert_close(made["qn"][r, j, h], want, rtol=1e-12, atol=0)

    def test_norm_against_rms_norm(self):
        key = key_for(1, 3)
        proj = proj_rows(2, key)
        o = torch.randn(1, 3, MINI.heads, HEAD_DIM, dtype=torch.float64)
        on_w = torch.randn(HEAD_DIM, dtype=torch.float64)
        onrm = o.square().unflatten(-1, (8, 16)).sum(-1).movedim(1, 2)
        core = kda_norm(Oracle("k1"), SimpleNamespace(PROJ=proj, o=o, ONRM=onrm, on_w=on_w), key)["core_out"]
        gate = torch.sigmoid(proj[:, 3 * MINI.proj : 4 * MINI.proj])
        want = F.rms_norm(o[0], (HEAD_DIM,), on_w, eps=1e-5).reshape(3, -1) * gate
        torch.testing.assert_close(core, want, rtol=1e-12, atol=1e-15)

    def test_a_silent_request_leaves_signed_zeros_where_the_weight_is_negative(self):
        """o = +0.0: core = ((0 r) on_w) sigmoid(g) is -0.0 where on_w < 0."""
        key = key_for(1, 1)
        on_w = torch.tensor([1.0, -1.0]).repeat(64)
        zeros = torch.zeros(1, 1, MINI.heads, HEAD_DIM)
        t = SimpleNamespace(PROJ=proj_rows(0, key).float(), o=zeros, ONRM=torch.zeros(1, MINI.heads, 1, 8), on_w=on_w)
        core = kda_norm(KernelOrder("k1"), t, key)["core_out"]
        assert not core.any()
        assert torch.equal(core.signbit(), (on_w < 0).repeat(MINI.heads)[None])
