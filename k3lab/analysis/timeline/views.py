"""The timeline's pictures: plain functions from a `Timeline` to a matplotlib figure; each says whose clock it is."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from k3lab.analysis.charts import WIDTH
from k3lab.analysis.palette import FAINT, INK, SOFT
from k3lab.analysis.timeline import colours
from k3lab.analysis.timeline.handoffs import last_waits
from k3lab.analysis.timeline.intervals import Timeline
from k3lab.analysis.timeline.path import Segment, critical_path
from k3lab.analysis.timeline.roofline import Ceilings, StageLoad, stage_loads
from k3lab.analysis.timeline.stages import lengths
from k3lab.analysis.timeline.waits import SPREAD, WaitRow, wait_matrix
from k3lab.analysis.words import plain

DARK = 0.62  # of a colour scale: beyond, text on it is white
NOTHING = "#E9ECEF"  # behind the bars: the CTA has not begun or has ended
LEAST = 1e-3  # microseconds: the shortest the logarithmic axes show


def all_ctas(timeline: Timeline, rank: int | None = None) -> Figure:
    """Every CTA's intervals over time, waits shaded, the critical path in red; of all ranks, or of one."""
    ranks = range(timeline.ranks) if rank is None else (rank,)
    height = 5.2 if len(ranks) == 1 else 1.2 + 1.0 * len(ranks)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(len(ranks), 1, sharex=True, squeeze=False)[:, 0]
    for axes, number in zip(panels, ranks, strict=True):
        _bars(axes, timeline, number)
        _shade_waits(axes, timeline, number)
        axes.set_ylim(timeline.blocks, 0)
        axes.set_facecolor(NOTHING)
        axes.set_ylabel("CTA" if len(ranks) == 1 else f"rank {number}\nCTA")
        axes.axhline(timeline.na, color=INK, linewidth=0.6, linestyle=":")
    panels[-1].set_xlim(0, float(timeline.us(timeline.end)) * 1.01)
    panels[-1].set_xlabel(f"µs since the launch began ({timeline.clock.kind})")
    if timeline.waits is not None:
        _draw_path(figure, list(panels), timeline, list(ranks))
    figure.legend(handles=_legend(timeline), loc="outside lower center", ncols=6, frameon=False)
    _title(figure, timeline, "where each CTA's time goes")
    return figure


