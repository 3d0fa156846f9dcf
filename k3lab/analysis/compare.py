"""Compare a run with a reference run and with the float64 oracle: one row a rounding point, one a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise

import torch

from k3lab import formats
from k3lab.analysis.ends import (
    every_rank,
    own_ranks,
    run_error,
    tensor_about,
    tensor_format,
    tensor_kind,
    tensor_names,
)
from k3lab.analysis.report import (
    BIT_EQUAL,
    CORRECTLY_ROUNDED,
    Difference,
    PointRow,
    Report,
    SpreadRow,
    TensorRow,
    Verdict,
)
from k3lab.backends import Run
from k3lab.backends.twin import TWINS
from k3lab.errors import expect
from k3lab.formats.tensor import as_array, ulp_tensor
from k3lab.launches import Point
from k3lab.rounding import Passed
from k3lab.stats import ErrorStats, error_stats

HALF_ULP = 0.5
KERNEL_LABELS = {"sim": "kernel in the simulator", "gfx950": "kernel on gfx950", "cuda": "translated kernel on NVIDIA"}
NARROW_BITS = 8  # formats whose codes are counted one by one
HEAT_BLOCKS = 56  # channel blocks of a heat map: one a slice of 128 at full width


def compare(run: Run, reference: Run, oracle: Run | None = None) -> Report:
    """Hold `run` against `reference` element by element, and against `oracle` where there is one.

    Raises:
        BadInput: when the runs are of different cases.
    """
    for name, other in (("reference", reference), ("oracle", oracle)):
        if other is not None:
            expect(other.case.hash == run.case.hash, f"{name} run", "a run of the same case", "another case")
    points = _point_rows(run if run.points else reference, oracle)  # a kernel's points are those its twin shows
    tensors = _tensor_rows(run, reference, oracle)
    provenance = {"run": run, "reference": reference, "oracle": oracle}
    return Report(
        launch=run.launch.name,
        published=run.launch.published,
        about=run.launch.about,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        labels={name: label(other) for name, other in provenance.items() if other is not None},
        provenance={name: dict(other.provenance) for name, other in provenance.items() if other is not None},
        points=points,
        tensors=tensors,
        verdicts=_verdicts(run, reference, points, tensors),
    )


def label(run: Run) -> str:
    """A run in a few words: `twin, kernel order, MFMA model fused, cpu`."""
    parts = [KERNEL_LABELS.get(run.backend, run.backend)]
    if run.backend in TWINS and run.order != run.backend:
        parts.append(f"{run.order} order")
    if run.mfma != "none":
        parts.append(f"MFMA model {run.mfma}")
    return ", ".join([*parts, run.device, *_built(run)])


def _built(run: Run) -> list[str]:
    """What a label says of a translation's build, and of ranks that did not run or ran on several GPUs."""
    fast = ["fast build"] if is_fast(run) else []
    ranks = run.provenance.get("ranks", {})
    live = ", ".join(map(str, ranks.get("live", ())))
    some = [f"live rank {live} of {ranks['of']}"] if len(ranks.get("live", ())) < ranks.get("of", 0) else []
    return [*fast, *some, *([f"{ranks['gpus']} GPUs"] if ranks.get("gpus", 1) > 1 else [])]


def is_fast(run: Run) -> bool:
    """Whether a translation's fast build ran, which is not bound to the twin's bits."""
    build: str = run.provenance.get("translation", {}).get("build", "exact")
    return build == "fast"


def _point_rows(run: Run, oracle: Run | None) -> list[PointRow]:
    return [_point_row(run, name, oracle.points.get(name) if oracle else None) for name in run.points]


