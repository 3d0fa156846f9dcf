"""Timeline browser: which picture, which rank, which CTA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from k3lab.ui.html import Html
from k3lab.ui.timelines import pictures_of, timeline_view
from k3lab.ui.widgets.control import Control, dropdown, slider

if TYPE_CHECKING:
    from k3lab.analysis.timeline import Timeline


class TimelineBrowser(Control):
    """A timeline's pictures, and one CTA's time in figures.

    Attributes:
        picture: a choice by name; `rank`, `cta` whose intervals are listed.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.picture = dropdown(pictures_of(timeline), "picture", "what to draw")
        self.rank = dropdown(list(range(timeline.ranks)), "rank", "whose CTAs")
        self.cta = slider(timeline.blocks - 1, "CTA", "whose intervals to list; arrow keys go one CTA")
        super().__init__([self.picture, self.rank, self.cta])

    def view(self) -> Html:
        return timeline_view(self.timeline, self.picture.value, self.rank.value, self.cta.value)
