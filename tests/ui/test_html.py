"""Whatever text stands in a view, it cannot become HTML."""

from __future__ import annotations

import base64

from matplotlib.figure import Figure

from k3lab.ui.html import Html, code, heading, joined, note, picture, problem, swatch, table

EVIL = "<script>alert('1')</script>"


def test_texts_are_escaped():
    views = (
        table([EVIL], [[EVIL]], EVIL),
        heading(EVIL, EVIL),
        note(EVIL),
        code(EVIL, EVIL),
        swatch("#000000", EVIL),
        problem(EVIL),
        picture(Figure(), EVIL),
        joined(EVIL, note(EVIL), problem(EVIL)),
    )
    for view in views:
        assert "<script" not in str(view) and "&lt;script&gt;" in str(view)


def test_parts_stay_html():
    whole = joined(heading("a"), Html(note("b")), table(["x", "y"], [["p", 1]]))
    assert whole._repr_html_() == str(whole) and "<b>a</b>" in str(whole)
    assert str(whole).count("text-align:right") == 2 and str(whole).count("<tr>") == 2


def test_notes_are_texts_in_the_last_column():
    for notes, figures in ((False, 2), (True, 1)):
        row = str(table(["x", "y", ""], [["p", 1, "the nearest"]], notes=notes)).partition("<tbody>")[2]
        assert row.count("text-align:right") == figures


def test_a_picture_is_inside_the_page():
    text = str(picture(Figure(), "what to see"))
    data = text.split("base64,")[1].split('"')[0]
    assert base64.b64decode(data)[1:4] == b"PNG" and text.count("what to see") == 2
