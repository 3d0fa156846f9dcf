"""How the values of a case's tensors are spread, and what MXFP4 blocks would make of them.

Every figure is exact, not sampled: formats of 8 and 16 bits are counted code by code, fp32 is sorted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from k3lab.cases.case import Case
from k3lab.cases.fill_m1a import w_uk_of
from k3lab.errors import BadInput, expect
from k3lab.formats import E2M1, E8M0, FP8_E4M3, bf16_values, mx
from k3lab.launches import TensorDecl

F64 = NDArray[np.float64]

QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
"""Of the values, with their signs."""
MAGNITUDES = (0.01, 0.5, 0.99, 0.999)
"""Of the magnitudes, zeros among them."""
OUTLIER = 10.0
"""A channel (one place of the last dimension) is an outlier from this many times the median channel's rms."""
FEWEST_CHANNELS = 128  # below, a median of channels says little (the four taps of a convolution)
SHOWN = 8  # outlier channels listed
CHUNK = 1 << 20  # values of MXFP4 blocks looked at together


@dataclass(frozen=True)
class Outliers:
    """Channels whose rms is at least `OUTLIER` times the median channel's.

    Attributes:
        count: how many there are, of `channels`.
        largest: the largest channel's rms over the median's; None where the median is 0.
        where: the largest `SHOWN` of them, the largest first.
    """

    count: int
    channels: int
    largest: float | None
    where: list[int]


@dataclass(frozen=True)
class Blocks:
    """What becomes of blocks of 32 values along the last dimension, were they quantised to MXFP4.

    Attributes:
        blocks: how many there are.
        saturate: share of blocks in which some value is beyond 6 scales, and is cut to them.
        flush: share of blocks in which some value that is not zero becomes zero.
        cut, flushed: the same as shares of all values.
        zero: share of blocks that are zero throughout.
    """

    rule: str
    blocks: int
    saturate: float
    flush: float
    cut: float
    flushed: float
    zero: float


@dataclass(frozen=True)
class Spread:
    """One tensor's values; every figure is over the finite ones, None where there are none.

    Attributes:
        shape: one rank's; `ranks` is how many ranks have their own, which the figures take together.
        quantiles: by probability as text (`0.5`): the smallest value that this share of values does not exceed.
        magnitudes: the same of the values without their signs.
        octaves: dynamic range: log2 of the largest over the smallest magnitude that is not zero.
        channels: of tensors with `FEWEST_CHANNELS` or more channels, else None.
        mxfp4: of tensors whose last dimension is made of blocks of 32, by scale rule; empty for others, and for those
            that are MXFP4 already. Of kv_b_proj it is that of W_UK, whose blocks lie along the 128 nope rows, as W_K is
            quantised.
    """

    name: str
    about: str
    dtype: str
    shape: list[int]
    ranks: int
    count: int
    finite: int
    zeros: int
    min: float | None
    max: float | None
    mean: float | None
    rms: float | None
    quantiles: dict[str, float]
    magnitudes: dict[str, float]
    smallest: float | None
    octaves: float | None
    channels: Outliers | None
    mxfp4: list[Blocks]

    def to_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


def statistics(case: Case, rules: tuple[str, ...] = tuple(mx.RULES)) -> list[Spread]:
    """The spread of every float tensor of `case`, in the order the launch declares them.

    W_K counts as the values that its codes and scales stand for.

    Args:
        rules: MXFP4 scale rules to look at.

    Raises:
        BadInput: for an unknown rule, or a case that fails its checks.
    """
    unknown = [rule for rule in rules if rule not in mx.RULES]
    expect(not unknown, "rules", f"some of {tuple(mx.RULES)}", ", ".join(unknown))
    case.check()
    return [spread(case, decl.name, rules) for decl in _floats(case)]


