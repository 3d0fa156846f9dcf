"""A benchmark as one figure: the time of a launch over its tokens, each way of doing it a line, the floor below."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from k3lab.analysis.palette import FAINT, INK, STAGES
from k3lab.bench.result import Result, Table

PANEL, HEIGHT = 4.4, 4.6  # inches
DPI = 150
MARKERS = "osD^vPX"


def bench_figure(result: Result) -> Figure:
    """A panel for each launch; both axes logarithmic."""
    panels_of = list(dict.fromkeys((table.launch, table.gpus) for table in result.tables))
    names = list(dict.fromkeys(row.name for table in result.tables for row in table.rows if _shown(table, row.name)))
    figure = Figure(figsize=(max(PANEL * len(panels_of), 7.0), HEIGHT), layout="constrained")
    panels = figure.subplots(1, len(panels_of), squeeze=False)[0]
    for axes, shown in zip(panels, panels_of, strict=True):
        _panel(axes, [table for table in result.tables if (table.launch, table.gpus) == shown], names)
    panels[0].set_ylabel("time of a launch (us)")
    labelled = [axes.get_legend_handles_labels() for axes in panels]
    handles = {label: handle for some, labels in labelled for handle, label in zip(some, labels, strict=True)}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(caption(result), fontsize=9)
    return figure


def caption(result: Result) -> str:
    """What the figure shows, and on what it was measured."""
    device, copied = result.device, f"{result.copied} TB/s"
    return (
        f"Median time of one launch by tokens, bars from the 10th to the 90th percentile, on {device['name']} (driver "
        f"{device['driver']}),\n{result.created[:10]}; the floor is what a launch must move, at the {copied} of "
        f"a large copy in its run; timed by {device['clock']}"
    )


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
    return buffer.getvalue()


def _shown(table: Table, name: str) -> bool:
    row = table.row(name)
    return row is not None and row.samples is not None and not row.part


def _panel(axes: Axes, tables: Sequence[Table], names: Sequence[str]) -> None:
    for place, name in enumerate(names):
        some = [table for table in tables if _shown(table, name)]
        found = [(table.tokens, samples) for table in some if (row := table.row(name)) and (samples := row.samples)]
        if found:
            tokens = [each for each, _ in found]
            middle = [1e6 * samples.median for _, samples in found]
            spread = [
                [1e6 * (samples.median - samples.low) for _, samples in found],
                [1e6 * (samples.high - samples.median) for _, samples in found],
            ]
            mark, colour = MARKERS[place % len(MARKERS)], STAGES[place % len(STAGES)]
            axes.errorbar(tokens, middle, spread, label=name, color=colour, marker=mark, markersize=5, capsize=2)
    tokens, floors = [table.tokens for table in tables], [1e6 * table.floor for table in tables]
    axes.plot(tokens, floors, color=INK, linestyle="--", linewidth=1.2, label="floor")
    where = f", {tables[0].gpus} GPUs" if tables[0].gpus > 1 else ""
    axes.set_title(f"{tables[0].launch} ({tables[0].published}){where}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(tokens, [str(each) for each in tokens])
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("tokens S")
    axes.grid(color=FAINT, alpha=0.25)
