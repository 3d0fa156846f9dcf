"""What is compared with AITER, on stand-ins for its operators; on AITER itself where there is a gfx950 that has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import k3lab
from k3lab.analysis import aiter, selftest
from k3lab.analysis.aiter import compare_decode, compare_quantiser, every_amax, sequences
from k3lab.analysis.attention import CONTEXT
from k3lab.backends import gfx950
from k3lab.errors import BackendUnavailable, BadInput
from k3lab.formats import E2M1, E8M0, mx
from k3lab.formats.tensor import as_array, bf16_values

Made = tuple[torch.Tensor, torch.Tensor]


def packed(codes: np.ndarray, scales: np.ndarray) -> Made:
    """As AITER hands them over: where torch has a type of its own for E8M0, in that."""
    return torch.from_numpy(mx.pack_nibbles(codes)), torch.from_numpy(scales).view(torch.float8_e8m0fnu)


def same_rule(x: torch.Tensor) -> Made:
    return packed(*mx.quantise(as_array(bf16_values(x))))


def ties_away(x: torch.Tensor) -> Made:
    """A quantiser that takes the larger magnitude at a tie."""
    values = as_array(bf16_values(x)).astype(np.float64)
    scales = mx.block_scale(values)
    beyond = values / np.repeat(E8M0.decode(scales).astype(np.float64), mx.BLOCK, axis=-1) * (1 + 2.0**-30)
    return packed(E2M1.encode(beyond), scales)


def unraised(x: torch.Tensor) -> Made:
    """One that leaves code 0 as it is."""
    codes, _ = mx.quantise(as_array(bf16_values(x)))
    return packed(codes, mx.even_code(mx.amax_bits(as_array(bf16_values(x)))))


def from_one_and_a_half(x: torch.Tensor) -> Made:
    """One whose scale goes up from a mantissa of 1.5 on."""
    values = as_array(bf16_values(x))
    codes, _ = mx.quantise(values)
    exponent = (mx.amax_bits(values).astype(np.int64) + 0x400000) >> 23
    return packed(codes, np.maximum(exponent - 2, 1).astype(np.uint8))


def test_every_amax_is_there_once():
    x = every_amax()
    assert x.shape == (8160, 128) and x.dtype == torch.bfloat16
    amax = bf16_values(x).abs().view(-1, 32).amax(-1)
    assert torch.equal(amax, torch.arange(0x7F80, dtype=torch.int32).bitwise_left_shift(16).view(torch.float32))


def test_a_quantiser_of_the_same_rule_is_equal():
    found = compare_quantiser(same_rule, every_amax())
    assert found.equal and str(found) == "equal in 32640 blocks"
    assert found.values == 32640 * 32


def test_ties_that_go_elsewhere_are_told_from_other_faults():
    found = compare_quantiser(ties_away, every_amax())
    assert found.scales == 0 and found.codes == found.ties > 0 and not found.equal

    def one_off(x: torch.Tensor) -> Made:
        made, scales = ties_away(x)
        made[8000, 5] ^= 0x10  # the odd element of the byte, by one code
        return made, scales

    worse = compare_quantiser(one_off, every_amax())
    assert worse.codes - worse.ties == 1
    assert f"({worse.ties} of them ties)" in str(worse)


def test_small_blocks_are_told_from_another_scale_rule():
    found = compare_quantiser(unraised, every_amax())
    # Code 0: amax below 1.75 x 2^-125, whose bf16 bits are below 2 x 128 + 96.
    assert found.scales == found.small == 2 * 128 + 96
    assert found.values == (32640 - found.scales) * 32 and found.codes == 0
    other = compare_quantiser(from_one_and_a_half, every_amax())
    # A quarter of the 128 mantissas, in every binade whose code is not raised to 1: exponent fields 3 to 254.
    assert (other.scales, other.small) == (252 * 32, 0)


def test_a_quantiser_of_another_shape_is_refused():
    with pytest.raises(BadInput, match=r"bytes and scales: expected shapes \(\(4, 64\), \(4, 4\)\)"):
        compare_quantiser(lambda x: (same_rule(x)[0], same_rule(x)[1][:2]), every_amax()[:4])
    with pytest.raises(BadInput, match="bytes and scales"):
        compare_quantiser(lambda x: (same_rule(x)[0].repeat(1, 2), same_rule(x)[1]), every_amax()[:4])


# -- decode attention --------------------------------------------------------------------------------------------------


def decode(
    q: torch.Tensor, kv_buffer: torch.Tensor, o: torch.Tensor, qo_indptr: torch.Tensor, kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor, kv_last_page_lens: torch.Tensor, max_seqlen_q: int, sm_scale: float, *,
    q_scale: torch.Tensor, kv_scale: torch.Tensor, left_out: int = 0,
) -> None:  # fmt: skip
    """A stand-in with the arguments of `aiter.mla.mla_decode_fwd`: float64, head by head; may leave entries out."""
    assert q.dtype == kv_buffer.dtype == torch.float8_e4m3fn and o.dtype == torch.bfloat16
    assert q.is_contiguous() and q.shape[1] in (16, 128) and kv_buffer.shape[1:] == (1, 1, 576) and max_seqlen_q == 1
    indices = (qo_indptr, kv_indptr, kv_indices, kv_last_page_lens)
    assert all(index.dtype == torch.int32 for index in indices) and (kv_last_page_lens == 1).all()
    assert qo_indptr.tolist() == list(range(len(q) + 1)) and q_scale.item() == kv_scale.item() == 1.0
    for s in range(len(q)):
        first, last = kv_indptr[s : s + 2].tolist()
        entries = kv_buffer[kv_indices[first : last - left_out].long(), 0, 0].double()
        for h in range(q.shape[1]):
            weights = torch.softmax(entries @ q[s, h].double() * sm_scale, dim=0)
            o[s, h] = (weights @ entries[:, :512]).bfloat16()


@pytest.fixture(scope="module")
def made() -> k3lab.Run:
    return k3lab.run("m1a", k3lab.make_case("m1a", geometry="mini", tokens=4, nblocks=1, slots=200))


@pytest.mark.parametrize("qlen", [None, 2])
def test_decode_gets_what_torchs_attention_sees(made: k3lab.Run, qlen: int | None):
    found = compare_decode(made, decode, qlen=qlen)
    assert (found.tokens, found.heads) == (4, 2) and found.figures.count == 4 * 2 * 512
    # Half an ulp of bf16 at most, 2^-9 of each value; float32 sums of 66 entries are off by 1 in 10^5 at most.
    assert found.figures.relative_rms <= 2.0**-9 + 1e-5
    assert "4 tokens of 2 heads: rms difference" in str(found)


def test_a_decode_that_misses_an_entry_shows(made: k3lab.Run):
    found = compare_decode(made, lambda *args, **named: decode(*args, **named, left_out=1))
    assert found.figures.relative_rms > 0.01


def test_heads_are_padded_by_heads():
    assert [aiter.padded_heads(heads) for heads in (2, 12, 16, 96)] == [16, 16, 16, 128]
    with pytest.raises(BadInput, match="decode: expected at most 128 heads, got 192"):
        aiter.padded_heads(192)


def test_pads_repeat_the_heads(made: k3lab.Run):
    seen: list[torch.Tensor] = []
    compare_decode(made, lambda q, kv, o, **rest: seen.append(q.float()))
    assert torch.equal(seen[0].unflatten(1, (8, 2)), made["q_out"][:, None].expand(-1, 8, -1, -1))


def test_every_token_is_a_sequence():
    seen = torch.tensor([[True, False, True], [False, True, True]])
    found = sequences(torch.tensor([7, 3, 9]), seen)
    assert {name: index.tolist() for name, index in found.items()} == {
        "qo_indptr": [0, 1, 2],
        "kv_indptr": [0, 2, 4],
        "kv_indices": [7, 9, 3, 9],
        "kv_last_page_lens": [1, 1],
    }


def test_a_token_sees_the_context_and_the_tokens_up_to_itself(made: k3lab.Run):
    counts: list[int] = []
    compare_decode(made, lambda q, kv, o, *, kv_indptr, **rest: counts.extend(kv_indptr.diff().tolist()))
    own = (made.case.tensors["slots"] >= 0).long().cumsum(0)
    assert counts == [CONTEXT + int(n) for n in own]


def test_what_cannot_be_compared_is_refused():
    mini: dict[str, Any] = {"geometry": "mini", "tokens": 1, "nblocks": 0}
    for launch, options, why in (
        ("m1a", {"ranks": 2}, "a run of m1a on one rank"),
        ("k2a", {"ranks": 1}, "a run of m1a on one rank"),
        ("m1a", {"qbf16": True}, "fp8 queries"),
    ):
        with pytest.raises(BadInput, match=f"decode: expected {why}"):
            compare_decode(k3lab.run(launch, k3lab.make_case(launch, **mini, **options)), decode)


# -- where AITER is ----------------------------------------------------------------------------------------------------


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.version.hip", None)
    with pytest.raises(BackendUnavailable, match=r"gfx950: expected a ROCm build of torch"):
        aiter.check_here()
    device = SimpleNamespace(name="MI355X", gcnArchName="gfx950:sramecc+", multi_processor_count=256)
    monkeypatch.setattr(gfx950, "check_torch", lambda: None)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda place: device)
    monkeypatch.setattr(aiter, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable, match=r"aiter: expected AMD's AITER, got none; environment.yml says how"):
        aiter.check_here()
    monkeypatch.setattr(aiter, "find_spec", lambda name: SimpleNamespace(name=name))
    aiter.check_here()
    device.gcnArchName = "gfx942"
    with pytest.raises(BackendUnavailable, match="expected an AMD gfx950 device, got MI355X"):
        aiter.check_here()


def test_the_self_test_shows_it_beside_and_does_not_judge_it(monkeypatch: pytest.MonkeyPatch, tmp_path):
    def broken() -> tuple[bool, str]:
        raise AssertionError("nhead=12 not supported")

    checks = {"a quantiser": lambda: (False, "another code in 3"), "decode": broken}
    monkeypatch.setattr(aiter, "CHECKS", checks)
    monkeypatch.setattr(aiter, "check_here", lambda: None)
    steps: list[str] = []
    rows = selftest.beside(steps.append)
    assert steps == ["AITER, a quantiser", "AITER, decode"] and selftest.aiter_missing() == []
    assert [row.outcome for row in rows] == ["another code in 3", "stopped: AssertionError: nhead=12 not supported"]
    ours = selftest.Row("k1", "tokens=4", "whole", True, "equal in all 9 tensors", 1.0)
    made = selftest.SelfTest("gfx950", "MI355X", "now", {}, [ours, *rows], {}, [], [])
    assert made.passed and not made.stopped and made.verdict == "All 1 comparison are equal to the twin, bit for bit."
    page = made.save(tmp_path).read_text()
    assert "no, not judged" in page and "nhead=12 not supported" in page


def test_the_self_test_says_why_aiter_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path):
    def missing() -> None:
        raise BackendUnavailable("aiter: expected AMD's AITER, got none.")

    monkeypatch.setattr(aiter, "check_here", missing)
    notes = selftest.aiter_missing()
    assert notes == ["aiter: expected AMD's AITER, got none."]
    made = selftest.SelfTest("gfx950", "MI355X", "now", {}, [], {}, [], notes)
    assert notes[0].replace("'", "&#39;") in made.save(tmp_path).read_text()
    monkeypatch.setattr(aiter, "check_here", lambda: None)
    more = selftest.steps(["k1"], "gfx950", "mini")
    monkeypatch.setattr(aiter, "check_here", missing)
    assert more - selftest.steps(["k1"], "gfx950", "mini") == len(aiter.CHECKS)


@pytest.fixture
def real() -> None:
    """Skips, with the reason, where AITER cannot run."""
    try:
        aiter.check_here()
    except BackendUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.gpu
@pytest.mark.usefixtures("real")
def test_aiters_triton_quantiser_differs_where_its_source_says():
    from aiter.ops.triton.quant import dynamic_mxfp4_quant

    found = compare_quantiser(dynamic_mxfp4_quant, every_amax().cuda())
    assert (found.scales, found.codes) == (found.small, found.ties)


@pytest.mark.gpu
@pytest.mark.full
@pytest.mark.usefixtures("real")
def test_aiters_decode_is_near_torchs():
    """Even if it rounds its weights to e4m3 (2^-4 of each at most), and then the result to bf16 (2^-9)."""
    from aiter.mla import mla_decode_fwd

    made = k3lab.run("m1a", k3lab.make_case("m1a", **aiter.CASE))
    figures = compare_decode(made, mla_decode_fwd, "cuda").figures
    assert figures.max_error <= (2.0**-4 + 2.0**-9) * float(made["kv_cache"].abs().max())
