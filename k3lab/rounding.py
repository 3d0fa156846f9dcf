"""Rounding points and probes: the one seam every narrowed value passes.

A twin narrows a value only through `pass_through(point, value, fmt)`. With no probe active that is one rounding. A
`Probe` can, for the points its patterns name, *record* values before and after, *ablate* the rounding, *swap* it for
another format or mode, or *inject* a step of n ulps at one element. Probes nest: the innermost that names a point
decides how it rounds, every one that records it sees the outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from types import TracebackType
from zlib import crc32

import torch

from k3lab import formats
from k3lab.errors import BadInput, expect
from k3lab.formats.tensor import round_tensor
from k3lab.stats import ErrorStats

HW_POINTS = ("hw.exp2", "hw.rsq", "hw.rcp")
"""Hardware approximations, perturbed like points: `swap={"hw.exp2": "ulp:+1"}`."""

ALTERNATIVES = ("unrounded", "unquantised", "rotated", "pairwise", "float64")
"""What an optional point can be swapped to beside a format."""

MAX_SEED_DIGITS = 18

Inject = tuple[tuple[int, ...], int]
Alternative = Callable[[], torch.Tensor]

_active: ContextVar[tuple[Probe, ...]] = ContextVar("k3lab_probes", default=())


@dataclass(frozen=True)
class Passed:
    """What one point saw: the value before and after narrowing, and the format's name (None: ablated)."""

    before: torch.Tensor
    after: torch.Tensor
    fmt: str | None


def pass_through(point: str, value: torch.Tensor, fmt: str, narrow: bool = True) -> torch.Tensor:
    """Round `value` to `fmt` at `point` (leave it, unless `narrow`), under the active probes; same shape and dtype."""
    probes = _active.get()
    if probes:
        return _probed(probes, point, value, fmt, narrow)
    return _narrow(point, value, fmt) if narrow else value


def pass_option(point: str, value: torch.Tensor, alternatives: Mapping[str, Alternative]) -> torch.Tensor:
    """`value`, or what a probe that names `point` in full swaps it to: an alternative, or a rounding.

    Raises:
        BadInput: for an alternative the point does not have.
    """
    specs = [probe.swap[point] for probe in _active.get() if point in probe.swap]
    if not specs:
        return value
    spec = specs[-1]
    if spec in alternatives:
        return alternatives[spec]()
    if spec in ALTERNATIVES:
        raise BadInput(f"swap of {point}: expected a format or one of {sorted(alternatives)}, got {spec!r}.")
    return _narrow(point, value, spec)


def _probed(probes: tuple[Probe, ...], point: str, value: torch.Tensor, fmt: str, narrow: bool) -> torch.Tensor:
    spec = fmt if narrow else None
    for probe in probes:
        spec = probe.decide(point, spec)
    after = value if spec is None else _narrow(point, value, spec)
    for probe in probes:
        after = probe.injected(point, value, after, spec or fmt)
    for probe in probes:
        probe.see(point, value, after, spec, fmt)
    return after


def active_changes() -> list[dict[str, object]]:
    """What the active probes change, as provenance records it: one entry a probe that changes anything."""
    return [
        {
            "ablate": list(probe.ablate),
            "swap": dict(probe.swap),
            "inject": {point: [list(index), steps] for point, (index, steps) in probe.inject.items()},
        }
        for probe in _active.get()
        if probe.changes
    ]


def probing() -> bool:
    """Whether any probe is active, one that only looks included."""
    return bool(_active.get())


@lru_cache(maxsize=256)
def _rounder(spec: str) -> formats.Rounder:
    return formats.parse(spec)


def _narrow(point: str, value: torch.Tensor, spec: str) -> torch.Tensor:
    if spec.startswith("ulp:"):
        return _nudged(value, spec)
    rounder = _rounder(spec)
    if rounder.mode == "stochastic":  # points must not share their dither
        rounder = replace(rounder, seed=rounder.seed + crc32(point.encode()))
    return round_tensor(rounder, value)


def _nudged(value: torch.Tensor, spec: str) -> torch.Tensor:
    """`ulp:+1` / `ulp:-1` moves every finite element one fp32 step away from / toward zero; `ulp:random:SEED` mixes."""
    steps = nudge_steps(spec, value)
    moved = torch.nextafter(value, torch.where(steps > 0, torch.inf, 0.0).to(value.dtype) * value.sign())
    return torch.where((steps != 0) & value.isfinite() & (value != 0), moved, value)


def nudge_steps(spec: str, value: torch.Tensor) -> torch.Tensor:
    """How far `spec` moves each element: -1, 0 or +1.

    Raises:
        BadInput: for anything but `ulp:+1`, `ulp:-1`, `ulp:random[:SEED]`.
    """
    kind, _, seed = spec.removeprefix("ulp:").partition(":")
    if kind in ("+1", "-1") and not seed:
        return torch.full_like(value, int(kind), dtype=torch.int8)
    if kind == "random" and (not seed or (seed.isdigit() and len(seed) < MAX_SEED_DIGITS)):
        # Seeded by the values too, so that calls of one shape are not all moved alike.
        content = crc32(value.detach().cpu().contiguous().numpy().tobytes())
        source = torch.Generator().manual_seed(int(seed or 0) + content)
        return torch.randint(-1, 2, value.shape, generator=source, dtype=torch.int8).to(value.device)
    raise BadInput(f"swap: expected ulp:+1, ulp:-1 or ulp:random[:SEED], got {spec!r}.")


