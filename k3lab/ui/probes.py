"""The probe panel's view: a launch's end tensors with some of its roundings on and the others left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure

from k3lab.analysis.charts import WIDTH
from k3lab.analysis.ends import end_names, run_error
from k3lab.analysis.palette import FAINT, INK, TOTAL
from k3lab.analysis.words import decibel, number, plain, plural
from k3lab.backends import Run
from k3lab.backends import run as run_backend
from k3lab.cases import Case
from k3lab.errors import expect
from k3lab.probes import probe
from k3lab.stats import Figures
from k3lab.ui.html import Html, heading, joined, picture, table

ORDER = "torch"
"""Sums in torch's order, as the error budget's, so that a view takes a fraction of a second at mini geometry."""

Errors = Mapping[str, Figures]


@dataclass
class Probed:
    """A case whose roundings are turned on and off one by one.

    Attributes:
        oracle: the float64 run that errors are against.
        seen: errors by what was off; a selection that was seen before costs nothing.
    """

    case: Case
    oracle: Run = field(init=False, repr=False)
    seen: dict[frozenset[str], Errors] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.oracle = run_backend(self.case.launch, self.case, backend="oracle")

    @property
    def points(self) -> tuple[str, ...]:
        """Full names of the rounding points that values of this case pass, in order."""
        return self.case.declaration.points_for(self.case.key)

    def errors(self, on: Collection[str]) -> Errors:
        """By end tensor, its error against the oracle with only the roundings `on` left in.

        Raises:
            BadInput: for a name that is no rounding point of the case.
        """
        unknown = sorted(set(on) - set(self.points))
        expect(not unknown, "rounding point", f"one of {list(self.points)}", unknown)
        off = frozenset(self.points) - frozenset(on)
        if off not in self.seen:
            with probe(ablate=sorted(off)):
                run = run_backend(self.case.launch, self.case, order=ORDER)
                self.seen[off] = {name: run_error(run, self.oracle, name).figures() for name in end_names(run)}
        return self.seen[off]


def probe_view(probed: Probed, on: Collection[str]) -> Html:
    """Each end tensor's error with the roundings `on`, beside all of them on.

    Raises:
        BadInput: for a name that is no rounding point of the case.
    """
    errors, full = probed.errors(on), probed.errors(probed.points)
    off = [name for name in probed.points if name not in set(on)]
    rows = [
        (
            name,
            number(one.relative_rms),
            number(full[name].relative_rms),
            number(one.mean),
            number(one.max_error),
            decibel(one.snr_db),
        )
        for name, one in errors.items()
    ]
    left_out = ", ".join(off) or "none"
    what = f"{plural(len(probed.points) - len(off), 'rounding')} on; left out: {left_out}"
    caption = (
        "Relative rms error of each end tensor against the float64 oracle: bars with this selection, outlines with "
        "every rounding on. A bar far inside its outline: what was left out made most of that error."
    )
    return joined(
        heading(f"{probed.case.launch}: which rounding costs what", what),
        picture(error_bars(errors, full), caption),
        table(
            ["end tensor", "relative rms", "all on", "signed mean", "largest", "SNR"],
            rows,
            f"The same in figures, computed in {ORDER}'s summation order on this machine's CPU.",
        ),
    )


def error_bars(errors: Errors, full: Errors) -> Figure:
    """A bar a tensor on a log axis, and an outline of its error with every rounding on."""
    names = list(errors)
    values = [errors[name].relative_rms or 0.0 for name in names]
    outlines = [full[name].relative_rms or 0.0 for name in names]
    positive = [value for value in (*values, *outlines) if value] or [1e-3]
    low, high = min(positive) / 4, max(positive) * 4
    figure = Figure(figsize=(WIDTH, 1.1 + 0.42 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(names))
    axes.barh(places, [max(value, low) for value in outlines], height=0.74, color="none", edgecolor=FAINT)
    axes.barh(places, [max(value, low) for value in values], height=0.5, color=TOTAL)
    for place, value, outline in zip(places, values, outlines, strict=True):
        text = number(value) if value else "exact"
        where = (max(value, outline, low), place)
        axes.annotate(text, where, (5, 0), textcoords="offset points", va="center", color=INK)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_formatter(lambda value, _: plain(value))
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set_xlabel("relative rms error (rms error / rms value), log axis; further left is better")
    axes.set_ylabel("end tensor")
    axes.grid(axis="x", alpha=0.25)
    return figure
