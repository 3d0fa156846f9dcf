"""`probe`: a `Probe` whose patterns are checked against every launch's rounding points and options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from k3lab.analysis.ends import DERIVED
from k3lab.launches import LAUNCHES
from k3lab.rounding import Inject, Probe, check_patterns


def probe(
    record: str | Iterable[str] = (),
    ablate: str | Iterable[str] = (),
    swap: Mapping[str, str] | None = None,
    inject: Mapping[str, Inject] | None = None,
    keep: bool = False,
) -> Probe:
    """Watch or change rounding points: see `k3lab.rounding.Probe`.

        with k3lab.probe(record="k1.*", ablate="k1.mix.x", inject={"k1.conv.out": ((0, 5), +1)}) as p:
            k3lab.run("k1", case)
        p.stats["k1.conv.out"].rms

    Raises:
        BadInput: for a pattern that names no rounding point, or a swap that is no format.
    """
    made = Probe(record, ablate, swap, inject, keep)
    check_patterns(made, known_points(), known_options())
    return made


def known_points() -> list[str]:
    """Full names of every launch's rounding points, and of those of derived tensors."""
    derived = [each.point for many in DERIVED.values() for each in many]
    return [name for launch in LAUNCHES.values() for name in launch.points] + derived


def known_options() -> list[str]:
    """Full names of every launch's optional points."""
    return [name for launch in LAUNCHES.values() for name in launch.options]
