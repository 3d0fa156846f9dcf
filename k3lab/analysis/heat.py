"""The heat map as one piece of HTML with canvases: each cell's value under the pointer or by arrow key.

Without a script, and on paper, the picture that `k3lab.analysis.charts.heat_maps` draws stands in its place.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import cache
from typing import Any
from uuid import uuid4

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex

from k3lab.analysis import charts
from k3lab.analysis.html import in_script, template
from k3lab.analysis.report import PointRow, Report
from k3lab.analysis.worst import block_edges

SHADES = 64
"""Steps of the colour scale: more than an eye tells apart."""


def fragment(report: Report, picture: str | None = None) -> str:
    """A `<div>` with its style, data and script; several may stand in one page. Empty without an oracle.

    Args:
        picture: the PNG to show where no script runs, in base64; drawn when not given.
    """
    rows = charts.heat_rows(report)
    if not rows:
        return ""
    if picture is None:
        picture = base64.b64encode(charts.png(charts.heat_maps(report))).decode("ascii")
    return template("heat.html.j2", id=f"k3hm{uuid4().hex[:8]}", picture=picture, data=in_script(data(report)))


def data(report: Report) -> dict[str, Any]:
    """What the script draws: a strip a point; `ulps` [tokens x blocks] float32, packed; `edges` where blocks begin."""
    rows = charts.heat_rows(report)
    low, high = charts.heat_limits(rows)
    return {
        "low": low,
        "high": high,
        "shades": list(_shades()),
        "none": charts.NOWHERE,
        "strips": list(_strips(rows)),
    }


def _strips(rows: list[PointRow]) -> Iterator[dict[str, Any]]:
    for row in rows:
        heat = np.array(row.heat, "<f4", ndmin=2)
        yield {
            "name": row.name,
            "about": row.about,
            "format": row.format,
            "tokens": heat.shape[0],
            "shape": row.shape[_lead(row, heat.shape[0]) :],
            "ranks": row.ranks,
            "edges": block_edges(row),
            "ulps": base64.b64encode(heat.tobytes()).decode("ascii"),
        }


def _lead(row: PointRow, tokens: int) -> int:
    """How many leading axes number the tokens: one, or request and token of it."""
    return 1 if row.shape and row.shape[0] == tokens else 2


@cache
def _shades() -> tuple[str, ...]:
    scale = colormaps["viridis"]
    return tuple(to_hex(scale(place / (SHADES - 1))) for place in range(SHADES))
