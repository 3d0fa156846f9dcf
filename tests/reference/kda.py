"""K1: the seam, in_proj, and for each request convolution, gates, gated delta rule, output norm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3lab import Case
from k3lab.formats import bf16_bits, bf16_values
from tests.reference.products import gemv, one_wave_of_128
from tests.reference.seam import seam
from tests.reference.sums import from_first, from_zero, head_squares, row_of_128
from tests.reference.values import LOG2E, Trace, exp, exp2, raw_bits, rms_factor, rsq, sigmoid, stored

F32 = NDArray[np.float32]
L2_EPS = np.float32(1e-6)  # beside the sum of squares
Q_SCALE = np.float32(128**-0.5)


@dataclass(frozen=True)
class Request:
    """A request's rows and slots; slots <= 0 are null."""

    number: int
    rows: slice
    accepted: int  # index of the last accepted token
    slots: list[int]

    @property
    def conv_slot(self) -> int:
        return self.slots[0]

    @property
    def initial_slot(self) -> int:
        return self.slots[self.accepted]


def k1(case: Case, model: str = "fused") -> list[Trace]:
    """The launch's only rank."""
    trace, t = Trace(), case.tensors
    x = seam(case.key, t, stored(t["delta"]) if case.key.delta else None, trace)
    trace.exposed["PROJ"] = trace.bf16("gemv.proj", gemv(x, stored(t["w_in"]), model))
    convolution(case, trace)
    gates(case, trace, model)
    recurrence(case, trace)
    output_norm(case, trace)
    return [trace]


