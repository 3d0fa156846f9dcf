"""Small pieces of HTML, every text in them escaped: tables, pictures, notes."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup
from matplotlib.figure import Figure

from k3lab.analysis.charts import png
from k3lab.analysis.palette import FAINT

LINES = "line-height:1.4"
"""Said everywhere: front ends have styles of their own for what stands in an output."""
TABLE = "table-layout:auto;margin:4px 0"
"""JupyterLab would make all columns of a table equally wide, and wrap what does not fit."""
CELL = f"{LINES};white-space:nowrap;padding:1px 8px"
RIGHT = f"{CELL};text-align:right;font-variant-numeric:tabular-nums;font-family:monospace"
LEFT = f"{CELL};text-align:left"
CAPTION = f"{LINES};text-align:left;caption-side:top;padding:4px 0;white-space:nowrap"


@dataclass(frozen=True)
class Html:
    """A view: `text` is HTML, which a notebook or a page shows as it is."""

    text: Markup = field(repr=False)

    def _repr_html_(self) -> str:
        return str(self.text)

    def __str__(self) -> str:
        return str(self.text)


def joined(*parts: Html | Markup | str) -> Html:
    """One view of several parts, one below the other; what is not HTML already is escaped."""
    return Html(Markup("\n").join(part.text if isinstance(part, Html) else part for part in parts))


def table(
    head: Sequence[object], rows: Iterable[Sequence[object]], caption: str = "", left: int = 1, notes: bool = False
) -> Markup:
    """A table whose first `left` columns are texts, the others figures; the caption says what to see.

    Args:
        notes: whether the last column holds texts, too.
    """
    texts = {*range(left), *([len(head) - 1] if notes else [])}
    titles = Markup("").join(_cell("th", text, place in texts) for place, text in enumerate(head))
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(
            Markup("").join(_cell("td", text, place in texts) for place, text in enumerate(row))
        )
        for row in rows
    )
    return Markup(
        '<table style="border-collapse:collapse;{}"><caption style="{}">{}</caption>'
        "<thead><tr>{}</tr></thead><tbody>{}</tbody></table>"
    ).format(TABLE, CAPTION, caption, titles, body)


def _cell(tag: str, text: object, left: bool) -> Markup:
    return Markup("<{0} style='{1}'>{2}</{0}>").format(Markup(tag), Markup(LEFT if left else RIGHT), text)


def picture(figure: Figure, says: str) -> Markup:
    """A figure as a PNG inside the page; `says` is its caption and its text for who cannot see it."""
    data = base64.b64encode(png(figure)).decode("ascii")
    return Markup(
        '<figure style="margin:6px 0"><img alt="{0}" style="max-width:100%" src="data:image/png;base64,{1}">'
        "<figcaption>{0}</figcaption></figure>"
    ).format(says, data)


def heading(text: str, more: object = "") -> Markup:
    """A line that names the view, and a fainter one."""
    return Markup("<div><b>{}</b> {}</div>").format(text, more)


def swatch(colour: str, text: object) -> Markup:
    """A text with its colour before it."""
    return Markup("<span style='color:{}'>■</span> {}").format(colour, text)


def note(text: object) -> Markup:
    """A sentence beside the figures."""
    return Markup('<div style="color:{}">{}</div>').format(FAINT, text)


def code(text: str, title: str) -> Markup:
    """Source text that opens on a click or the Enter key."""
    return Markup(
        "<details><summary>{}</summary><pre style='line-height:1.3;font-family:monospace'>{}</pre></details>"
    ).format(title, text)


def problem(text: object) -> Html:
    """What a user's input lacks, in place of the view."""
    return Html(Markup("<div role='alert'>⚠ {}</div>").format(text))
