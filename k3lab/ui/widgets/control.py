"""What the controls share: widgets in a box above one view, which is filled before anything is shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ipywidgets as w

from k3lab.errors import BadInput
from k3lab.ui.html import Html, problem

LAYOUT = {"width": "auto", "min_width": "12em"}
STYLE = {"description_width": "initial"}


class Control(ABC):
    """Widgets and the view they choose; a subclass says what that is in `view`.

    Its view is the value of one HTML widget, set whenever a trait of a widget changes. A page made from a notebook
    without widget state shows the view as it was when it was displayed.

    Attributes:
        shown: the HTML widget.
        box: the whole control.
    """

    _held = False

    def __init__(self, *rows: Sequence[w.Widget]) -> None:
        self.shown = w.HTML()
        lines = [w.HBox(list(row), layout=w.Layout(flex_flow="row wrap")) for row in rows]
        self.box = w.VBox([*lines, self.shown])
        for row in rows:
            for widget in row:
                if "value" in widget.traits():
                    widget.observe(self._changed, names="value")
        self.refresh()

    @abstractmethod
    def view(self) -> Html:
        """The view that the widgets choose now.

        Raises:
            BadInput: when what was typed in cannot be shown.
        """

    def refresh(self) -> None:
        """Fill the view; what cannot be shown says why."""
        try:
            self.shown.value = str(self.view())
        except BadInput as error:
            self.shown.value = str(problem(error))

    def _changed(self, change: Any) -> None:
        if not self._held:
            self.refresh()

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Several widgets are set as one: what they trigger meanwhile is left alone."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def _repr_mimebundle_(self, **how: Any) -> Any:
        """The widgets, and for pages that cannot run them the view."""
        bundle = self.box._repr_mimebundle_(**how)
        data, *more = bundle if isinstance(bundle, tuple) else (bundle,)
        data = {**data, "text/html": self.shown.value}
        return (data, *more) if more else data


def dropdown(options: Any, name: str, tip: str, **how: Any) -> w.Dropdown:
    """A choice of a few; arrow keys move through it."""
    return w.Dropdown(options=options, description=name, tooltip=tip, layout=LAYOUT, style=STYLE, **how)


def slider(top: int, name: str, tip: str) -> w.IntSlider:
    """A number from 0 to `top`; arrow keys move it, and it can be typed."""
    return w.IntSlider(
        min=0, max=top, description=name, tooltip=tip, layout={"width": "26em"}, style=STYLE, continuous_update=False
    )


def button(name: str, tip: str) -> w.Button:
    """A button; Enter or the space bar presses it."""
    return w.Button(description=name, tooltip=tip, layout={"width": "auto"})


def text(value: str, name: str, tip: str, width: str = "20em") -> w.Text:
    """A line of text that is taken on Enter or when it is left."""
    return w.Text(
        value=value, description=name, tooltip=tip, continuous_update=False, layout={"width": width}, style=STYLE
    )
