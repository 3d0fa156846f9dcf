"""Error statistics of one tensor against another, streamed in chunks.

Every figure is over the elements that are finite on both sides; the others are counted apart. The *signed mean* stands
beside rms and max because a one-sided error that passes every tolerance still drifts (aiter issue 5151).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from k3lab import formats
from k3lab.formats.tensor import as_array, ulp_tensor

ULP_EDGES = (-math.inf, *(-(2.0**k) for k in range(8, -5, -1)), *(2.0**k for k in range(-4, 9)), math.inf)
"""Edges of the signed ulp histogram: -256 .. -1/16, 1/16 .. 256, and beyond."""


@dataclass
class ErrorStats:
    """Running error of `got` against `ref`, in absolute terms and in ulps of `fmt` at `ref`.

    Attributes:
        fmt: format (swap grammar) whose ulp is the unit.
        clipped: elements beyond the format's largest value that were brought to it.
        max_ulp_in_range: the largest error in ulps of those that were not clipped.
        flushed: elements that were not zero and became zero.
        mismatched: elements finite on one side only, or infinite with other signs.
    """

    fmt: str
    count: int = 0
    finite: int = 0
    exact: int = 0
    clipped: int = 0
    flushed: int = 0
    mismatched: int = 0
    error_sum: float = 0.0
    error_sq: float = 0.0
    signal_sq: float = 0.0
    max_error: float = 0.0
    max_ulp: float = 0.0
    max_ulp_in_range: float = 0.0
    histogram: list[int] = field(default_factory=lambda: [0] * (len(ULP_EDGES) - 1))

    def update(self, ref: torch.Tensor, got: torch.Tensor) -> ErrorStats:
        """Add `ref`, `got` (same shape, any float dtype); returns itself."""
        rounder = formats.parse(self.fmt)
        both = ref.isfinite() & got.isfinite()
        self.count += ref.numel()
        self.finite += int(both.sum())
        self.mismatched += int((~both & ~_same(ref, got)).sum())
        top = _top(rounder, ref)
        clipped = (ref.abs() > top) & (got.abs() == top)
        self.clipped += int((clipped & ref.isfinite()).sum())
        self.flushed += int(((ref != 0) & (got == 0)).sum())
        self.exact += int(_same(ref, got).sum())
        ulps = ulp_tensor(rounder, ref)[both]
        ref, got = ref[both].double(), got[both].double()
        self._add_errors(ref, got - ref, ulps, clipped[both])
        return self

    def _add_errors(self, ref: torch.Tensor, error: torch.Tensor, ulps: torch.Tensor, clipped: torch.Tensor) -> None:
        if not error.numel():
            return
        in_ulps = error / ulps
        self.error_sum += float(error.sum())
        self.error_sq += float((error * error).sum())
        self.signal_sq += float((ref * ref).sum())
        self.max_error = max(self.max_error, float(error.abs().max()))
        self.max_ulp = max(self.max_ulp, float(in_ulps.abs().max()))
        self.max_ulp_in_range = max(self.max_ulp_in_range, float(in_ulps.abs().masked_fill(clipped, 0.0).max()))
        edges = torch.tensor(ULP_EDGES[1:-1], dtype=torch.float64, device=error.device)
        bins = torch.bincount(torch.bucketize(in_ulps, edges), minlength=len(self.histogram))
        self.histogram = [old + int(new) for old, new in zip(self.histogram, bins.tolist(), strict=True)]

    @property
    def mean(self) -> float:
        """Signed mean error."""
        return self.error_sum / self.finite if self.finite else 0.0

    @property
    def rms(self) -> float:
        return math.sqrt(self.error_sq / self.finite) if self.finite else 0.0

    @property
    def relative_rms(self) -> float:
        """rms error over rms signal; 0 where both are 0."""
        if self.error_sq == 0:
            return 0.0
        return math.sqrt(self.error_sq / self.signal_sq) if self.signal_sq else math.inf

    @property
    def snr_db(self) -> float:
        """10 log10(signal power / error power); infinite when nothing differs."""
        if self.error_sq == 0:
            return math.inf
        return 10 * math.log10(self.signal_sq / self.error_sq) if self.signal_sq else -math.inf

    def share(self, counted: int) -> float:
        """`counted` elements as a share of all."""
        return counted / self.count if self.count else 0.0

    def figures(self) -> Figures:
        """The figures a report prints."""
        return Figures(
            format=self.fmt,
            count=self.count,
            finite=self.finite,
            mean=self.mean,
            rms=self.rms,
            relative_rms=_json(self.relative_rms),
            max_error=self.max_error,
            max_ulp=_json(self.max_ulp),
            max_ulp_in_range=_json(self.max_ulp_in_range),
            snr_db=_json(self.snr_db),
            exact_share=self.share(self.exact),
            clipped_share=self.share(self.clipped),
            flushed_share=self.share(self.flushed),
            mismatched=self.mismatched,
            ulp_histogram=list(self.histogram),
        )


@dataclass(frozen=True)
class Figures:
    """Finished statistics, as JSON holds them: an infinite figure is None.

    `snr_db` None means no error at all (or no signal); shares are of `count`.
    """

    format: str
    count: int
    finite: int
    mean: float
    rms: float
    relative_rms: float | None
    max_error: float
    max_ulp: float | None
    max_ulp_in_range: float | None
    snr_db: float | None
    exact_share: float
    clipped_share: float
    flushed_share: float
    mismatched: int
    ulp_histogram: list[int]


def _top(rounder: formats.Rounder, ref: torch.Tensor) -> torch.Tensor:
    """The largest value the format holds at each element: of MXFP4, 6 times its block's scale."""
    if not isinstance(rounder.format, formats.MxFormat):
        return torch.tensor(rounder.max_value, dtype=torch.float64, device=ref.device)
    scales = formats.E8M0.decode(formats.mx.block_scale(as_array(ref), rounder.format.rule))
    return (
        torch.from_numpy(scales).double().repeat_interleave(formats.mx.BLOCK, dim=-1).to(ref.device) * formats.E2M1.max
    )


def error_stats(ref: torch.Tensor, got: torch.Tensor, fmt: str) -> ErrorStats:
    """The error of `got` against `ref` in one go."""
    return ErrorStats(fmt).update(ref, got)


def _same(ref: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    return (ref == got) | (ref.isnan() & got.isnan())


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None
