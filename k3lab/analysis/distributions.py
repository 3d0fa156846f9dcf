"""The charts of a case's statistics: how large values are, which channels stand out, what MXFP4 makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from k3lab.analysis.charts import WIDTH
from k3lab.analysis.palette import FAINT, FORMATS, INK, OWN, STAGES, TOTAL
from k3lab.cases.case import Case
from k3lab.cases.statistics import OUTLIER, Spread, channel_rms, spread
from k3lab.errors import expect
from k3lab.formats import FP8_E4M3

LABELLED = 6  # outlier channels that get their number
ROOM = 1.0  # octaves left and right of what is drawn


def magnitudes(spreads: Sequence[Spread]) -> Figure:
    """For each tensor, from the smallest to the largest magnitude on a scale of powers of two.

    Raises:
        BadInput: when no tensor has a value that is not zero.
    """
    rows = [each for each in spreads if each.smallest]
    expect(rows, "tensors", "at least one with a value that is not zero", "none")
    figure = Figure(figsize=(WIDTH, 1.7 + 0.34 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    low, high = np.log2(FP8_E4M3.smallest), np.log2(FP8_E4M3.max)
    axes.axvspan(low, high, color=FORMATS["fp8_e4m3"], alpha=0.12, label="range of fp8 e4m3 at scale 1")
    for place, each in enumerate(rows):
        assert each.smallest and each.min is not None and each.max is not None
        ends = np.log2([each.smallest, max(-each.min, each.max)])
        axes.plot(
            ends, [place, place], color=FAINT, linewidth=1.5, label="smallest but 0, to largest" if not place else ""
        )
        inner = [max(each.magnitudes[q], each.smallest) for q in ("0.01", "0.99")]
        axes.plot(
            np.log2(inner),
            [place, place],
            color=TOTAL,
            linewidth=6,
            solid_capstyle="butt",
            label="98 % of the values" if not place else "",
        )
        median = np.log2(max(each.magnitudes["0.5"], each.smallest))
        axes.plot(median, place, "D", color=OWN, markersize=6, label="median" if not place else "")
    axes.set_yticks(range(len(rows)), [f"{each.name} ({each.dtype})" for each in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_locator(MultipleLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"$2^{{{value:.0f}}}$"))
    axes.set_xlabel("magnitude; a tick is a factor of 16")
    axes.grid(axis="x", alpha=0.25)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle("How large the values are", fontweight="bold")
    return figure


def channels(case: Case, name: str) -> Figure:
    """Rms of each channel of a tensor, outliers marked by their number.

    Raises:
        BadInput: for a name that is no float tensor of the case, or one with too few channels to tell outliers.
    """
    found = spread(case, name, ()).channels
    expect(found is not None, name, "a tensor with 128 channels or more", "fewer")
    assert found is not None
    rms = channel_rms(case, name)
    shown = np.where(rms > 0, rms, np.nan)
    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(np.arange(len(rms)), shown, ".", color=TOTAL, markersize=3, label="a channel")
    median = float(np.median(rms))
    if median:
        axes.axhline(median, color=INK, linewidth=0.8, label="median")
        axes.axhline(OUTLIER * median, color=FAINT, linewidth=0.8, linestyle="--", label=f"{OUTLIER:g} × median")
    places = np.flatnonzero(rms >= OUTLIER * median) if median else np.array([], int)
    if places.size:
        axes.plot(places, rms[places], "o", color=OWN, markersize=7, label="outlier")
    for place in found.where[:LABELLED] if places.size else ():
        axes.annotate(str(place), (place, rms[place]), (0, 7), textcoords="offset points", ha="center", fontsize=8)
    axes.set_yscale("log", base=2)
    axes.margins(y=0.15)
    axes.set_xlim(-0.01 * len(rms), 1.05 * len(rms))
    axes.set_xlabel(f"channel of {name} (place of its last dimension)")
    axes.set_ylabel("rms over all rows")
    axes.grid(axis="y", alpha=0.25)
    figure.legend(loc="outside right center", frameon=False)
    figure.suptitle(f"{name}: {found.count} of {found.channels} channels are outliers", fontweight="bold")
    return figure


def block_shares(spreads: Sequence[Spread]) -> Figure:
    """For each tensor and MXFP4 scale rule, the share of values that are cut and that are flushed to zero.

    Raises:
        BadInput: when no tensor was counted in blocks.
    """
    rows = [each for each in spreads if each.mxfp4]
    expect(rows, "tensors", "at least one that MXFP4 blocks were counted of", "none")
    rules = [blocks.rule for blocks in rows[0].mxfp4]
    figure = Figure(figsize=(WIDTH, 1.9 + 0.42 * len(rows)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    height = 0.8 / len(rules)
    for axes, (part, title) in zip(panels, (("cut", "cut to 6 scales"), ("flushed", "flushed to zero")), strict=True):
        axes.set_axisbelow(True)
        for number, (rule, colour) in enumerate(zip(rules, STAGES, strict=False)):
            shares = [100 * getattr(each.mxfp4[number], part) for each in rows]
            places = np.arange(len(rows)) + (number - (len(rules) - 1) / 2) * height
            axes.barh(places, shares, height, color=colour, label=rule)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("% of the values that are in blocks")
        axes.grid(axis="x", alpha=0.25)
    handles, names = panels[0].get_legend_handles_labels()
    labels = [f"scale rule {name}" for name in names]
    figure.legend(handles, labels, loc="outside lower center", ncols=len(rules), frameon=False)
    panels[0].set_yticks(range(len(rows)), [_blocked(each) for each in rows])
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    figure.suptitle("What MXFP4 would do to the values", fontweight="bold")
    return figure


def _blocked(each: Spread) -> str:
    """What a tensor's blocks are of."""
    return "W_UK (in w_kv_b)" if each.name == "w_kv_b" else each.name
