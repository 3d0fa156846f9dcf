"""The AttnRes seam: slice, gate and mix."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from k3lab.launches import LaunchKey
from tests.reference.sums import butterfly, from_zero, over_slices, slice_sums
from tests.reference.values import LOG2E, Trace, exp2, rms_factor, stored

F32 = NDArray[np.float32]


def seam(key: LaunchKey, tensors: Mapping[str, torch.Tensor], delta: F32 | None, trace: Trace, name: str = "x") -> F32:
    """Prefix and earlier blocks to the mixed, normed row, which the launch calls `name`."""
    prefix = new_prefix(key, stored(tensors["prefix"]), delta, trace)
    blocks = stored(tensors["blocks"])
    if key.write_idx >= 0:  # the prefix, updated or not, is also stored as a block
        blocks[:, key.write_idx] = prefix
        trace.exposed["blocks"] = blocks
    sources = np.concatenate([blocks[:, : key.nblocks], prefix[:, None]], axis=1)  # the prefix is the last source
    part = partial_sums(sources, stored(tensors["ares_nw"]), stored(tensors["ares_qk"]))
    e, den = weights(key, part)
    mixed = mix(e, sources, den)
    msq = slice_sums(mixed * mixed).T
    r = rms_factor(over_slices(msq), key.geometry.hidden, key.out_eps)
    x = trace.bf16("mix.x", (mixed * r[:, None]) * stored(tensors["in_nw"]))  # (mixed r) in_nw
    trace.exposed |= {"prefix": prefix, "vals": sources, "PART": part, "MSQ": msq, name: x}
    trace.exposed["WGT"] = np.concatenate([e, den[:, None]], axis=1)
    return x


def new_prefix(key: LaunchKey, prefix: F32, delta: F32 | None, trace: Trace) -> F32:
    """With a delta the prefix becomes bf16(prefix + delta); in a reset launch it restarts at the delta and the old one
    is not read."""
    if delta is None:
        return prefix
    return delta if key.reset else trace.bf16("slice.prefix", prefix + delta)


def partial_sums(sources: F32, nw: F32, qk: F32) -> F32:
    """PART [NA, S, NS, 2]: a slice's sum of v v, and of v (nw qk), the product of the two weights formed first."""
    square, dot = slice_sums(sources * sources), slice_sums(sources * (nw * qk))
    return np.stack([square, dot], axis=-1).transpose(2, 0, 1, 3)


def weights(key: LaunchKey, part: F32) -> tuple[F32, F32]:
    """e [S, NS] and den [S]: logit = (dot rstd) log2 e, from left to right; e = exp2(logit - max), where a NaN logit is
    the max; den is the butterfly over 64 lanes, those without a source holding 0."""
    square, dot = np.moveaxis(over_slices(part), -1, 0)
    rstd = rms_factor(square, key.geometry.hidden, key.eps)
    logit = (dot * rstd) * LOG2E
    e = exp2(logit - logit.max(axis=-1, keepdims=True))
    lanes = np.zeros((len(e), 64), np.float32)
    lanes[:, : e.shape[1]] = e
    return e, butterfly(lanes)


def mix(e: F32, sources: F32, den: F32) -> F32:
    """The sum over the sources in order, from 0.0, of e v; then a true division by den."""
    products = [e[:, s, None] * sources[:, s] for s in range(sources.shape[1])]
    return from_zero(products) / den[:, None]
