"""AMD's AITER beside k3lab, on a gfx950 that has it: its MXFP4 quantisers and its MLA decode attention.

Nobody has run this yet. Names, shapes and rules are read from the source of amd-aiter 0.1.7.post2.dev18:

- `aiter.ops.triton.quant.dynamic_mxfp4_quant(x)`, x [M, N]: bytes [M, N / 2], the even element in the low nibble, and
  E8M0 codes [M, N / 32]. The `even` rule, but code 0 where the kernels here raise it to 1 (amax below 1.75 x 2^-125),
  and ties of E2M1 go away from 0, where the kernels' instruction takes the even code.
- `aiter.ops.quant.per_1x32_f4_quant_hip(x)`: the same shapes, in torch's own fp4 and E8M0 types where it has them. Its
  scale goes up from a mantissa of 1.5 on, where `even` waits for 1.75, and takes no amax below 1e-10.
- `aiter.mla.mla_decode_fwd(q, kv_buffer, o, qo_indptr, kv_indptr, kv_indices, kv_last_page_lens, max_seqlen_q,
  sm_scale, q_scale=, kv_scale=)`: fp8 queries [S, heads, 576] over pages [pages, page size, 1, 576] into o [S, heads,
  512] bf16. On gfx950 it takes 16 or 128 heads: pads repeat the first. Here each token is a sequence of its own, so
  that no mask of AITER's is relied on, and a page is one entry: which page sizes its fp8 kernels take is not said.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from k3lab.analysis.attention import SCALE, attend, visible
from k3lab.analysis.words import number, plural
from k3lab.backends import Run, gfx950, run
from k3lab.cases import make_case
from k3lab.errors import BackendUnavailable, expect
from k3lab.formats import E2M1, E8M0, FP8_E4M3, mx
from k3lab.formats.tensor import as_array, bf16_from_bits, bf16_round, bf16_values
from k3lab.geometry import NOPE
from k3lab.stats import Figures, error_stats

Quantise = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""x [M, N] bf16 -> E2M1 packed two a byte [M, N / 2], and E8M0 codes [M, N / 32], types of one byte an element."""
Decode = Callable[..., Any]
"""`aiter.mla.mla_decode_fwd`, or what takes the same arguments and fills its third."""

CASE: Mapping[str, Any] = {"tokens": 4, "nblocks": 4, "ranks": 1}
"""The M1a launch, at full size, whose q_nope, q_out and kv_cache are taken."""
HEADS = (16, 128)
"""Numbers of query heads that AITER's fp8 decode takes."""
FINITE = 0x7F80
"""Positive bf16 bit patterns that are numbers."""

_MAGNITUDES = E2M1.decode(np.arange(E2M1.top_code + 1, dtype=np.uint8)).astype(np.float64)
_TIES = (_MAGNITUDES[1:] + _MAGNITUDES[:-1]) / 2


def check_here() -> None:
    """Whether AITER can run here.

    Raises:
        BackendUnavailable: when there is no gfx950 that torch can use, or no AITER.
    """
    gfx950.check_torch()
    gfx950.check_device(torch.cuda.get_device_properties(0), 1)
    if find_spec("aiter") is None:
        raise BackendUnavailable("aiter: expected AMD's AITER, got none; environment.yml says how to install it.")


@dataclass(frozen=True)
class QuantiserCheck:
    """How a quantiser's MXFP4 differs from `k3lab.formats.mx` by the `even` rule.

    Attributes:
        scales: of `blocks`, those with another scale; `small` of these have an amax that ours raises to code 1.
        codes: of the `values` in blocks of the same scale, those with another code; `ties` of these lie on a tie.
    """

    blocks: int
    scales: int
    small: int
    values: int
    codes: int
    ties: int

    @property
    def equal(self) -> bool:
        """Whether there is no difference at all."""
        return not (self.scales or self.codes)

    def __str__(self) -> str:
        if self.equal:
            return f"equal in {plural(self.blocks, 'block')}"
        scales = f"{self.scales} of {plural(self.blocks, 'block')} ({self.small} of them small: ours is code 1)"
        codes = f"{self.codes} of {plural(self.values, 'value')} under one scale ({self.ties} of them ties)"
        return f"another scale in {scales}; another code in {codes}"