def stage_durations(timeline: Timeline) -> Figure:
    """How long the time up to each point is on a CTA: box from quartile to quartile, whiskers to the extremes."""
    found = lengths(timeline)
    colour = colours.by_stage(timeline.stages)
    figure = Figure(figsize=(WIDTH, 1.5 + 0.34 * len(found)), layout="constrained")
    axes = figure.add_subplot()
    points = [timeline.points[number] for number in found]
    data = [np.maximum(values, LEAST) for values in found.values()]
    boxes = axes.boxplot(data, orientation="horizontal", whis=(0, 100), widths=0.62, patch_artist=True)
    for box, point in zip(boxes["boxes"], points, strict=True):
        box.set(facecolor=colour[point.stage], edgecolor=INK)
    for line in boxes["medians"]:
        line.set(color=INK, linewidth=1.8)
    for place, (values, point) in enumerate(zip(data, points, strict=True), 1):  # a box may be as thin as its line
        middle = float(np.median(values))
        axes.plot([middle], [place], "o", color=colour[point.stage], markeredgecolor=INK, zorder=3)
        axes.annotate(
            f"{_short(middle)}, {len(values)} CTA{'' if len(values) == 1 else 's'}",
            (max(values), place),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(range(1, len(points) + 1), [_point_label(point.stage, point.name) for point in points])
    axes.invert_yaxis()
    axes.set_xscale("log")
    low, high = (pick(float(pick(values)) for values in data) for pick in (min, max))
    axes.set_xlim(right=high * max(4.0, (high / low) ** 0.3))  # room for the longest bar's text, a quarter of the axis
    axes.xaxis.set_major_formatter(lambda value, _: plain(value))
    axes.set_xlabel(f"µs from the CTA's point before ({timeline.clock.kind}, log axis); waits included; text: median")
    axes.grid(axis="x", alpha=0.25)
    _title(figure, timeline, "how long each stage takes on a CTA")
    return figure


def wait_map(timeline: Timeline) -> Figure:
    """Which stage waited for which region: the longest wait, by colour and in figures, and whom most of it was for."""
    rows = wait_matrix(timeline)
    stages, regions = list(dict.fromkeys(r.stage for r in rows)), list(dict.fromkeys(r.region for r in rows))
    figure = Figure(figsize=(WIDTH, 1.6 + 0.8 * max(len(stages), 2)), layout="constrained")
    axes = figure.add_subplot()
    grid = np.full((len(stages), len(regions)), np.nan)
    for row in rows:
        if row.longest > 0:
            grid[stages.index(row.stage), regions.index(row.region)] = max(row.longest, LEAST)
    high = float(np.nanmax(grid)) if np.isfinite(grid).any() else 1.0
    norm = LogNorm(high / 100, high)
    axes.grid(False)
    image = axes.imshow(np.ma.masked_invalid(grid), aspect="auto", cmap="YlOrRd", norm=norm)
    size = 8 if len(regions) <= 6 else 6.8
    for row in rows:
        place = (regions.index(row.region), stages.index(row.stage))
        ink = SOFT if not row.longest else "white" if norm(row.longest) > DARK else INK
        axes.text(*place, _cell(timeline, row), ha="center", va="center", fontsize=size, color=ink)
    axes.grid(False)
    axes.set_xticks(range(len(regions)), regions)
    axes.set_yticks(range(len(stages)), stages)
    axes.set_xlabel("region waited for")
    axes.set_ylabel("stage that waited")
    figure.colorbar(image, ax=axes, label="longest wait (µs)", format=lambda value, _: plain(value))
    _title(figure, timeline, "who waits for what")
    return figure


def path_steps(timeline: Timeline) -> Figure:
    """The critical path from start to end, a line a step."""
    path = critical_path(timeline)
    colour = colours.by_stage(timeline.stages)
    figure = Figure(figsize=(WIDTH, 1.5 + 0.26 * len(path)), layout="constrained")
    axes = figure.add_subplot()
    end = float(timeline.us(timeline.end))
    for place, part in enumerate(path):
        start, length = float(timeline.us(part.start)), float(timeline.clock.us(part.length))
        face = colour.get(part.stage, FAINT) if part.kind == "work" else "white"
        hatch = "////" if part.kind == "hand-off" else None
        axes.barh(
            place, length, left=start, height=0.72, color=face, edgecolor=colours.PATH, linewidth=0.9, hatch=hatch
        )
        axes.text(start + length + end * 0.008, place, f"{length:.2f} µs", va="center", fontsize=8)
    axes.set_yticks(range(len(path)), [step_text(timeline, part) for part in path], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, end * 1.08)
    axes.set_xlabel(f"µs since the launch began ({timeline.clock.kind})")
    axes.grid(axis="x", alpha=0.25)
    _title(figure, timeline, f"critical path, {end:.2f} µs")
    return figure


def step_text(timeline: Timeline, part: Segment) -> str:
    """`mix (CTA 3)`, or `PROJ: CTA 60 to CTA 200`."""
    several = timeline.ranks > 1
    if part.kind == "hand-off":
        return f"{part.region}: {_who(part.from_rank, part.from_cta, several)} to {_who(part.rank, part.cta, several)}"
    name = _point_label(part.stage, part.point) if part.kind == "work" else "not started"
    name = name if part.point else part.stage
    return f"{name} ({_who(part.rank, part.cta, several)})"


def _short(us: float) -> str:
    return f"{us:.2f} µs" if us >= 0.005 else "< 0.01 µs"


def _who(rank: int, cta: int, several: bool) -> str:
    return f"rank {rank} CTA {cta}" if several else f"CTA {cta}"


def _point_label(stage: str, point: str) -> str:
    return stage if stage == point else f"{stage}: {point}"


def _bars(axes: Axes, timeline: Timeline, rank: int) -> None:
    colour = np.array(colours.by_point(timeline.points, timeline.order))
    rows = timeline.intervals[timeline.intervals["rank"] == rank]
    starts, ends = timeline.us(rows["start"]), timeline.us(rows["end"])
    boxes = _boxes(starts, ends, rows["cta"])
    axes.add_collection(PolyCollection(boxes, facecolors=colour[rows["point"]], edgecolors="none", linewidths=0))


def _shade_waits(axes: Axes, timeline: Timeline, rank: int) -> None:
    waits = last_waits(timeline)
    waits = waits[(waits["rank"] == rank) & (waits["point"] >= 0)]
    if len(waits):
        boxes = _boxes(timeline.us(waits["ready"]), timeline.us(waits["end"]), waits["cta"])
        axes.add_collection(PolyCollection(boxes, facecolors=(1, 1, 1, 0.68), edgecolors="none", linewidths=0))


def _boxes(starts: np.ndarray, ends: np.ndarray, ctas: np.ndarray) -> list[np.ndarray]:
    """By bar [4, 2] corners, one CTA high."""
    xs = np.stack([starts, ends, ends, starts], axis=1)
    ys = np.stack([ctas, ctas, ctas + 1, ctas + 1], axis=1)
    return list(np.stack([xs, ys], axis=2))


def _draw_path(figure: Figure, panels: list[Axes], timeline: Timeline, ranks: list[int]) -> None:
    """Lines within a rank's panel; a hand-off from another rank's is drawn as its last moment only."""
    lines: dict[int, list[list[tuple[float, float]]]] = {rank: [] for rank in ranks}
    for part in critical_path(timeline):
        if part.rank in lines:
            start, end = float(timeline.us(part.start)), float(timeline.us(part.end))
            near = part.kind == "hand-off" and part.from_rank == part.rank
            lines[part.rank].append([(start, (part.from_cta if near else part.cta) + 0.5), (end, part.cta + 0.5)])
    for axes, rank in zip(panels, ranks, strict=True):
        axes.add_collection(LineCollection(lines[rank], colors=colours.PATH, linewidths=1.8, zorder=5))


def _legend(timeline: Timeline) -> list[Patch | Line2D]:
    colour = colours.by_stage(timeline.stages)
    handles: list[Patch | Line2D] = [Patch(facecolor=colour[stage], label=stage) for stage in timeline.stages]
    handles.append(Patch(facecolor=NOTHING, edgecolor=FAINT, label="grey: nothing to do"))
    if timeline.waits is not None:
        handles.append(Patch(facecolor="white", edgecolor=FAINT, label="pale: waiting for another CTA"))
        handles.append(Line2D([], [], color=colours.PATH, linewidth=1.8, label="critical path"))
    return handles


def _cell(timeline: Timeline, row: WaitRow) -> str:
    if not row.producer:
        return f"{row.ctas} CTAs,\nno wait"
    whom = (
        f"{100 * row.share:.0f} % for\n{row.producer.text(timeline.ranks)}" if row.share >= SPREAD else "many producers"
    )
    return (
        f"longest {row.longest:.2f} µs\n{row.waiting} of {row.ctas} CTAs,\nmean {row.total / row.ctas:.2f} µs\n{whom}"
    )


def _title(figure: Figure, timeline: Timeline, what: str) -> None:
    figure.suptitle(f"{timeline.title}: {what}\n{timeline.clock.label}", fontweight="bold", fontsize=11)


def roofline(timeline: Timeline, device: Ceilings) -> Figure:
    """Left, each product against the device's ceilings; right, the least time of every stage beside its span."""
    rows = [row for row in stage_loads(timeline, device) if row.formula or row.operations]
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    _roof(left, timeline, device, rows)
    _least_times(right, timeline, device, rows)
    _title(figure, timeline, f"bytes and operations against {device.name}'s data sheet")
    return figure


def _roof(axes: Axes, timeline: Timeline, device: Ceilings, rows: list[StageLoad]) -> None:
    products = [row for row in rows if row.intensity and row.span]
    ridge = device.bf16 / device.memory
    xs = np.geomspace(min([0.3, *(row.intensity / 2 for row in products if row.intensity)]), ridge * 8, 200)
    axes.plot(xs, np.minimum(xs * device.memory, device.bf16) / 1e12, color=INK)
    top = f"{device.bf16 / 1e15:.2f} PFLOP/s bf16, {device.memory / 1e12:.1f} TB/s"
    axes.annotate(top, (ridge, device.bf16 / 1e12), (20, 6), textcoords="offset points", ha="right", fontsize=8)
    axes.margins(y=0.12)
    for row in products:
        assert row.intensity is not None and row.span is not None
        rate = row.operations / row.span / 1e6
        axes.scatter(
            [row.intensity], [rate], color=colours.of_stage(row.stage, timeline.stages), edgecolor=INK, zorder=3, s=50
        )
        axes.annotate(row.stage, (row.intensity, rate), (7, -3), textcoords="offset points", fontsize=9)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("operations a byte (useful ones, unique bytes)")
    axes.set_ylabel("TFLOP/s over the stage's span, waits included")
    axes.grid(alpha=0.25)
    axes.set_title("matrix products", fontsize=10)


def _least_times(axes: Axes, timeline: Timeline, device: Ceilings, rows: list[StageLoad]) -> None:
    for place, row in enumerate(rows):
        least = max(row.memory_time, row.matrix_time)
        if row.span:
            axes.barh(place, row.span, height=0.62, color="none", edgecolor=FAINT)
        axes.barh(place, least, height=0.62, color=colours.of_stage(row.stage, timeline.stages))
        spent = f" of {row.span:.1f} µs" if row.span else ""
        text = f"{size_text(row.weights)}: at least {least:.2f}{spent}"
        where = (max(least, row.span or 0), place)
        axes.annotate(text, where, (5, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [row.stage for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(right=2.0 * max(max(row.span or 0, row.memory_time) for row in rows))
    axes.set_xlabel(f"µs: at {device.memory / 1e12:.1f} TB/s (filled), span ({timeline.clock.kind}, outlined)")
    axes.set_title("every stage's bytes", fontsize=10)


def size_text(count: int) -> str:
    """`90.2 MB`: powers of ten."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
