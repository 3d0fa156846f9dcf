"""Drift: what one rounding does to a value that is carried from step to step, as signed error by step.

A rounding whose every step is within an ulp can lose percents over many, if its errors have one sign. Each function
runs the twins' own stages over and over, once as a probe has it and once in float64 with nothing rounded. The inputs
are made, not measured: they say how errors add up, not how large they are in a trained model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from k3lab import formats
from k3lab.arith import Arith, Oracle, TorchOrder
from k3lab.errors import expect
from k3lab.formats.tensor import round_tensor
from k3lab.geometry import HEAD_DIM, Geometry
from k3lab.launches import K1, K2A
from k3lab.launches.key import LaunchKey
from k3lab.rounding import Probe
from k3lab.stages.attnres.slice.twin import stage_slice
from k3lab.stages.kda.recur.twin import kda_recur
from k3lab.stages.oproj.reduce.twin import stage_reduce
from k3lab.stages.tensors import Tensors

MINI = Geometry.mini()
LAYERS = 72
"""Additions to a residual stream in the story of aiter issue 5151."""
SLOT = 1
"""The state slot that `recurrent_state` carries its one request in."""


@dataclass(frozen=True)
class Drift:
    """Error against float64 after each step.

    Attributes:
        signed: [steps] mean over the elements of (value - exact) in the direction of `exact`, over mean |exact|.
        rms: [steps] rms of (value - exact) over rms of exact.
        last: the carried values after the last step; `exact` the same in float64.
    """

    signed: NDArray[np.float64]
    rms: NDArray[np.float64]
    last: torch.Tensor
    exact: torch.Tensor


class _Track:
    """Collects a `Drift` step by step."""

    def __init__(self) -> None:
        self._signed: list[float] = []
        self._rms: list[float] = []

    def add(self, value: torch.Tensor, exact: torch.Tensor) -> None:
        error = value.double() - exact
        self._signed.append(float((error * exact.sign()).mean() / exact.abs().mean()))
        self._rms.append(float(error.square().mean().sqrt() / exact.square().mean().sqrt()))

    def drift(self, value: torch.Tensor, exact: torch.Tensor) -> Drift:
        return Drift(np.array(self._signed), np.array(self._rms), value, exact)


def residual_stream(swap: Mapping[str, str] | None = None, layers: int = LAYERS, seed: int = 0) -> Drift:
    """A prefix that starts at 1 and takes in a delta a layer, through K1's slice stage.

    Deltas are bf16 values of standard deviation 2^-6, one row of the mini geometry's 2048 columns a layer.

    Args:
        swap: as a probe's; `{"k1.slice.prefix": "bf16:zero"}` truncates.
    """
    source = torch.Generator().manual_seed(seed)
    key, track = K1.key(MINI, tokens=1, nblocks=0), _Track()
    ones = torch.ones(1, MINI.hidden)
    value, exact = ones, ones.double()
    for _ in range(layers):
        delta = _bf16(torch.randn(1, MINI.hidden, generator=source) * 2.0**-6)
        with Probe(swap=swap):
            value = _prefix(TorchOrder("k1"), value, delta, key)
        exact = exact + delta
        track.add(value, exact)
    return track.drift(value, exact)


def reduced_stream(ablate: str = "", ranks: int = 8, layers: int = LAYERS, seed: int = 0) -> Drift:
    """A prefix that starts at 1 and takes in a sum over `ranks` a layer, through K2a's reduce and slice stages.

    Args:
        ablate: as a probe's; `"k2a.reduce.delta"` adds the sum unrounded, as some fused all-reduces do.
    """
    source = torch.Generator().manual_seed(seed)
    key, track = K2A.key(MINI, tokens=1, nblocks=0, ranks=ranks), _Track()
    ones = torch.ones(1, MINI.hidden)
    value, exact = ones, ones.double()
    for _ in range(layers):
        partial = _bf16(torch.randn(ranks, 1, MINI.hidden, generator=source) * (2.0**-6 / ranks**0.5))
        arith = TorchOrder("k2a")
        with Probe(ablate=ablate or ()):
            delta = stage_reduce(arith, _given(partial=partial), key)["delta"]
            value = _prefix(arith, value, delta, key)
        exact = exact + partial.double().sum(0)
        track.add(value, exact)
    return track.drift(value, exact)


def recurrent_state(
    swap: Mapping[str, str] | None = None,
    steps: int = 256,
    decay: float = 0.999,
    logit: float | None = None,
    held: str = "fp32",
    seed: int = 0,
) -> Drift:
    """A KDA state [HEADS, 128 v, 128 k] over `steps` tokens, through the recur stage.

    Keys are random unit vectors, values normal; beta is the sigmoid of a normal logit and passes the optional point
    `k1.gates.beta`.

    Args:
        swap: as a probe's; `{"k1.gates.beta": "bf16"}` rounds beta before it meets the state.
        decay: of every key column, every token.
        logit: beta's logit for all tokens and heads, instead of a normal one.
        held: format that the state is kept in between tokens; the launch keeps it in fp32.
    """
    rounder = formats.parse(held)
    source = torch.Generator().manual_seed(seed)
    key, track = K1.key(MINI, tokens=1, nblocks=0), _Track()
    shape = (1, 1, MINI.heads, HEAD_DIM)
    value = torch.zeros(SLOT + 1, MINI.heads, HEAD_DIM, HEAD_DIM)
    exact = value.double()
    for _ in range(steps):
        kn, v = torch.randn(shape, generator=source), torch.randn(shape, generator=source)
        kn = kn / kn.norm(dim=-1, keepdim=True)
        z = torch.randn(shape[:3], generator=source) if logit is None else torch.full(shape[:3], logit)
        with Probe(swap=swap):
            value = round_tensor(rounder, _state(TorchOrder("k1"), value, kn, v, z, decay, key))
        exact = _state(Oracle("k1"), exact, kn, v, z, decay, key)
        track.add(value[SLOT], exact[SLOT])
    return track.drift(value[SLOT], exact[SLOT])


@dataclass(frozen=True)
class RoundedWeights:
    """An attention whose weights are rounded before they meet the values, for each of several context lengths.

    Attributes:
        mass: mean over the queries of (sum of rounded weights) / (sum of weights): below 1, weight is lost.
        zeros: share of the weights that became zero.
        rms: error of the result over the rms of the exact one.
    """

    contexts: NDArray[np.int64]
    mass: NDArray[np.float64]
    zeros: NDArray[np.float64]
    rms: NDArray[np.float64]


def rounded_weights(
    contexts: tuple[int, ...],
    spec: str = "fp8",
    normalised: bool = False,
    scale: float = 1.0,
    spread: float = 1.0,
    queries: int = 64,
    seed: int = 0,
) -> RoundedWeights:
    """A softmax attention with its weights P in a narrow format, the denominator summed from the unrounded P.

    Scores are normal with standard deviation `spread`, values are 1 plus a normal number, 32 columns.

    Args:
        spec: format of P, as `formats.parse` reads it.
        normalised: whether P is divided by its sum before the rounding, or is exp(score - max).
        scale: P times this is rounded, and divided by it afterwards: a power of two changes nothing else.

    Raises:
        BadInput: for contexts that are not positive.
    """
    expect(all(n > 0 for n in contexts), "contexts", "positive lengths", contexts)
    rounder, found = formats.parse(spec), []
    for n in contexts:
        source = torch.Generator().manual_seed(seed)
        scores = torch.randn(queries, n, generator=source, dtype=torch.float64) * spread
        values = 1.0 + torch.randn(n, 32, generator=source, dtype=torch.float64)
        p = (scores - scores.amax(-1, keepdim=True)).exp()
        p = p / p.sum(-1, keepdim=True) if normalised else p
        rounded = round_tensor(rounder, (p * scale).float()).double() / scale
        total = p.sum(-1, keepdim=True)
        out, true = rounded @ values / total, p @ values / total
        rms = (out - true).square().mean().sqrt() / true.square().mean().sqrt()
        found.append((float((rounded.sum(-1) / total[:, 0]).mean()), float((rounded == 0).double().mean()), float(rms)))
    mass, zeros, rms_by_context = (np.array(column) for column in zip(*found, strict=True))
    return RoundedWeights(np.array(contexts), mass, zeros, rms_by_context)


def _given(**values: torch.Tensor) -> Tensors:
    return Tensors(values, values)


def _bf16(values: torch.Tensor) -> torch.Tensor:
    return values.bfloat16().float()


def _prefix(arith: Arith, prefix: torch.Tensor, delta: torch.Tensor, key: LaunchKey) -> torch.Tensor:
    weight = torch.ones(MINI.hidden)
    t = _given(prefix=prefix, delta=delta, blocks=prefix[:, None], ares_nw=weight, ares_qk=weight)
    return stage_slice(arith, t, key)["prefix"]


def _state(
    arith: Arith,
    rstate: torch.Tensor,
    kn: torch.Tensor,
    v: torch.Tensor,
    logit: torch.Tensor,
    decay: float,
    key: LaunchKey,
) -> torch.Tensor:
    kn, v = kn.to(arith.dtype), v.to(arith.dtype)
    t = _given(
        rstate=rstate,
        decay=torch.full_like(kn, decay),
        beta=arith.option("gates.beta", arith.sigmoid(logit.to(arith.dtype))),
        qn=kn,
        kn=kn,
        v=v,
        st_idx=torch.full((1, 1), SLOT, dtype=torch.int32),
        num_acc=torch.ones(1, dtype=torch.int32),
    )
    return kda_recur(arith, t, key)["rstate"]