def compare_quantiser(quantise: Quantise, x: torch.Tensor) -> QuantiserCheck:
    """Hold `quantise` against ours on `x: [M, N]`, bf16 on any device, N a multiple of 32.

    Raises:
        BadInput: when what it returns has another shape.
    """
    packed, scales = (made.view(torch.uint8).cpu().numpy() for made in quantise(x))
    rows, columns = x.shape
    shapes = (packed.shape, scales.shape)
    wanted = ((rows, columns // 2), (rows, columns // mx.BLOCK))
    expect(shapes == wanted, "a quantiser's bytes and scales", f"shapes {wanted}", shapes)
    values = as_array(bf16_values(x))
    codes, ours = mx.quantise(values)
    other_scale = scales != ours
    small = mx.even_code(mx.amax_bits(values)) < ours
    judged = np.repeat(~other_scale, mx.BLOCK, axis=-1)
    other_code = judged & (mx.unpack_nibbles(packed) != codes)
    scaled = np.abs(values) / np.repeat(E8M0.decode(ours).astype(np.float64), mx.BLOCK, axis=-1)
    tie = np.isin(scaled, _TIES)
    counts = (other_scale, other_scale & small, judged, other_code, other_code & tie)
    return QuantiserCheck(other_scale.size, *(int(count.sum()) for count in counts))


def every_amax() -> torch.Tensor:
    """[8160, 128] bf16: for each finite bf16 amax, 0 among them, a block of amax k / 32, k = 1 .. 32, of both signs."""
    amax = bf16_values(bf16_from_bits(np.arange(FINITE, dtype=np.uint16)))
    steps = torch.arange(1, mx.BLOCK + 1) / mx.BLOCK * torch.tensor([1.0, -1.0]).repeat(mx.BLOCK // 2)
    return bf16_round((amax[:, None] * steps).view(-1, NOPE))


@dataclass(frozen=True)
class DecodeCheck:
    """A decode attention beside torch's on the latent output; the unit of `figures` is bf16, to which it rounds."""

    tokens: int
    heads: int
    figures: Figures

    def __str__(self) -> str:
        figures = self.figures
        return (
            f"{plural(self.tokens, 'token')} of {plural(self.heads, 'head')}: rms difference from torch's attention "
            f"{number(figures.relative_rms)} of its rms, at most {number(figures.max_error)}"
        )


def compare_decode(made: Run, decode: Decode, device: str = "cpu", qlen: int | None = None) -> DecodeCheck:
    """Run `decode` on the q_out and kv_cache of `made`, a run of M1a on one rank, beside `k3lab.analysis.attention`.

    What is compared is the latent [S, heads, KV_LORA], before W_UV and the gate.

    Args:
        qlen: tokens of a request; the step is one request, if None.

    Raises:
        BadInput: for several ranks or bf16 queries.
    """
    key = made.key
    expect(made.launch.name == "m1a" and key.rank_count == 1, "decode", "a run of m1a on one rank", repr(made))
    expect(not getattr(key, "qbf16", False), "decode", "fp8 queries", "bf16 ones (qbf16)")
    slots, seen = visible(made, 0, qlen or key.tokens)
    query, entries = made["q_out"], made["kv_cache"].flatten(0, 1)
    heads, latent = query.shape[1], key.geometry.kv_lora
    padded = query[:, torch.arange(padded_heads(heads)) % heads]  # pads repeat the heads, as q_out's own do
    out = torch.empty(*padded.shape[:2], latent, dtype=torch.bfloat16, device=device)
    one = torch.ones(1, dtype=torch.float32, device=device)
    index = {name: value.to(device) for name, value in sequences(slots, seen).items()}
    pages = _fp8(entries)[:, None, None].to(device)
    decode(
        *(_fp8(padded).to(device), pages, out),
        **index,
        max_seqlen_q=1,
        sm_scale=SCALE,
        q_scale=one,
        kv_scale=one,
    )
    want = attend(query, entries[slots], seen, latent).out
    return DecodeCheck(key.tokens, heads, error_stats(want, out[:, :heads].cpu().float(), "bf16").figures())


def padded_heads(heads: int) -> int:
    """The least number of heads that AITER takes and that holds `heads`.

    Raises:
        BadInput: when there is none.
    """
    expect(heads <= HEADS[-1], "decode", f"at most {HEADS[-1]} heads", heads)
    return next(count for count in HEADS if count >= heads)


def sequences(slots: torch.Tensor, seen: torch.Tensor) -> dict[str, torch.Tensor]:
    """Every token as a sequence of its own, over pages of one entry: AITER's index tensors, int32, by its names.

    Args:
        slots: cache slots [T].
        seen: which of them each token sees [S, T].
    """
    tokens = len(seen)
    ends = seen.sum(dim=1).cumsum(0)
    return {
        "qo_indptr": torch.arange(tokens + 1, dtype=torch.int32),
        "kv_indptr": torch.cat([ends.new_zeros(1), ends]).int(),
        "kv_indices": torch.cat([slots[mine] for mine in seen]).int(),
        "kv_last_page_lens": torch.ones(tokens, dtype=torch.int32),
    }


def _fp8(values: torch.Tensor) -> torch.Tensor:
    """e4m3 values as torch holds them."""
    return torch.from_numpy(FP8_E4M3.encode(as_array(values.contiguous()))).view(torch.float8_e4m3fn)


@cache
def _made() -> Run:
    return run("m1a", make_case("m1a", **CASE))


def _quantiser(quantise: Quantise) -> tuple[bool, str]:
    q_nope = bf16_round(_made()["QN"].flatten(0, 1).contiguous())
    check = compare_quantiser(quantise, torch.cat([every_amax(), q_nope]).cuda())
    return check.equal, str(check)


def _triton() -> tuple[bool, str]:
    from aiter.ops.triton.quant import dynamic_mxfp4_quant

    return _quantiser(dynamic_mxfp4_quant)


def _hip() -> tuple[bool, str]:
    from aiter.ops.quant import per_1x32_f4_quant_hip

    return _quantiser(per_1x32_f4_quant_hip)


def _decode() -> tuple[bool, str]:
    from aiter.mla import mla_decode_fwd

    check = compare_decode(_made(), mla_decode_fwd, "cuda")
    return check.figures.exact_share == 1.0, str(check)


CHECKS: Mapping[str, Callable[[], tuple[bool, str]]] = {
    "MXFP4 quantiser (Triton)": _triton,
    "MXFP4 quantiser (HIP)": _hip,
    "MLA decode": _decode,
}
"""What can be compared where `check_here` passes: each says whether all is equal, and what came of it in words."""
