"""Probe panel: a checkbox a rounding point, and what is left of the error without those that are not ticked."""

from __future__ import annotations

import ipywidgets as w

from k3lab.cases import Case
from k3lab.ui.html import Html
from k3lab.ui.probes import Probed, probe_view
from k3lab.ui.widgets.control import STYLE, Control, button


class ProbePanel(Control):
    """Tick the roundings that are to be on.

    Attributes:
        probed: the case and every selection's errors so far.
        points: checkboxes by full name of the point.
        all, none: buttons that tick every point, or none.
    """

    def __init__(self, case: Case) -> None:
        """Begin with every rounding on.

        Raises:
            BadInput: as `k3lab.run` does.
        """
        self.probed = Probed(case)
        declared = case.declaration.points
        self.points = {
            name: w.Checkbox(
                value=True,
                description=f"{name} ({declared[name].fmt})",
                tooltip=declared[name].about,
                indent=False,
                layout={"width": "auto", "min_width": "18em"},
                style=STYLE,
            )
            for name in self.probed.points
        }
        self.all, self.none = button("all on", "every rounding on"), button("all off", "no rounding at all")
        self.all.on_click(lambda _: self.tick(True))
        self.none.on_click(lambda _: self.tick(False))
        super().__init__([self.all, self.none], list(self.points.values()))

    @property
    def on(self) -> list[str]:
        """Full names of the ticked points."""
        return [name for name, box in self.points.items() if box.value]

    def tick(self, on: bool) -> None:
        """Every point on, or off; the error is computed once."""
        with self._holding():
            for box in self.points.values():
                box.value = on
        self.refresh()

    def view(self) -> Html:
        return probe_view(self.probed, self.on)
