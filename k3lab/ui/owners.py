"""Which CTA writes which elements of a tensor, and of which token they are: how the kernels deal out their work.

Tests hold these rules against the addresses that waves of the simulator store to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from k3lab.cases import Case
from k3lab.geometry import COLS, HEAD_DIM, NOPE, ROPE, ROWS, V_CHUNKS
from k3lab.launches.declaration import Launch
from k3lab.stages.kda.conv.twin import CARRIED

UK_TILE = 16
"""As `k3lab.stages.mla.role` and `k3lab.stages.gemv.product` have them, which need flydsl."""

CHUNK = HEAD_DIM // V_CHUNKS
HEAD_TASKS, NOPE_TASKS = (NOPE + ROPE) // ROWS, NOPE // ROWS
VALUES_AN_ITEM = 8
"""Query values that a thread of unpack takes at a time."""
NOBODY = -1


class Places:
    """The elements of one rank's tensor of a case, each by its index along every axis."""

    def __init__(self, case: Case, name: str, shape: torch.Size, rank: int = 0) -> None:
        self.case, self.name, self.shape = case, name, shape
        self.key: Any = case.key
        self.g, self.inputs = self.key.geometry, case.ranks[rank]
        self.dims = dims_of(case.declaration, name).split()

    def axis(self, place: int) -> torch.Tensor:
        """Index along an axis, in a shape that broadcasts."""
        place %= len(self.shape)
        return torch.arange(self.shape[place]).view([-1 if i == place else 1 for i in range(len(self.shape))])

    def along(self, dim: str) -> torch.Tensor:
        """Index along the dimension called `dim`."""
        return self.axis(self.dims.index(dim))

    @property
    def tokens(self) -> torch.Tensor:
        """The token that an element is of, as the launch wrote it; -1: it did not write it."""
        if "S" in self.dims:
            return self.along("S")
        if "R" in self.dims:
            return self.along("R") * self.key.qlen + self.along("L")
        return SLOT_TOKENS[self.name](self)

    def ctas(self) -> torch.Tensor | None:
        """Numbers of the CTAs that write an element: [n, ...] that broadcasts over [n, *shape]; -1 for none.

        Where several CTAs each make a value for themselves, all are named. None where the launch has no fixed rule.
        """
        if self.name in RULES[self.case.launch]:
            found = RULES[self.case.launch][self.name](self)
        elif "NA" in self.dims:
            found = self.along("NA")
        else:
            found = self.along("HIDDEN") // COLS
        if found is None:
            return None
        return found if found.ndim > len(self.shape) else found[None]

    def mask(self, token: int, cta: int | None = None) -> torch.Tensor:
        """[shape] Which elements are of `token`, and by `cta` where it is given."""
        mine = self.tokens == token
        owners = self.ctas()
        if cta is not None and owners is not None:
            mine = mine & owners.eq(cta).any(0)
        return mine.expand(self.shape)

    def writers(self, token: int) -> list[int]:
        """The CTAs that write elements of `token`, in ascending order; none where the launch has no fixed rule."""
        owners = self.ctas()
        if owners is None:
            return []
        found = torch.where(self.tokens == token, owners, NOBODY).unique()
        return [int(cta) for cta in found if cta != NOBODY]


def dims_of(launch: Launch, name: str) -> str:
    """The shape of a tensor, region, row or local as the launch declares it."""
    declared: tuple[Any, ...] = (*launch.locals, *launch.rows, *launch.regions, *launch.made, *launch.inputs)
    return str(next(each.dims for each in declared if each.name == name))


# -- tokens of states and caches ---------------------------------------------------------------------------------------


def _conv_tokens(p: Places) -> torch.Tensor:
    """A request's slot holds two carried entries, then one a token."""
    tokens = torch.full((p.shape[0], 1, p.shape[2]), NOBODY)
    for request, slot in enumerate(p.inputs["st_idx"][:, 0].tolist()):
        if slot > 0:
            tokens[slot, 0, CARRIED:] = request * p.key.qlen + torch.arange(p.key.qlen)
    return tokens


def _state_tokens(p: Places) -> torch.Tensor:
    """Token j's state goes to the slot of column j, if the request has a state."""
    tokens = torch.full((p.shape[0], 1, 1, 1), NOBODY)
    rows = zip(p.inputs["st_idx"].tolist(), p.inputs["num_acc"].tolist(), strict=True)
    for request, (slots, accepted) in enumerate(rows):
        for j in range(p.key.qlen):
            if slots[j] > 0 and slots[accepted - 1] > 0:
                tokens[slots[j]] = request * p.key.qlen + j
    return tokens


def _cache_tokens(p: Places) -> torch.Tensor:
    """A token's entry lies in the slot it names; another rank's in none here."""
    tokens = torch.full((p.shape[0] * p.shape[1],), NOBODY)
    slots = p.inputs["slots"]
    tokens[slots[slots >= 0]] = torch.arange(len(slots))[slots >= 0]
    return tokens.view(p.shape[0], p.shape[1], 1)


SLOT_TOKENS: dict[str, Callable[[Places], torch.Tensor]] = {
    "conv_state": _conv_tokens,
    "rstate": _state_tokens,
    "kv_cache": _cache_tokens,
}

# -- CTAs --------------------------------------------------------------------------------------------------------------


def _round_robin(p: Places, task: torch.Tensor, shift: int = 0) -> torch.Tensor:
    """Task i on GEMV CTA (i + shift) mod their number."""
    return p.key.gemv0 + (task + shift) % p.key.gemv_ctas


def _token_cta(p: Places) -> torch.Tensor:
    """Tokens cta, cta + NA, ... are an attention CTA's."""
    return torch.where(p.tokens >= 0, p.tokens % p.g.na, NOBODY)


