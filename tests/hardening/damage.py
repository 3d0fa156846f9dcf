"""Ways to spoil a file: cut it, flip bits, put another JSON value into a place of its document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

NUMBERS = (0, -1, 1, 3, 4.0, 0.5, 1e308, -1e308, 10**30, 2**31, 2**63, -(2**63) - 1, 1e-320)
NAN, HUGE, ENDLESS = "@nan@", "@huge@", "@endless@"
"""Stand for JSON texts that `json.dumps` does not write: NaN, 1e999, and a whole number of 5000 digits."""
TEXTS = ("", "x", "\u2028", "a\nb", "\ud800", "<script>alert(1)</script>\"'&", NAN, HUGE, ENDLESS)
VALUES = st.one_of(
    st.sampled_from((None, True, False, [], {}, [[]], [[[]]], *NUMBERS, *TEXTS)),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.sampled_from((0, None, -5, "a", 2**70)), max_size=3),
)

Path = tuple[str | int, ...]


def places(document: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in a JSON document, of long lists the first few and the last."""
    yield path
    if isinstance(document, dict):
        for name, value in document.items():
            yield from places(value, (*path, name))
    elif isinstance(document, list):
        for number in sorted({*range(min(len(document), 3)), len(document) - 1} - {-1}):
            yield from places(document[number], (*path, number))


@st.composite
def spoilt(draw: st.DrawFn, document: Any) -> str:
    """The text of a document with one to three values replaced, dropped, or put in twice."""
    spoilt = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(spoilt))))
        if not path:
            spoilt = draw(VALUES) if draw(st.integers(0, 9)) == 0 else spoilt
            continue
        holder = spoilt
        for part in path[:-1]:
            holder = holder[part]
        match draw(st.sampled_from(("replace", "replace", "drop", "twice"))):
            case "replace":
                holder[path[-1]] = draw(VALUES)
            case "drop":
                del holder[path[-1]]
            case "twice" if isinstance(holder, list):
                holder.append(holder[path[-1]])
            case _:
                holder["more"] = holder[path[-1]]
    text = json.dumps(spoilt)
    for name, number in ((NAN, "NaN"), (HUGE, "1e999"), (ENDLESS, "9" * 5000)):
        text = text.replace(f'"{name}"', number)
    return text


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """A file cut short, with some bits flipped, with a piece repeated, or with a piece of something else in it."""
    made = bytearray(data)
    at = draw(st.integers(0, len(made) - 1))
    match draw(st.sampled_from(("cut", "flip", "flip", "repeat", "insert"))):
        case "cut":
            del made[at:]
        case "flip":
            for place in [at, *draw(st.lists(st.integers(0, len(made) - 1), max_size=3))]:
                made[place] ^= 1 << draw(st.integers(0, 7))
        case "repeat":
            made[at:at] = made[at : at + draw(st.integers(1, 200))]
        case "insert":
            made[at:at] = draw(st.binary(min_size=1, max_size=40))
    return bytes(made)