class Probe:
    """Watch or change rounding points while the `with` block is open.

    Args:
        record: pattern or patterns (shell globs over full names, e.g. `"k1.*"`) whose statistics to stream.
        ablate: patterns to leave unrounded.
        swap: pattern -> `format[:rule][:mode][:seed]`, or `ulp:+1` and the like for `hw.*`.
        inject: full point name -> (index, n): move the element at `index` by n steps of its format, each time (on each
            rank) a value passes the point.
        keep: keep the values of recorded points (`values`).
        stats: stream the statistics of recorded points (`stats`).

    Attributes:
        stats: by point, the error of the narrowing itself (after against before).
        values: by point, every `Passed` when `keep` is set.

    Raises:
        BadInput: for a swap that is no format, or an index that does not fit the value (when the point is passed).
    """

    def __init__(
        self,
        record: str | Iterable[str] = (),
        ablate: str | Iterable[str] = (),
        swap: Mapping[str, str] | None = None,
        inject: Mapping[str, Inject] | None = None,
        keep: bool = False,
        stats: bool = True,
    ) -> None:
        self.record = _patterns(record)
        self.ablate = _patterns(ablate)
        self.swap = dict(swap or {})
        self.inject = dict(inject or {})
        self.keep = keep
        self._measures = stats
        self.stats: dict[str, ErrorStats] = {}
        self.values: dict[str, list[Passed]] = {}
        for spec in self.swap.values():
            _check_swap(spec)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Every pattern and point this probe names."""
        return (*self.record, *self.ablate, *self.swap, *self.inject)

    @property
    def changes(self) -> bool:
        """Whether the probe alters values (and not only looks)."""
        return bool(self.ablate or self.swap or self.inject)

    def __enter__(self) -> Probe:
        _active.set((*_active.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # By name, not by token: a generator may close its probe while a later one is still open.
        probes = list(_active.get())
        if self in probes:
            del probes[len(probes) - 1 - probes[::-1].index(self)]
            _active.set(tuple(probes))

    def decide(self, point: str, spec: str | None) -> str | None:
        """The spec this probe makes of `spec` at `point`: None is ablated. A swap beats an ablation."""
        if _matches(point, self.ablate):
            spec = None
        for pattern, swapped in self.swap.items():
            if _match(point, pattern):
                spec = swapped
        return spec

    def injected(self, point: str, before: torch.Tensor, value: torch.Tensor, spec: str) -> torch.Tensor:
        """`value` (of `before`, narrowed) with this probe's step at one element, if it has one for `point`."""
        if point not in self.inject:
            return value
        index, steps = self.inject[point]
        fits = len(index) == value.ndim and all(-n <= i < n for i, n in zip(index, value.shape, strict=True))
        expect(fits, f"inject at {point}", f"an index into shape {tuple(value.shape)}", tuple(index))
        value = value.clone()
        scale = _block_scale(before, tuple(index), spec)
        value[tuple(index)] = _stepped(value[tuple(index)] / scale, spec, steps) * scale
        return value

    def see(self, point: str, before: torch.Tensor, after: torch.Tensor, spec: str | None, fmt: str) -> None:
        """Stream the statistics of one passing, and keep its values when asked."""
        if not _matches(point, self.record):
            return
        if self._measures:
            measured = fmt if spec is None or spec.startswith("ulp:") else spec
            self.stats.setdefault(point, ErrorStats(measured)).update(before, after)
        if self.keep:
            self.values.setdefault(point, []).append(Passed(before, after, spec))


def _check_swap(spec: str) -> None:
    if spec.startswith("ulp:"):
        nudge_steps(spec, torch.zeros(1))
    elif spec not in ALTERNATIVES:
        _rounder(spec)


def _block_scale(before: torch.Tensor, index: tuple[int, ...], spec: str) -> float:
    """The scale of the MXFP4 block that the element at `index` is in; 1 for formats without blocks."""
    format_ = None if spec.startswith("ulp:") else _rounder(spec).format
    if not isinstance(format_, formats.MxFormat):
        return 1.0
    row = before.detach()[index[:-1]].cpu().numpy()
    code = formats.mx.block_scale(row, format_.rule)[index[-1] % row.size // formats.mx.BLOCK]
    return float(formats.E8M0.decode(code))


def _stepped(value: torch.Tensor, spec: str, steps: int) -> torch.Tensor:
    name = "fp32" if spec.startswith("ulp:") else _rounder(spec).format_name
    element = formats.get("e2m1" if name == "mxfp4" else name)
    assert isinstance(element, formats.FloatFormat)
    moved = element.step(value.detach().cpu().numpy().reshape(1), steps)
    return torch.as_tensor(moved[0], dtype=value.dtype, device=value.device)


def _patterns(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _matches(point: str, patterns: Iterable[str]) -> bool:
    return any(_match(point, pattern) for pattern in patterns)


def _match(point: str, pattern: str) -> bool:
    """A glob names hardware approximations only when it says `hw`: `*` means every rounding point."""
    if point.startswith("hw.") and not pattern.startswith("hw"):
        return False
    return fnmatchcase(point, pattern)


def check_patterns(probe: Probe, points: Iterable[str], options: Iterable[str]) -> None:
    """Refuse whatever of `probe` names nothing it can act on: a typing error would otherwise change nothing, silently.

    Rounding points are named by globs, but for `inject`; options only in a swap, and in full.

    Raises:
        BadInput: listing what can be named.
    """
    names, options = [*points, *HW_POINTS], list(options)
    for pattern in (*probe.record, *probe.ablate, *probe.swap):
        if not any(_match(name, pattern) for name in names) and not (pattern in probe.swap and pattern in options):
            wanted = f"a glob that names a rounding point of {names}, or in a swap an option of {options}"
            raise BadInput(f"probe pattern {pattern!r}: expected {wanted}.")
    for point in probe.inject:
        expect(point in names, "inject", f"the full name of a rounding point of {names}", repr(point))
