"""What the controls share: widgets in a box above one view, which is filled before anything is shown."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import ipywidgets as w
from IPython.display import display, update_display
from markupsafe import Markup

from k3lab.errors import BadInput
from k3lab.ui.html import Html, note, problem

LAYOUT = {"width": "auto", "min_width": "12em"}
STYLE = {"description_width": "initial"}


STILL = note("The controls of this view need a running notebook; what follows is the view they began with.")


class Shown:
    """A view as an ordinary output of a cell: setting its value changes it wherever it has been displayed.

    An output, unlike a widget, stays in the notebook's file: pages made of it, with or without widgets, have the view.
    """

    def __init__(self) -> None:
        self._text, self._name, self._out = "", f"k3lab-{uuid4().hex}", False

    @property
    def value(self) -> str:
        """The HTML."""
        return self._text

    @value.setter
    def value(self, text: str) -> None:
        self._text = text
        if self._out:
            update_display(self._view(), display_id=self._name)

    def display(self) -> None:
        """Show it in the output of the cell that runs."""
        self._out = True
        display(self._view(), display_id=self._name)

    def _view(self) -> Html:
        return Html(Markup(self._text))


class Control(ABC):
    """Widgets and the view they choose; a subclass says what that is in `view`.

    The view is set whenever a trait of a widget changes. A page made from the notebook shows it as it was last.

    Attributes:
        shown: the view; `shown.value` is its HTML.
        box: the widgets.
    """

    _held = False

    def __init__(self, *rows: Sequence[w.Widget]) -> None:
        self.shown = Shown()
        self.box = w.VBox([w.HBox(list(row), layout=w.Layout(flex_flow="row wrap")) for row in rows])
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

    def _ipython_display_(self, **how: Any) -> None:
        """The widgets, then the view below them."""
        display(self._widgets(), raw=True)
        self.shown.display()

    def _widgets(self) -> dict[str, Any]:
        """The widgets by kind of content; a sentence for pages that cannot run them."""
        bundle = self.box._repr_mimebundle_()
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        return {**data, "text/plain": type(self).__name__, "text/html": str(STILL)}


def dropdown(options: Any, name: str, tip: str, **how: Any) -> w.Dropdown:
    """A choice of a few; by keyboard the space bar opens it, arrow keys move in it, Enter takes.

    JupyterLab keeps bare arrow keys on a closed choice for itself: they move between cells.
    """
    return w.Dropdown(options=options, description=name, tooltip=tip, layout=LAYOUT, style=STYLE, **how)


def slider(top: int, name: str, tip: str) -> w.IntSlider:
    """A number from 0 to `top`; the left and right arrow keys move it, and it can be typed."""
    return w.IntSlider(
        min=0, max=top, description=name, tooltip=tip, layout={"width": "26em"}, style=STYLE, continuous_update=False
    )


def button(name: str, tip: str) -> w.Button:
    """A button; the space bar presses it."""
    return w.Button(description=name, tooltip=tip, layout={"width": "auto"})


def text(value: str, name: str, tip: str, width: str = "20em") -> w.Text:
    """A line of text that is taken on Enter or when it is left."""
    return w.Text(
        value=value, description=name, tooltip=tip, continuous_update=False, layout={"width": width}, style=STYLE
    )
