"""The end of M1a's story: an MLA decode attention on its outputs, where fp8 and MXFP4 error is felt. Not a launch.

Absorbed form: a query head of 576 columns meets cache entries of 576; the value is an entry's first 512 columns, which
W_UV (kv_b_proj's V rows) takes back to 128. With several ranks each attends over the positions it owns, and the partial
results are merged in rank order by their log-sum-exp.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from k3lab.backends.run import Run
from k3lab.cases.case import Case
from k3lab.cases.fill_m1a import CONTEXT
from k3lab.errors import expect
from k3lab.formats.tensor import bf16_values
from k3lab.geometry import HEAD_DIM, NOPE, ROPE
from k3lab.rounding import pass_through

POINT = "m1a.attention.core"
"""The analysis' own rounding point: the one bf16 rounding of its result."""

SCALE = (NOPE + ROPE) ** -0.5


class Partial(NamedTuple):
    """One rank's attention: out [S, H, KV_LORA] and the log of its softmax denominator, lse [S, H]."""

    out: torch.Tensor
    lse: torch.Tensor


def decode_attention(run: Run, qlen: int | None = None) -> list[torch.Tensor]:
    """Core rows `[S, PROJ]` of every rank, for K2a: attention over cache and own tokens, times the gate.

    The step's tokens are S / qlen requests (one, by default); a request's context is `CONTEXT` cache slots this step
    does not write, as many on each rank. fp32 softmax and one bf16 rounding; float64 and none for an oracle run.

    Raises:
        BadInput: when the case has no kv_b_proj, its cache too few free slots, or qlen does not divide the tokens.
    """
    key, geometry = run.key, run.key.geometry
    qlen = key.tokens if qlen is None else qlen
    expect(key.tokens % qlen == 0, "qlen", f"a divisor of the {key.tokens} tokens", qlen)
    expect("w_kv_b" in run.case.ranks[0], "attention", "a case with kv_b_proj (w_kv_b)", "one without")
    heads = key.rank_count * geometry.heads
    query = run.values["q_out"][:, :heads]
    merged = merge([_partial(run, rank, query, qlen) for rank in range(key.rank_count)])
    mine = merged.out.split(geometry.heads, dim=1)
    return [_core(run, rank, mine[rank]) for rank in range(key.rank_count)]


def can_attend(case: Case) -> bool:
    """Whether `case` holds what `decode_attention` needs, its tokens taken as one request."""
    rank = case.ranks[0]
    room = rank["kv_cache"].shape[0] * rank["kv_cache"].shape[1] - case.key.tokens
    return "w_kv_b" in rank and room >= CONTEXT


def attend(query: torch.Tensor, entries: torch.Tensor, seen: torch.Tensor, latent: int) -> Partial:
    """Attention of `query: [S, H, ENTRY]` over `entries: [T, ENTRY]`; token s sees entry t where `seen: [S, T]`."""
    scores = torch.einsum("she,te->sht", query, entries) * SCALE
    scores = scores.masked_fill(~seen[:, None], -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().masked_fill(~seen[:, None], 0.0)  # a token that sees nothing has lse -inf
    return Partial(_weighted(weights, entries[:, :latent], seen), lse)


def _weighted(weights: torch.Tensor, values: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Each token's `weights: [S, H, T]` over `values: [T, KV_LORA]`; a NaN it does not see must not reach it."""
    if values.isfinite().all():
        return torch.einsum("sht,tl->shl", weights, values)
    mine = [w @ values.masked_fill(~s[:, None], 0.0) for w, s in zip(weights, seen, strict=True)]
    return torch.stack(mine)


def merge(parts: list[Partial]) -> Partial:
    """Partial results over disjoint entries joined in rank order."""
    total = parts[0]
    for part in parts[1:]:
        lse = torch.logaddexp(total.lse, part.lse)
        old, new = ((p.lse - lse).exp().nan_to_num(0.0)[..., None] for p in (total, part))
        total = Partial(total.out * old + part.out * new, lse)
    return total


def _partial(run: Run, rank: int, query: torch.Tensor, qlen: int) -> Partial:
    """What `rank` sees: its context slots, then the step's tokens it owns."""
    slots, seen = visible(run, rank, qlen)
    return attend(query, run.ranks[rank]["kv_cache"].flatten(0, 1)[slots], seen, run.key.geometry.kv_lora)


def visible(run: Run, rank: int, qlen: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots of `rank`'s cache that the step's tokens attend to, [T], and which of them each token sees, [S, T].

    Raises:
        BadInput: when the cache has too few free slots.
    """
    cache = run.ranks[rank]["kv_cache"].flatten(0, 1)
    slots = run.case.ranks[rank]["slots"].to(cache.device)
    own = slots >= 0
    context = _context_slots(slots[own], cache.shape[0], run.key.tokens // qlen)
    token = torch.arange(run.key.tokens, device=cache.device)
    request = token // qlen
    sees_context = request[:, None] == torch.arange(len(context), device=cache.device).repeat_interleave(CONTEXT)
    sees_token = (request[:, None] == request[own]) & (token[own] <= token[:, None])
    return torch.cat([context.flatten(), slots[own]]), torch.cat([sees_context, sees_token], dim=1)


def _context_slots(written: torch.Tensor, slots: int, requests: int) -> torch.Tensor:
    """`[requests, CONTEXT]` cache slots, none of which the step writes."""
    free = torch.ones(slots, dtype=torch.bool, device=written.device)
    free[written] = False
    chosen = free.nonzero()[: requests * CONTEXT, 0]
    wanted = requests * CONTEXT
    fix = "make the case with more slots, or fewer requests"
    expect(len(chosen) == wanted, "attention", f"{wanted} cache slots beside the tokens' own", len(chosen), fix)
    return chosen.view(requests, CONTEXT)


def _core(run: Run, rank: int, latent: torch.Tensor) -> torch.Tensor:
    """`latent: [S, HEADS, KV_LORA]` -> core rows [S, PROJ]."""
    w_kv_b = bf16_values(run.case.ranks[rank]["w_kv_b"]).to(latent)
    w_uv = w_kv_b.unflatten(0, (-1, NOPE + HEAD_DIM))[:, NOPE:]
    core = torch.einsum("shl,hvl->shv", latent, w_uv).flatten(1) * run.ranks[rank]["gate_out"]
    return pass_through(POINT, core, "bf16", narrow=run.backend != "oracle")