def _weights(p: Places) -> torch.Tensor | None:
    """A gate_local build has no WGT: every attention CTA keeps all tokens' weights."""
    return None if p.key.gate_local else _token_cta(p)


def _in_proj(p: Places) -> torch.Tensor:
    """Consecutive tasks of 16 rows."""
    return p.key.gemv0 + p.along("NPROJ") // ROWS // -(-p.key.gemv_tasks // p.key.gemv_ctas)


def _kda(p: Places, head: torch.Tensor, chunk: torch.Tensor) -> torch.Tensor:
    """Tasks (request, head, value chunk), round robin over all CTAs from kda0 on."""
    task = (p.tokens // p.key.qlen * p.g.heads + head) * V_CHUNKS + chunk
    return torch.where(p.tokens >= 0, (p.key.kda0 + task) % p.g.blocks, NOBODY)


def _kda_values(p: Places) -> torch.Tensor:
    """16 channels of a head a task."""
    return _kda(p, p.along("HEADS"), p.axis(-1) // CHUNK)


def _kda_sums(p: Places) -> torch.Tensor:
    return _kda(p, p.along("HEADS"), p.axis(-1))


def _kda_shared(p: Places) -> torch.Tensor:
    """All tasks of a head make these, each for itself."""
    chunks = torch.arange(V_CHUNKS).view(-1, *(1 for _ in p.shape))
    return _kda(p, p.along("HEADS"), chunks)


def _kda_state(p: Places) -> torch.Tensor:
    """16 rows of the state a task."""
    return _kda(p, p.along("HEADS"), p.axis(2) // CHUNK)


def _kda_columns(p: Places) -> torch.Tensor:
    """Columns of core_out, and conv channels by q, k and v: a head's 128, 16 of them a task."""
    column = (p.along("PROJ") if "PROJ" in p.dims else p.along("CONV")) % p.g.proj
    return _kda(p, column // HEAD_DIM, column % HEAD_DIM // CHUNK)


def _latents(p: Places) -> torch.Tensor:
    return _round_robin(p, p.along("QKV_A") // ROWS, p.key.proj0)


def _gate_out(p: Places) -> torch.Tensor:
    """The gate's tasks follow those of the latents."""
    return _round_robin(p, p.g.tasks(p.g.qkv_a) + p.along("PROJ") // ROWS, p.key.proj0)


def _q_nope(p: Places) -> torch.Tensor:
    return _round_robin(p, p.along("HEADS") * HEAD_TASKS + p.axis(-1) // ROWS, p.key.qb0)


def _q_pe(p: Places) -> torch.Tensor:
    return _round_robin(p, p.along("HEADS") * HEAD_TASKS + NOPE_TASKS + p.axis(-1) // ROWS, p.key.qb0)


def _query(p: Places) -> torch.Tensor:
    """A wave task is (16 tokens, head, 16 latent rows), on the last CTAs' waves; q_b's tasks put the pe part."""
    head, value = p.along("HEADS") if "HEADS" in p.dims else p.along("QH"), p.axis(-1)
    task = (p.tokens // UK_TILE * p.g.heads + head) * (p.g.kv_lora // ROWS) + value // ROWS
    ctas = min(p.key.uk_ctas, p.key.gemv_ctas)
    absorbed = p.g.blocks - ctas + task % ctas
    pe = _round_robin(p, head * HEAD_TASKS + NOPE_TASKS + (value - p.g.kv_lora) // ROWS, p.key.qb0)
    return torch.where(value < p.g.kv_lora, absorbed, pe)


def _q_out(p: Places) -> torch.Tensor:
    """A rank on its own has its queries written where they are made; else consecutive items of the gathered words."""
    if p.key.ranks == 1:
        return _query(p)
    slot = p.along("QH") % (p.key.ranks * p.g.heads)  # pads repeat the first heads
    source, head = slot // p.g.heads, slot % p.g.heads
    entry = (source * p.key.tokens + p.tokens) * p.g.heads + head
    items = p.g.entry // VALUES_AN_ITEM
    a_cta = -(-p.key.ranks * p.key.tokens * p.g.heads * items // p.g.blocks)
    return (entry * items + p.axis(-1) // VALUES_AN_ITEM) // a_cta


def _partial(p: Places) -> torch.Tensor:
    return _round_robin(p, p.along("HIDDEN") // ROWS)


def _sent(p: Places) -> torch.Tensor | None:
    """Of a two-shot reduce, AR holds partials and finished sums alike."""
    return None if p.key.two_shot else _partial(p)


Rule = Callable[[Places], "torch.Tensor | None"]
RULES: dict[str, dict[str, Rule]] = {
    "k1": {
        "WGT": _weights,
        "PROJ": _in_proj,
        "QK": _kda_values,
        "v": _kda_values,
        "o": _kda_values,
        "ONRM": _kda_sums,
        "decay": _kda_shared,
        "beta": _kda_shared,
        "qn": _kda_shared,
        "kn": _kda_shared,
        "conv_state": _kda_columns,
        "rstate": _kda_state,
        "core_out": _kda_columns,
    },
    "m1a": {
        "WGT": _weights,
        "QA": _latents,
        "gate_out": _gate_out,
        "QC": _token_cta,
        "kv_cache": _token_cta,
        "QN": _q_nope,
        "q_pe": _q_pe,
        "query": _query,
        "QG": _query,
        "q_out": _q_out,
    },
    "k2a": {"WGT": _weights, "partial": _partial, "AR": _sent},
}
"""By launch and tensor; tensors that are not named are dealt by slices of 128 hidden columns."""