def spread(case: Case, name: str, rules: tuple[str, ...] = tuple(mx.RULES)) -> Spread:
    """The spread of the tensor `name`, every rank's taken together.

    Raises:
        BadInput: for a name that is no float tensor of the case.
    """
    decl = _declared(case, name)
    held = _own(case, name)
    values, counts = _merged([_counted(case, decl, rank) for rank, _ in held])
    finite = np.isfinite(values)
    total, (values, counts) = int(counts.sum()), (values[finite], counts[finite])
    number = int(counts.sum())
    nonzero = np.abs(values[values != 0])
    smallest = float(nonzero.min()) if nonzero.size else None
    parts = [_values(case, decl, rank) for rank, _ in held]
    return Spread(
        name=name,
        about=decl.about,
        dtype=decl.dtype,
        shape=list(held[0][1].shape),
        ranks=len(held),
        count=total,
        finite=number,
        zeros=int(counts[values == 0].sum()),
        min=float(values[0]) if number else None,
        max=float(values[-1]) if number else None,
        mean=float((values * counts).sum() / number) if number else None,
        rms=_rms(values, counts),
        quantiles=_quantiles(values, counts, QUANTILES),
        magnitudes=_quantiles(*_merged([(np.abs(values), counts)]), MAGNITUDES),
        smallest=smallest,
        octaves=math.log2(float(nonzero.max()) / smallest) if smallest else None,
        channels=_outliers(channel_rms_of(parts)),
        mxfp4=_mxfp4(case, decl, parts, rules),
    )


def channel_rms(case: Case, name: str) -> F64:
    """Rms of each channel (place of the last dimension) over all else and every rank; not finite values are left out.

    Raises:
        BadInput: for a name that is no float tensor of the case.
    """
    decl = _declared(case, name)
    return channel_rms_of([_values(case, decl, rank) for rank, _ in _own(case, name)])


def channel_rms_of(parts: list[NDArray[np.float32]]) -> F64:
    """Rms by last dimension of `parts`, [..., n] each -> [n]."""
    width = parts[0].shape[-1]
    square, count = np.zeros(width), np.zeros(width)
    for rows in _row_chunks(parts):
        finite = np.isfinite(rows)
        square += np.square(rows, where=finite, out=np.zeros(rows.shape), dtype=np.float64).sum(0)
        count += finite.sum(0)
    return np.asarray(np.sqrt(square / np.maximum(count, 1)))


def mx_blocks(parts: list[NDArray[np.float32]], rules: tuple[str, ...]) -> list[Blocks]:
    """What MXFP4 by each of `rules` makes of the blocks of `parts`, [..., n] each, n a multiple of 32.

    A value is cut beyond E2M1's 6 scales, and flushed up to half of E2M1's smallest step, a tie going to zero, the even
    code. A value that is not finite counts as zero.
    """
    tally = {rule: np.zeros(4, np.int64) for rule in rules}
    zero = count = 0
    for rows in _row_chunks(parts):
        blocks = np.abs(rows.reshape(-1, mx.BLOCK))
        blocks[~np.isfinite(blocks)] = 0
        count += len(blocks)
        zero += int((blocks.max(1) == 0).sum())
        for rule in rules:
            scales = E8M0.decode(mx.block_scale(blocks, rule)).astype(np.float64)
            cut = (blocks > E2M1.max * scales).sum(1)
            flushed = ((blocks <= E2M1.smallest / 2 * scales) & (blocks > 0)).sum(1)
            tally[rule] += [(cut > 0).sum(), (flushed > 0).sum(), cut.sum(), flushed.sum()]
    every = max(count, 1)
    unit = np.array([every, every, every * mx.BLOCK, every * mx.BLOCK])

    def made(rule: str) -> Blocks:
        saturate, flush, cut, flushed = (tally[rule] / unit).tolist()
        return Blocks(rule, count, saturate, flush, cut, flushed, zero / every)

    return [made(rule) for rule in rules]


def _floats(case: Case) -> list[TensorDecl]:
    held = case.ranks[0]
    integers = ("int32", "int64", "e8m0")
    return [d for d in case.declaration.inputs_for(case.key) if d.name in held and d.dtype not in integers]


def _declared(case: Case, name: str) -> TensorDecl:
    known = {decl.name: decl for decl in _floats(case)}
    if name not in known:
        raise BadInput(f"tensor: expected one of {', '.join(known)}, got {name!r}.")
    return known[name]