def _point_row(run: Run, name: str, true: Sequence[Passed] | None) -> PointRow:
    point, passed = run.launch.points[name], run.points[name]
    unit = passed[0].fmt if passed[0].fmt and not passed[0].fmt.startswith("ulp:") else point.fmt
    own, total = ErrorStats(unit), ErrorStats(unit)
    for one in passed:
        own.update(one.before, one.after)
    for one, exact in zip(passed, true or (), strict=False):
        total.update(exact.after, one.after.double())
    return PointRow(
        name=name,
        stage=_stage_of(run, point),
        about=point.about,
        format=passed[0].fmt or "ablated",
        shape=list(passed[0].after.shape),
        ranks=len(passed),
        own=own.figures(),
        total=total.figures() if true else None,
        heat=_heat(point, passed[0], true[0], unit) if true else None,
        codes=code_counts(passed) if passed[0].fmt == unit else None,
    )


def code_counts(passed: Sequence[Passed]) -> list[int] | None:
    """How often each code of a 4- or 8-bit format was used at a point, by code; None for wider formats."""
    rounder = formats.parse(passed[0].fmt or "fp32")
    element = formats.E2M1 if isinstance(rounder.format, formats.MxFormat) else rounder.format
    if element.bits > NARROW_BITS:
        return None
    counts = torch.zeros(2**element.bits, dtype=torch.int64)
    for one in passed:
        counts += torch.bincount(_codes(rounder, one.before), minlength=len(counts))
    return [int(count) for count in counts]


def _codes(rounder: formats.Rounder, before: torch.Tensor) -> torch.Tensor:
    values, format_ = as_array(before), rounder.format
    if isinstance(format_, formats.MxFormat):
        codes, _ = formats.mx.quantise(values, format_.rule, rounder.mode, format_.nonfinite, rounder.seed)
    else:
        codes = format_.encode(values, rounder.mode, rounder.seed)
    return torch.from_numpy(codes.astype("int64")).flatten()


def _stage_of(run: Run, point: Point) -> str:
    return next(stage.name for stage in run.launch.stages if point in stage.points)


def _heat(point: Point, passed: Passed, true: Passed, unit: str) -> list[list[float]]:
    """By token and channel block, the rms error over the rms ulp: a rounding alone gives about 0.29."""
    lead = 2 if point.dims.startswith("R L ") else 1  # a row is a token, whether requests are told apart or not
    error = passed.after.double() - true.after
    ulps = ulp_tensor(formats.parse(unit), true.after)
    error_rms, ulp_rms = (_block_rms(t.flatten(lead).flatten(0, lead - 1)) for t in (error, ulps))
    return (error_rms / ulp_rms).nan_to_num(nan=0.0).tolist()


def _block_rms(rows: torch.Tensor) -> torch.Tensor:
    """Rms of the finite values of `rows` over each of at most HEAT_BLOCKS blocks of columns."""
    square = torch.nan_to_num(rows, nan=0.0, posinf=0.0, neginf=0.0) ** 2
    blocks = min(HEAT_BLOCKS, square.shape[1])
    edges = torch.linspace(0, square.shape[1], blocks + 1).round().long().tolist()
    means = [square[:, lo:hi].mean(1) for lo, hi in pairwise(edges)]
    return torch.stack(means, dim=1).sqrt()


def _tensor_rows(run: Run, reference: Run, oracle: Run | None) -> list[TensorRow]:
    return [_tensor_row(run, reference, oracle, name) for name in tensor_names(run)]


def _tensor_row(run: Run, reference: Run, oracle: Run | None, name: str) -> TensorRow:
    held = own_ranks(run, name)
    return TensorRow(
        name=name,
        kind=tensor_kind(run, name),
        about=tensor_about(run, name),
        format=tensor_format(run, name),
        shape=list(held[0][1].shape),
        ranks=len(held),
        difference=run_difference(run, reference, name),
        total=run_error(run, oracle, name).figures() if oracle else None,
    )


def run_difference(run: Run, reference: Run, name: str) -> Difference:
    """How the tensor `name` of two runs differs, over every rank that has its own."""
    unit = tensor_format(run, name)
    other = every_rank(reference, name)
    parts = [
        (rank, difference(value, other[rank], unit, raw_elements(run, name, rank)))
        for rank, value in own_ranks(run, name)
    ]
    ulps = max((part.max_ulp for _, part in parts if part.max_ulp is not None), default=None)
    relative = max((part.relative_rms for _, part in parts if part.relative_rms is not None), default=None)
    first = next(({"rank": rank, **part.first} for rank, part in parts if part.first), None)
    return Difference(sum(p.differ for _, p in parts), sum(p.count for _, p in parts), ulps, relative, first)