def requests(case: Case) -> Iterator[Request]:
    length = case.key.qlen
    slots, accepted = case.tensors["st_idx"].tolist(), case.tensors["num_acc"].tolist()
    for number in range(case.key.tokens // length):
        rows = slice(number * length, number * length + length)
        yield Request(number, rows, accepted[number] - 1, slots[number][:length])


def projected(case: Case, trace: Trace) -> tuple[F32, F32, F32, F32]:
    """PROJ's rows: q k v [S, 3 P], gate [S, P], f_a [S, 128], beta [S, H]; zero rows fill up the last task."""
    p, h = case.key.geometry.heads * 128, case.key.geometry.heads
    ends = np.cumsum([3 * p, p, 128, h])
    qkv, g, f_a, beta, _ = np.split(trace.exposed["PROJ"], ends, axis=1)
    return qkv, g, f_a, beta


def by_head(rows: F32, case: Case) -> F32:
    """`[S, H 128]` -> `[R, L, H, 128]`."""
    return rows.reshape(-1, case.key.qlen, case.key.geometry.heads, 128)


def convolution(case: Case, trace: Trace) -> None:
    """The window is the conv slot's entries a .. a + 2; the L projected values follow it. o = bf16(acc sigmoid(acc))
    with acc the 4 taps' products in order from 0.0.

    A null conv slot reads slot 0's window and only its store is left out. What is stored is the window's last two
    entries, bit for bit, and the L projected values.
    """
    qkv = projected(case, trace)[0]
    taps, state = stored(case.tensors["conv_w"]), raw_bits(case.tensors["conv_state"])
    new_state, copied = state.copy(), np.ones(state.shape, np.bool_)
    sums = np.empty_like(qkv)
    for request in requests(case):
        fresh = qkv[request.rows].T  # [channels, L]
        window = state[max(request.conv_slot, 0)][:, request.accepted : request.accepted + 3]
        sequence = np.concatenate([bf16_values(window), fresh], axis=1)
        length = fresh.shape[1]
        products = [taps[:, i, None] * sequence[:, i : i + length] for i in range(4)]
        sums[request.rows] = from_zero(products).T
        if request.conv_slot > 0:
            new_state[request.conv_slot] = np.concatenate([window[:, 1:], bf16_bits(np.ascontiguousarray(fresh))], 1)
            copied[request.conv_slot, :, 2:] = False
    trace.bf16("conv.state", qkv)
    out = trace.bf16("conv.out", sums * sigmoid(sums))
    q, k, v = (by_head(part, case) for part in np.split(out, 3, axis=1))
    trace.exposed |= {"QK": np.stack([q, k], axis=3).transpose(0, 2, 1, 3, 4), "v": v}
    trace.exposed["conv_state"] = bf16_values(new_state)
    trace.copies["conv_state"] = copied


def gates(case: Case, trace: Trace, model: str) -> None:
    """g1 = bf16(f_b f_a), without the bias. gate = lower_bound sigmoid(exp(a_log) (g1 + dt_bias)), decay = exp2(gate
    log2 e), beta = sigmoid of its row. q and k are multiplied by their l2 factor; q's takes fp32(128^-0.5) first."""
    f_a, beta = projected(case, trace)[2:]
    g1 = trace.bf16("gates.g1", one_wave_of_128(f_a, stored(case.tensors["w_fb"]), model))
    rate = exp(stored(case.tensors["a_log"]))[:, None]
    gate = np.float32(case.key.lower_bound) * sigmoid(rate * by_head(g1 + stored(case.tensors["dt_bias"]), case))
    q, k = np.moveaxis(trace.exposed["QK"].transpose(0, 2, 1, 3, 4), 3, 0)
    trace.exposed |= {
        "decay": exp2(gate * LOG2E),
        "beta": sigmoid(beta).reshape(-1, case.key.qlen, case.key.geometry.heads),
        "qn": q * (l2_factor(q) * Q_SCALE),
        "kn": k * l2_factor(k),
    }


def l2_factor(x: F32) -> F32:
    """rsq of the sum of squares, not of its mean, plus 1e-6."""
    return rsq(head_squares(x) + L2_EPS)[..., None]


def recurrence(case: Case, trace: Trace) -> None:
    """Token by token. A null initial slot starts the state at 0, makes every o +0.0 and stores no state; a null target
    slot leaves out that token's store alone. ONRM has a chunk's 16 squares of o in order from 0.0."""
    old = stored(case.tensors["rstate"])
    new = old.copy()
    before = np.zeros_like(trace.exposed["v"])
    for request in requests(case):
        if request.initial_slot <= 0:
            continue
        state = old[request.initial_slot]  # [H, 128 v, 128 k]
        for token, target in enumerate(request.slots):
            state, before[request.number, token] = delta_rule(state, trace, (request.number, token))
            if target > 0:
                new[target] = state
    o = trace.bf16("recur.o", before)
    chunks = o.reshape(*o.shape[:-1], 8, 16)
    onrm = from_zero([chunks[..., i] * chunks[..., i] for i in range(16)])
    trace.exposed |= {"o": o, "rstate": new, "ONRM": onrm.transpose(0, 2, 1, 3)}


def delta_rule(state: F32, trace: Trace, at: tuple[int, int]) -> tuple[F32, F32]:
    """state *= decay by key column; p = sum state k; u = (v - p) beta; state += u k; the output is sum state q."""
    decay, beta, q, k, v = (trace.exposed[name][at] for name in ("decay", "beta", "qn", "kn", "v"))
    state = state * decay[:, None, :]
    p = row_of_128(state * k[:, None, :])
    u = (v - p) * beta[:, None]
    state = state + u[:, :, None] * k[:, None, :]
    return state, row_of_128(state * q[:, None, :])


def output_norm(case: Case, trace: Trace) -> None:
    """core = ((o r) on_w) sigmoid(g), r from the 8 ONRM parts in order from the first."""
    parts = trace.exposed["ONRM"].transpose(0, 2, 1, 3)
    total = from_first([parts[..., i] for i in range(8)])
    r = rms_factor(total, 128, case.key.onorm_eps)[..., None]
    gate = sigmoid(by_head(projected(case, trace)[1], case))
    core = ((trace.exposed["o"] * r) * stored(case.tensors["on_w"])) * gate
    trace.exposed["core_out"] = trace.bf16("norm.core", core.reshape(case.key.tokens, -1))
