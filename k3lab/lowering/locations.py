"""Source locations of the generic text: aliases, call sites, fused and named ones, down to one place in the source."""

from __future__ import annotations

import re
from collections.abc import Iterator

from k3lab.errors import BadInput
from k3lab.lowering.attributes import unquote
from k3lab.lowering.ir import Loc
from k3lab.lowering.scan import STRING, closing, split_top

PLACE = re.compile(rf"({STRING}):(\d+):(\d+)(?: to .*)?$")
NAME = re.compile(rf"{STRING}")
AT = re.compile(rf"{STRING}|[(\[<]| at ")
OWN_TEXT = "-"
"""The file name of places in MLIR text itself, which are nobody's source."""
COMPILER = "/site-packages/flydsl/"
"""A part of the path of the compiler's own files."""


class Locations:
    """The aliases of one module, resolved on demand.

    A call site is where its innermost function stands: the helper's line, not the line that calls it. Places in MLIR
    text or in the compiler's own files are passed over while there is another.
    """

    def __init__(self) -> None:
        self._aliases: dict[str, str] = {}
        self._resolved: dict[str, Loc | None] = {}

    def define(self, line: str) -> None:
        """Take an alias line: `#loc3 = loc(...)`."""
        name, _, body = line.partition(" = ")
        self._aliases[name.strip()] = body.strip().removeprefix("loc(").removesuffix(")")

    def resolve(self, text: str) -> Loc | None:
        """The place that the inside of a `loc(...)` stands for; None for an unknown one."""
        if text not in self._resolved:
            places = list(self._places(text))
            self._resolved[text] = next((place for place in places if COMPILER not in place.file), None) or (
                places[0] if places else None
            )
        return self._resolved[text]

    def _places(self, text: str) -> Iterator[Loc]:
        """Every place in `text`, innermost first."""
        text = text.strip()
        if text.startswith("loc("):
            text = text[len("loc(") : closing(text, len("loc"))]
        if text.startswith("#"):
            if text in self._aliases:
                yield from self._places(self._aliases[text])
        elif text.startswith("callsite("):
            callee, caller = _call(text[len("callsite(") : closing(text, len("callsite"))])
            yield from self._places(callee)
            yield from self._places(caller)
        elif text.startswith("fused"):
            for part in split_top(text[text.index("[") + 1 : text.rindex("]")]):
                yield from self._places(part)
        elif found := PLACE.match(text):
            if (file := unquote(found[1])) != OWN_TEXT:
                yield Loc(file, int(found[2]), int(found[3]))
        elif (named := NAME.match(text)) and text[named.end() :].startswith("("):
            yield from self._places(text[named.end() + 1 : -1])


def _call(text: str) -> tuple[str, str]:
    """The two sides of `CALLEE at CALLER`.

    Raises:
        BadInput: for a call site without a caller.
    """
    start = 0
    while found := AT.search(text, start):
        if found[0] == " at ":
            return text[: found.start()], text[found.end() :]
        start = closing(text, found.start()) if found[0] in "([<" else found.end()
    raise BadInput(f"IR location: expected CALLEE at CALLER, got {text!r}.")