def _own(case: Case, name: str) -> list[tuple[int, torch.Tensor]]:
    """The tensor of each rank that has its own, as (rank, tensor)."""
    seen: dict[int, tuple[int, torch.Tensor]] = {}
    for rank, tensors in enumerate(case.ranks):
        seen.setdefault(id(tensors[name]), (rank, tensors[name]))
    return list(seen.values())


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    """The stored bits (uint16 of bf16, uint8 of bytes) or fp32 values."""
    held = tensor.detach().cpu().contiguous()
    return held.view(torch.int16).numpy().view(np.uint16) if held.dtype == torch.bfloat16 else held.numpy()


def _values(case: Case, decl: TensorDecl, rank: int) -> NDArray[np.float32]:
    """One rank's values in fp32, exactly."""
    held = case.ranks[rank]
    array = _array(held[decl.name])
    if decl.dtype == "bf16":
        return np.asarray(bf16_values(array))
    if decl.dtype == "fp8_e4m3":
        return np.asarray(FP8_E4M3.decode(array), np.float32)
    if decl.dtype == "e2m1x2":
        scales = held[f"{decl.name}_scale"].detach().cpu().numpy()
        return np.asarray(mx.dequantise(mx.unpack_nibbles(array), scales), np.float32)
    return np.asarray(array, np.float32)


def _counted(case: Case, decl: TensorDecl, rank: int) -> tuple[F64, NDArray[np.int64]]:
    """Distinct values, ascending (not finite ones last), and how often each is there."""
    if decl.dtype == "bf16":
        codes = np.bincount(_array(case.ranks[rank][decl.name]).ravel(), minlength=1 << 16)
        every = np.asarray(bf16_values(np.arange(1 << 16, dtype=np.uint16)))
    elif decl.dtype == "fp8_e4m3":
        codes = np.bincount(_array(case.ranks[rank][decl.name]).ravel(), minlength=1 << 8)
        every = np.asarray(FP8_E4M3.decode(np.arange(1 << 8, dtype=np.uint8)))
    else:
        every, codes = np.unique(_values(case, decl, rank), return_counts=True)
    used = codes > 0
    return every[used].astype(np.float64), codes[used].astype(np.int64)


def _merged(parts: list[tuple[F64, NDArray[np.int64]]]) -> tuple[F64, NDArray[np.int64]]:
    """Several ranks' counts as one, ascending."""
    values = np.concatenate([values for values, _ in parts])
    counts = np.concatenate([counts for _, counts in parts])
    order = np.argsort(values, kind="stable")  # NaN last
    return values[order], counts[order]


def _rms(values: F64, counts: NDArray[np.int64]) -> float | None:
    """Taken of the values over the largest, whose squares float64 holds whatever their size."""
    if not counts.sum():
        return None
    top = float(np.abs(values).max())
    return top * math.sqrt(float((np.square(values / top) * counts).sum() / counts.sum())) if top else 0.0


def _quantiles(values: F64, counts: NDArray[np.int64], wanted: tuple[float, ...]) -> dict[str, float]:
    if not counts.size:
        return {}
    upto = np.cumsum(counts)
    places = np.searchsorted(upto, [math.ceil(q * upto[-1]) for q in wanted])
    return {f"{q:g}": float(values[place]) for q, place in zip(wanted, places, strict=True)}


def _outliers(rms: F64) -> Outliers | None:
    if len(rms) < FEWEST_CHANNELS:
        return None
    median = float(np.median(rms))
    found = rms >= OUTLIER * median if median else rms > 0
    order = np.argsort(-rms, kind="stable")[: min(int(found.sum()), SHOWN)]
    largest = float(rms.max()) / median if median else None
    return Outliers(int(found.sum()), len(rms), largest, [int(place) for place in order])


def _mxfp4(case: Case, decl: TensorDecl, parts: list[NDArray[np.float32]], rules: tuple[str, ...]) -> list[Blocks]:
    if decl.name == "w_kv_b":
        parts = [w_uk_of(part, case.key.geometry.heads) for part in parts]
    fits = decl.dtype != "e2m1x2" and parts[0].shape[-1] % mx.BLOCK == 0
    return mx_blocks(parts, rules) if fits else []


def _row_chunks(parts: list[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """Rows [some, n] of all parts, about CHUNK values at a time."""
    for part in parts:
        rows = part.reshape(-1, part.shape[-1])
        step = max(1, CHUNK // rows.shape[1])
        for start in range(0, len(rows), step):
            yield rows[start : start + step]
