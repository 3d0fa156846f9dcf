"""The charts of an error report: each a plain function from a `Report` to a matplotlib figure.

Figures are made with `matplotlib.figure.Figure`, so no chart touches pyplot's global state; `png` turns one into bytes.
Colours are those of `k3lab.analysis.palette`; own and built-up error differ in shape as well.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpecBase
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from k3lab import formats
from k3lab.analysis.palette import FAINT, FORMATS, INK, OWN, TOTAL
from k3lab.analysis.report import Budget, PointRow, Report
from k3lab.analysis.words import listed, plain, share_text
from k3lab.stats import ULP_EDGES, Figures

WIDTH = 10.0  # inches: 1000 px of page at 100 dpi
DPI = 150
NOWHERE = "#dddddd"  # behind cells that have nothing to show
BAR, LABELS = 0.14, 0.5  # inches of a colour bar below panels, and of its labels
NO_ORACLE = "no oracle run: nothing to hold the values against"


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
    return buffer.getvalue()


def error_by_stage(report: Report) -> Figure:
    """Own and built-up relative rms error of every rounding point, in the order values pass them."""
    rows = report.points
    figure = Figure(figsize=(WIDTH, 1.6 + 0.36 * max(len(rows), 5)), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(rows))
    own = [_relative(row.own) for row in rows]
    total = [_relative(row.total) for row in rows]
    low, high = _log_limits([*own, *total])
    for place, a, b in zip(places, own, total, strict=True):
        if b:
            axes.plot([a or low, b], [place, place], color=FAINT, linewidth=1.5, zorder=1)
    _dots(axes, own, "D", OWN, "own: this rounding alone", low)
    _dots(axes, total, "o", TOTAL, "built up: everything until here, against the oracle", low)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(LogLocator(subs=_ticks_in_a_decade(low, high)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axes.set_yticks(places, [row.name for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("relative rms error (rms error / rms value); further left is better")
    axes.set_ylabel("rounding point, first to last", labelpad=8)
    axes.grid(axis="x", which="both", alpha=0.25)
    top = axes.secondary_xaxis("top", functions=(_to_db, _from_db))
    top.set_xlabel("signal-to-noise ratio (dB)")
    top.xaxis.set_major_locator(FixedLocator(_db_ticks(low, high)))
    top.xaxis.set_minor_locator(NullLocator())
    top.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle("Error at each rounding point", fontweight="bold")
    return figure


def ulp_histograms(report: Report) -> Figure:
    """For each rounding point, how own and built-up errors spread, in ulps."""
    figure, panels = _grid(report.points, columns=4, height=1.75)
    top = _histogram_top(report.points)
    for axes, row in zip(panels, report.points, strict=True):
        bins = np.arange(len(row.own.ulp_histogram))
        axes.bar(bins, _percent(row.own), width=0.9, color=OWN, label="own")
        if row.total:
            axes.step(bins, _percent(row.total), where="mid", color=TOTAL, linewidth=1.6, label="built up")
        if (tallest := max(_percent(row.own))) > top:
            axes.annotate(f"{tallest:.0f} %", (len(bins) / 2, top), (6, -10), textcoords="offset points", fontsize=8)
        axes.set_title(row.name, fontsize=9)
        axes.set_ylim(0, top)
        places, texts = zip(*_ulp_ticks(), strict=True)
        axes.set_xticks(places, texts, fontsize=7)
        axes.tick_params(axis="y", labelsize=7)
        axes.grid(axis="y", alpha=0.25)
        axes.set_xlabel("error (ulp, doubling each bin)", fontsize=8)
        axes.set_ylabel("% of values", fontsize=8)
    if panels:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle("How far values are off, in ulps", fontweight="bold")
    return figure


def heat_rows(report: Report) -> list[PointRow]:
    """The points whose built-up error is known block by block."""
    return [row for row in report.points if row.heat]


def heat_maps(report: Report) -> Figure:
    """For each rounding point, where the built-up error sits: token by channel block, one colour scale."""
    rows = heat_rows(report)
    if not rows:
        return _note("Where the error sits", NO_ORACLE)
    tokens = max(len(row.heat or ()) for row in rows)
    figure, panels = _grid(rows, columns=2, height=min(2.6, 1.15 + 0.09 * tokens), foot=BAR)
    low, high = heat_limits(rows)
    norm = LogNorm(low, high)
    for axes, row in zip(panels, rows, strict=True):
        heat = np.ma.masked_less_equal(np.array(row.heat, ndmin=2), 0.0)
        axes.set_facecolor(NOWHERE)
        axes.grid(False)
        image = axes.imshow(heat, aspect="auto", cmap="viridis", norm=norm, interpolation="nearest")
        axes.set_title(row.name, fontsize=9)
        axes.set_xlabel(_block_label(_block_width(row, heat.shape)), fontsize=8)
        axes.set_ylabel("token", fontsize=8)
        axes.yaxis.set_major_locator(FixedLocator(_token_ticks(heat.shape[0])))
        axes.tick_params(labelsize=7)
    foot = figure.add_subplot(_spec(panels[0])[-1, :], label="<colorbar>")
    bar = figure.colorbar(image, cax=foot, orientation="horizontal", extend="both")
    ticks = [2.0**k for k in range(-8, 24) if low <= 2.0**k <= high] or [low, high]
    bar.set_ticks(ticks[:: math.ceil(len(ticks) / 10)])
    bar.ax.xaxis.set_minor_locator(NullLocator())
    bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    bar.set_label("built-up rms error of the block, in ulps (a single rounding: about 0.29; grey: none)")
    figure.suptitle("Where the built-up error sits", fontweight="bold")
    return figure


def code_occupancy(report: Report) -> Figure:
    """For each rounding point to a 4- or 8-bit format, how often each of its values was used."""
    rows = [row for row in report.points if row.codes]
    if not rows:
        return _note("How the codes are used", "no point of this launch narrows to a 4- or 8-bit format")
    figure, panels = _grid(rows, columns=2, height=2.0)
    for axes, row in zip(panels, rows, strict=True):
        values, counts = _by_value(row)
        colour = FORMATS[formats.parse(row.format).format_name]
        axes.bar(range(len(counts)), 100 * counts / max(counts.sum(), 1), width=1.0, color=colour)
        places = [place for place, value in enumerate(values) if _worth_a_tick(value, len(values))]
        axes.set_xticks(places, [plain(values[place]) for place in places], fontsize=7)
        axes.tick_params(axis="y", labelsize=7)
        axes.grid(axis="y", alpha=0.25)
        used = int((counts > 0).sum())
        axes.set_title(f"{row.name}: {used} of {len(counts)} values used", fontsize=9)
        axes.set_xlabel("times the block's scale" if len(values) < 16 else "value", fontsize=8)
        axes.set_ylabel("% of values", fontsize=8)
    figure.suptitle("How the codes of the narrow formats are used", fontweight="bold")
    return figure


def _by_value(row: PointRow) -> tuple[np.ndarray, np.ndarray]:
    """The format's finite values in ascending order (-0 and +0 as one), and how often each was used."""
    format_ = formats.parse(row.format).format
    element = formats.E2M1 if isinstance(format_, formats.MxFormat) else format_
    counts = np.array(row.codes)
    decoded = element.decode(np.arange(len(counts), dtype=np.uint8))
    values, places = np.unique(decoded[np.isfinite(decoded)], return_inverse=True)
    return values, np.bincount(places, weights=counts[np.isfinite(decoded)]).astype(np.int64)


