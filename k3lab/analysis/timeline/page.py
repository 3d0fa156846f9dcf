"""The timeline as a page, as files, and as the section of an error report."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from k3lab.analysis.charts import png
from k3lab.analysis.html import template
from k3lab.analysis.timeline import canvas, exports, store, views
from k3lab.analysis.timeline.intervals import Timeline
from k3lab.analysis.timeline.path import critical_path
from k3lab.analysis.timeline.roofline import Ceilings, ceilings_of, stage_loads
from k3lab.analysis.timeline.sentences import path_sentences, summary
from k3lab.analysis.timeline.stages import durations
from k3lab.analysis.timeline.waits import wait_matrix
from k3lab.files import write_together


def pictures(timeline: Timeline, device: Ceilings) -> dict[str, Callable[[], Figure]]:
    """By file name, the figures that this timeline has data for, each made when called."""
    made: dict[str, Callable[[], Figure]] = {
        "timeline": lambda: views.all_ctas(timeline),
        "stages": lambda: views.stage_durations(timeline),
    }
    if timeline.waits is not None:
        made["path"] = lambda: views.path_steps(timeline)
        made["waits"] = lambda: views.wait_map(timeline)
    if timeline.traffic is not None:
        made["roofline"] = lambda: views.roofline(timeline, device)
    return made


def save(timeline: Timeline, folder: str | Path, against: Timeline | None = None, ceilings: str = "mi355x") -> Path:
    """Write the page, its pictures, and every export into `folder`; returns the page's path.

    timeline.html, *.png, timeline.json (for `--against`), trace.json (for Perfetto), intervals.csv, waits.csv,
    timeline.npz.

    Raises:
        BadInput: when the folder cannot be written, or the older timeline is of another launch.
    """
    return write_together(folder, contents(timeline, against, ceilings)) / "timeline.html"


def contents(timeline: Timeline, against: Timeline | None = None, ceilings: str = "mi355x") -> dict[str, str | bytes]:
    """By file name, everything that `save` writes.

    Raises:
        BadInput: when the older timeline is of another launch.
    """
    device = ceilings_of(ceilings)
    changes = None if against is None else store.changes(against, timeline)
    drawn = {name: png(draw()) for name, draw in pictures(timeline, device).items()}
    return {
        "timeline.json": store.to_json(timeline),
        "trace.json": exports.chrome_trace(timeline),
        "intervals.csv": exports.intervals_csv(timeline),
        "waits.csv": exports.waits_csv(timeline),
        "timeline.npz": exports.npz(timeline),
        **{f"{name}.png": data for name, data in drawn.items()},
        "timeline.html": _page(timeline, drawn, device, changes),
    }


def render(timeline: Timeline, against: Timeline | None = None, ceilings: str = "mi355x") -> str:
    """The page as text, as `save` writes it.

    Raises:
        BadInput: when the older timeline is of another launch.
    """
    device = ceilings_of(ceilings)
    changes = None if against is None else store.changes(against, timeline)
    drawn = {name: png(draw()) for name, draw in pictures(timeline, device).items()}
    return _page(timeline, drawn, device, changes)


def _page(
    timeline: Timeline, drawn: dict[str, bytes], device: Ceilings, changes: list[store.Change] | None = None
) -> str:
    view = _view(timeline, device)
    images = {name: base64.b64encode(data).decode("ascii") for name, data in drawn.items()}
    drawing = canvas.fragment(timeline, picture=images["timeline"])
    return template("timeline.html.j2", canvas=drawing, images=images, changes=changes, **view)


def section(timeline: Timeline) -> dict[str, Any]:
    """What the timeline section of an error report shows: every CTA, and the answer in words."""
    data = base64.b64encode(png(views.all_ctas(timeline))).decode("ascii")
    return {"canvas": canvas.fragment(timeline, picture=data), "summary": summary(timeline), "notes": timeline.notes}


def _view(timeline: Timeline, device: Ceilings) -> dict[str, Any]:
    waits = timeline.waits is not None
    return {
        "timeline": timeline,
        "summary": summary(timeline),
        "rows": durations(timeline),
        "path": path_sentences(timeline, critical_path(timeline)) if waits else [],
        "waits": wait_matrix(timeline) if waits else [],
        "loads": stage_loads(timeline, device) if timeline.traffic is not None else [],
        "moved": [row for row in timeline.traffic.moved if row.rank == 0] if timeline.traffic is not None else [],
        "misfits": timeline.traffic.misfits if timeline.traffic is not None else [],
        "device": device,
        "size": views.size_text,
    }
