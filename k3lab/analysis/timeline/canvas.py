"""The timeline as one piece of HTML with a canvas: hover, zoom, pan, stage filter, critical path; the same in notebooks
and pages, without anything from outside."""

from __future__ import annotations

import base64
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from k3lab.analysis.html import in_script, template
from k3lab.analysis.timeline import colours
from k3lab.analysis.timeline.handoffs import last_waits
from k3lab.analysis.timeline.intervals import Timeline
from k3lab.analysis.timeline.path import critical_path

HEIGHT = 560


def fragment(timeline: Timeline, height: int = HEIGHT, picture: str = "") -> str:
    """A `<div>` with its style, data and script; several may stand in one page.

    Args:
        picture: a PNG in base64, shown where no script runs and on paper.
    """
    first, rest = _groups(timeline)
    return template(
        "timeline_canvas.html.j2",
        id=f"k3tl{uuid4().hex[:8]}",
        title=timeline.title,
        label=timeline.clock.label,
        ranks=timeline.ranks,
        waits=timeline.waits is not None,
        path=timeline.waits is not None,
        path_colour=colours.PATH,
        height=height,
        picture=picture,
        na_text=first,
        rest_text=rest,
        data=in_script(data(timeline)),
    )


def data(timeline: Timeline) -> dict[str, Any]:
    """What the script draws: rows are numbered rank by rank, times in microseconds since the launch began."""
    colour = colours.by_stage(timeline.stages)
    abouts = {p.stage: [q.about for q in timeline.points if q.stage == p.stage] for p in timeline.points}
    shades = colours.by_point(timeline.points, timeline.order)
    bars, waits = timeline.intervals, last_waits(timeline)
    return {
        "kind": timeline.clock.kind,
        "length": float(timeline.us(timeline.end)),
        "ranks": timeline.ranks,
        "blocks": timeline.blocks,
        "na": timeline.na,
        "stages": [{"name": s, "colour": colour[s], "about": "; ".join(abouts[s])} for s in timeline.stages],
        "points": [
            {"name": p.name, "stage": p.stage, "role": p.role, "about": p.about, "last": p.last, "colour": c}
            for p, c in zip(timeline.points, shades, strict=True)
        ],
        "regions": list(timeline.regions),
        "bars": {
            "row": _packed(_row(timeline, bars), "<i4"),
            "point": _packed(bars["point"], "<i4"),
            "start": _packed(timeline.us(bars["start"]), "<f4"),
            "end": _packed(timeline.us(bars["end"]), "<f4"),
        },
        "waits": {
            "row": _packed(_row(timeline, waits), "<i4"),
            "from": _packed(_row(timeline, waits, "from_"), "<i4"),
            "region": _packed(waits["region"], "<i4"),
            "point": _packed(waits["point"], "<i4"),
            **{name: _packed(timeline.us(waits[name]), "<f4") for name in ("ready", "end", "put")},
        },
        "path": _path(timeline),
    }


def _groups(timeline: Timeline) -> tuple[str, str]:
    """What the two parts of a rank's CTAs are called."""
    last, end = timeline.na - 1, timeline.blocks - 1
    return f"0 to {last}: one a slice of the hidden row", f"{timeline.na} to {end}: the others"


def _path(timeline: Timeline) -> list[dict[str, Any]]:
    if timeline.waits is None:
        return []
    return [
        {
            "row": part.rank * timeline.blocks + part.cta,
            "from": part.from_rank * timeline.blocks + part.from_cta if part.kind == "hand-off" else -1,
            "start": float(timeline.us(part.start)),
            "end": float(timeline.us(part.end)),
        }
        for part in critical_path(timeline)
    ]


def _row(timeline: Timeline, table: npt.NDArray[Any], prefix: str = "") -> npt.NDArray[Any]:
    rows = table[f"{prefix}rank"].astype(np.int64) * timeline.blocks + table[f"{prefix}cta"]
    return np.where(table[f"{prefix}cta"] < 0, -1, rows)


def _packed(values: npt.NDArray[Any], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, kind).tobytes()).decode("ascii")