def _worth_a_tick(value: float, values: int) -> bool:
    """All values of E2M1; of 8-bit formats 0 and every fourth power of two from 1/4 on."""
    if values < 16:
        return True
    exponent = math.log2(abs(value)) if value else 0.0
    return value == 0 or (abs(value) >= 2.0**-2 and exponent.is_integer() and exponent % 4 == 2)


def budget_map(report: Report) -> Figure:
    """Each rounding point's share of each end tensor's error energy, and what is left with no rounding at all."""
    if report.budget is None:
        return _note("Error budget", "no budget was computed")
    budget = report.budget
    tensors, names = list(budget.all_on), list(dict.fromkeys(row.point for row in budget.rows))
    shares = _shares(budget, names, tensors)
    labels = [f"{name}, 1 ulp off at random" if name.startswith("hw.") else name for name in names]
    labels.append("nothing rounded")
    figure = Figure(figsize=(WIDTH, 1.7 + 0.36 * len(labels)), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(False)  # whatever the caller's style says: lines would cross the figures
    axes.set_facecolor(NOWHERE)
    image = axes.imshow(np.ma.masked_invalid(shares), aspect="auto", cmap="cividis", norm=Normalize(0, 1))
    for (i, j), share in np.ndenumerate(shares):
        text = "–" if math.isnan(share) else share_text(share)
        axes.text(j, i, text, ha="center", va="center", fontsize=9, color="white" if share <= 0.5 else INK)
    axes.set_xticks(range(len(tensors)), tensors)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlabel("end tensor")
    axes.set_ylabel("the only rounding that is on")
    bar = figure.colorbar(image, ax=axes, location="right", aspect=30)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
    bar.set_label("share of the error energy")
    figure.suptitle("Error budget: where the error of each end tensor comes from", fontweight="bold")
    return figure


def _dots(axes: Axes, errors: list[float | None], marker: str, colour: str, label: str, low: float) -> None:
    """One marker a point; an error of exactly 0 sits at the left edge and says so."""
    known = [(place, error) for place, error in enumerate(errors) if error is not None]
    places, values = [place for place, _ in known], [error or low for _, error in known]
    axes.scatter(values, places, marker=marker, s=46, color=colour, label=label, zorder=3, clip_on=False)
    for place, error in known:
        if error == 0:
            axes.annotate("exact", (low, place), (8, 4), textcoords="offset points", fontsize=8, color=INK)


def _relative(figures: Figures | None) -> float | None:
    return figures.relative_rms if figures and figures.finite else None


def _log_limits(errors: list[float | None]) -> tuple[float, float]:
    """Limits of a log axis that holds every positive error, with room at both ends."""
    positive = [error for error in errors if error] or [1e-3]
    return min(positive) / 1.6, max(positive) * 1.25


def _ticks_in_a_decade(low: float, high: float) -> tuple[float, ...]:
    """Multiples of a power of ten that get a tick: the fewer the more decades there are."""
    decades = math.log10(high / low)
    if decades > 6:
        return (1,)
    if decades > 2:
        return (1, 3)
    return (1, 2, 3, 4, 6) if decades > 1 else (1, 1.5, 2, 2.5, 3, 4, 5, 7)


def _to_db(relative: npt.ArrayLike) -> npt.ArrayLike:
    return -20 * np.log10(np.maximum(np.asarray(relative), 1e-300))


def _from_db(decibel: npt.ArrayLike) -> npt.ArrayLike:
    return np.power(10.0, -np.asarray(decibel) / 20)


def _db_ticks(low: float, high: float) -> list[float]:
    """Round dB values inside the limits, at most about eight."""
    worst, best = -20 * math.log10(high), -20 * math.log10(low)
    step = next((s for s in (1, 2, 5, 10, 20) if (best - worst) / s <= 8), 50)
    return [float(v) for v in np.arange(math.ceil(worst / step) * step, best, step)]


def _grid(rows: list[PointRow], columns: int, height: float, foot: float = 0.0) -> tuple[Figure, list[Axes]]:
    """A figure with one panel a row of the report, `columns` side by side; a last line of `foot` inches stays free."""
    lines = max(1, math.ceil(len(rows) / columns))
    heights = [height] * lines + ([foot] if foot else [])
    figure = Figure(figsize=(WIDTH, 1.0 + sum(heights) + (LABELS if foot else 0.0)), layout="constrained")
    grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    return figure, [figure.add_subplot(grid[divmod(place, columns)]) for place in range(len(rows))]


def _spec(panel: Axes) -> GridSpecBase:
    """The grid that `panel` stands in."""
    spec = panel.get_gridspec()
    assert spec is not None
    return spec


def _percent(figures: Figures) -> list[float]:
    total = sum(figures.ulp_histogram) or 1
    return [100 * count / total for count in figures.ulp_histogram]


def _histogram_top(rows: list[PointRow]) -> float:
    """Top of every panel: the tallest bar but for those of exact copies, which would flatten the others."""
    bars = [max(_percent(figures)) for row in rows for figures in (row.own, row.total) if figures]
    return 1.1 * max((bar for bar in bars if bar < 80), default=100.0)


def _ulp_ticks() -> Iterator[tuple[float, str]]:
    """Places (between bins) and texts of a few edges of the histogram."""
    wanted = {-16: "−16", -1: "−1", 1: "1", 16: "16"}
    for place, edge in enumerate(ULP_EDGES):
        if edge in wanted:
            yield place - 0.5, wanted[int(edge)]
    yield (len(ULP_EDGES) - 2) / 2, "0"


def heat_limits(rows: list[PointRow]) -> tuple[float, float]:
    """Limits of one log scale for every panel, from the 1st to the 99.9th percentile of all cells."""
    cells = np.concatenate([np.ravel(row.heat or ()) for row in rows])
    cells = cells[cells > 0]
    if not cells.size:
        return 0.1, 1.0
    low, high = np.percentile(cells, [1, 99.9])
    return float(low), float(max(high, 2 * low))


def _block_width(row: PointRow, shape: tuple[int, ...]) -> float:
    """Channels a column of the heat map stands for."""
    return math.prod(row.shape) / (shape[0] * shape[1])


def _block_label(width: float) -> str:
    """`channel`, `channel block (4 channels each)`, `channel block (36 or 37 channels each)`."""
    sizes = dict.fromkeys((math.floor(width), math.ceil(width)))
    return "channel" if width == 1 else f"channel block ({listed(map(str, sizes), 'or')} channels each)"


def _token_ticks(tokens: int) -> list[int]:
    return list(range(0, tokens, max(1, math.ceil(tokens / 6))))


def _shares(budget: Budget, names: list[str], tensors: list[str]) -> np.ndarray:
    """Shares [point and 'nothing rounded', tensor]; NaN where a point does not reach the tensor."""
    by_place = {(row.point, row.tensor): row for row in budget.rows}
    shares = np.full((len(names) + 1, len(tensors)), np.nan)
    for j, tensor in enumerate(tensors):
        for i, name in enumerate(names):
            row = by_place.get((name, tensor))
            if row is not None and row.share is not None and budget.reaches(row):
                shares[i, j] = row.share
        rest = budget.rest(tensor)
        if rest is not None:
            shares[-1, j] = rest
    return shares


def _note(title: str, text: str) -> Figure:
    """A figure that says why there is nothing to draw."""
    figure = Figure(figsize=(WIDTH, 1.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", color=INK)
    figure.suptitle(title, fontweight="bold")
    return figure