def raw_elements(run: Run, name: str, rank: int) -> torch.Tensor | None:
    """Which elements of `name` pass through the launch as bits; None where all NaN are alike."""
    inputs = run.case.ranks[rank]
    raw = run.launch.input(name).raw if name in inputs else None
    return raw(run.key, inputs) if raw else None


def difference(got: torch.Tensor, want: torch.Tensor, unit: str, raw: torch.Tensor | None = None) -> Difference:
    """How two tensors differ, bit for bit: -0.0 is not +0.0, NaN equals NaN whatever its payload.

    Args:
        raw: elements, as a mask that broadcasts, whose NaN payloads count too, where both tensors are fp32.
    """
    same = alike(got, want, raw)
    differ = int((~same).sum())
    if not differ:
        return Difference(0, got.numel(), 0.0, 0.0, None)
    index = tuple(int(i) for i in (~same).nonzero()[0])
    first = {"index": list(index), **_shown(got[index], want[index])}
    figures = error_stats(want, got.to(want.dtype), unit).figures()
    return Difference(differ, got.numel(), figures.max_ulp, figures.relative_rms, first)


def alike(got: torch.Tensor, want: torch.Tensor, raw: torch.Tensor | None = None) -> torch.Tensor:
    """Which elements are the same, as `difference` counts them."""
    if raw is not None and got.dtype == want.dtype == torch.float32:
        both_nan = got.isnan() & want.isnan()
        return (_bits(got) == _bits(want)) | (both_nan & ~raw)
    got = got.to(want.dtype)
    return (got == want) & (got.signbit() == want.signbit()) | (got.isnan() & want.isnan())


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.int32)


def _hex(value: torch.Tensor) -> str:
    return f"{int(_bits(value.reshape(1))) & 0xFFFFFFFF:#010x}"


def _shown(got: torch.Tensor, want: torch.Tensor) -> dict[str, str]:
    """Both values in decimal; NaN whose payloads differ with their bits."""
    shown = {name: repr(value.item()) for name, value in (("got", got), ("want", want))}
    if shown["got"] == shown["want"]:
        return {name: f"nan ({_hex(value)})" for name, value in (("got", got), ("want", want))}
    return shown


def _verdicts(run: Run, reference: Run, points: list[PointRow], tensors: list[TensorRow]) -> list[Verdict]:
    verdicts = [_half_ulp(row) for row in points if _rounds_to_nearest(row.format)]
    same_model = run.mfma in ("none", reference.mfma)  # hardware has none of its own
    exact = run.backend not in TWINS and not is_fast(run)
    if exact and reference.backend == "twin" and reference.order == "kernel" and same_model:
        verdicts += [_bit_equal(row) for row in tensors]
    return verdicts


def _rounds_to_nearest(spec: str) -> bool:
    return spec != "ablated" and not spec.startswith("ulp:") and formats.parse(spec).nearest


def _half_ulp(row: PointRow) -> Verdict:
    # Half an ulp bounds a nearest-even rounding of every value the format's range holds.
    worst = row.own.max_ulp_in_range
    fine = worst is not None and worst <= HALF_ULP
    return Verdict(row.name, CORRECTLY_ROUNDED, f"{worst:.3g} ulp" if worst is not None else "-", fine)


def _bit_equal(row: TensorRow) -> Verdict:
    measured = f"{row.difference.differ} of {row.difference.count} differ"
    return Verdict(row.name, BIT_EQUAL, measured, row.difference.differ == 0)


def mfma_spread(run: Run, other: Run) -> list[SpreadRow]:
    """How every exposed tensor moves from the MFMA model of `run` to that of `other`."""
    return [SpreadRow(other.mfma, run.mfma, name, run_difference(other, run, name)) for name in tensor_names(run)]
