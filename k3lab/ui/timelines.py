"""The timeline browser's view: one picture of a timeline, and one CTA's intervals and waits in figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from k3lab.analysis.timeline import colours, views
from k3lab.analysis.timeline.handoffs import last_waits
from k3lab.errors import expect
from k3lab.ui.html import Html, heading, joined, note, picture, swatch, table

if TYPE_CHECKING:
    from k3lab.analysis.timeline import Timeline


@dataclass(frozen=True)
class Picture:
    """A picture of a timeline: how it is drawn, what it needs, and what to see in it."""

    draw: Callable[[Timeline, int], Figure]
    says: str
    waits: bool = False


PICTURES = {
    "CTAs": Picture(
        views.all_ctas,
        "Each line is a CTA, each colour a stage, left to right in time. Look for where many CTAs are pale at once: "
        "they wait for one that is late.",
    ),
    "stages": Picture(
        lambda timeline, rank: views.stage_durations(timeline),
        "How long a stage takes on a CTA. A long box means that CTAs differ: some wait, or have more work.",
    ),
    "waits": Picture(
        lambda timeline, rank: views.wait_map(timeline),
        "Which stage waited for which region. The darkest cell is the longest wait; its text names the late producer.",
        waits=True,
    ),
    "critical path": Picture(
        lambda timeline, rank: views.path_steps(timeline),
        "The chain of work and hand-offs that the launch's length follows from: only a shorter step here can help.",
        waits=True,
    ),
}


def pictures_of(timeline: Timeline) -> list[str]:
    """Names of the pictures that can be drawn of it."""
    return [name for name, one in PICTURES.items() if timeline.waits is not None or not one.waits]


def timeline_view(timeline: Timeline, picture_name: str = "CTAs", rank: int = 0, cta: int = 0) -> Html:
    """A picture of the timeline, then the intervals of one CTA.

    Raises:
        BadInput: for a picture, rank or CTA that the timeline does not have.
    """
    known = pictures_of(timeline)
    expect(picture_name in known, "picture", f"one of {known}", repr(picture_name))
    one = PICTURES[picture_name]
    intervals = cta_view(timeline, rank, cta)
    return joined(heading(timeline.title, timeline.clock.label), picture(one.draw(timeline, rank), one.says), intervals)


def cta_view(timeline: Timeline, rank: int, cta: int) -> Html:
    """One CTA's intervals in order, with how long it waited in each and for whom.

    Raises:
        BadInput: for a rank or CTA that the timeline does not have.
    """
    expect(0 <= rank < timeline.ranks, "rank", f"0 .. {timeline.ranks - 1}", rank)
    expect(0 <= cta < timeline.blocks, "CTA", f"0 .. {timeline.blocks - 1}", cta)
    bars = timeline.intervals
    mine = bars[(bars["rank"] == rank) & (bars["cta"] == cta)]
    who = f"CTA {cta} ({timeline.role(cta)})" + (f" of rank {rank}" if timeline.ranks > 1 else "")
    if not len(mine):
        return joined(heading(who), note("It passed no point."))
    says = f"Where its time went, in µs since the launch began ({timeline.clock.kind}); waits are part of the time."
    rows = [_row(timeline, bar) for bar in mine]
    return joined(
        heading(who), table(["stage", "up to point", "for whom", "from", "to", "took", "waited"], rows, says, left=3)
    )


def _row(timeline: Timeline, bar: np.void) -> tuple[object, ...]:
    point = timeline.points[bar["point"]]
    waits = last_waits(timeline)
    here = waits[(waits["rank"] == bar["rank"]) & (waits["cta"] == bar["cta"]) & (waits["point"] == bar["point"])]
    start, end = float(bar["start"]), float(bar["end"])
    waited, done = 0.0, start
    for wait in here:  # in order of time; overlapping ones count once
        begin, stop = max(float(wait["ready"]), done), min(float(wait["end"]), end)
        waited += max(stop - begin, 0.0)
        done = max(done, stop)
    whom = ", ".join(_whom(timeline, wait) for wait in here) or ("–" if timeline.waits is not None else "not known")
    colour = colours.by_stage(timeline.stages).get(point.stage, "")
    stage = swatch(colour, point.stage)
    us = timeline.clock.us
    times = (float(timeline.us(start)), float(timeline.us(end)), float(us(end - start)))
    late = f"{float(us(waited)):.2f}" if timeline.waits is not None else "not known"
    return stage, point.name, whom, *(f"{time:.2f}" for time in times), late


def _whom(timeline: Timeline, wait: np.void) -> str:
    who = f"CTA {int(wait['from_cta'])}"
    who = f"rank {int(wait['from_rank'])} {who}" if timeline.ranks > 1 else who
    return f"{timeline.regions[wait['region']]} of {who}"
