"""Finding where a bracket closes and where commas split, in text with strings, arrows and nested brackets."""

from __future__ import annotations

import re

from k3lab.errors import BadInput

STRING = r'"(?:[^"\\]|\\.)*"'
TOKEN = re.compile(rf"{STRING}|->|[()\[\]{{}}<>,]")
MOST_NESTED = 128
"""Brackets within brackets; FlyDSL's modules have a handful. Deeper text takes time that grows with its square."""
OPENS = {"(": ")", "[": "]", "{": "}", "<": ">"}


def closing(text: str, start: int) -> int:
    """Where the bracket that opens at `start` closes.

    Raises:
        BadInput: when it never does, or a bracket of another kind closes first.
    """
    expected: list[str] = []
    for token in TOKEN.finditer(text, start):
        mark = token[0]
        if mark in OPENS:
            expected.append(OPENS[mark])
            _check_depth(len(expected))
        elif mark in ")]}>":
            if mark != expected.pop():
                break
            if not expected:
                return token.start()
    raise BadInput(f"IR text: expected a closing {OPENS[text[start]]!r}, got none in {text[start : start + 80]!r}.")


def top_comma(text: str, start: int) -> int:
    """Where the comma or closing bracket stands that ends the item at `start`; the text's end where none does."""
    depth = 0
    for token in TOKEN.finditer(text, start):
        mark = token[0]
        if mark in OPENS:
            depth += 1
            _check_depth(depth)
        elif mark in ")]}>":
            if depth == 0:
                return token.start()
            depth -= 1
        elif mark == "," and depth == 0:
            return token.start()
    return len(text)


def _check_depth(depth: int) -> None:
    if depth > MOST_NESTED:
        raise BadInput(f"IR text: expected at most {MOST_NESTED} brackets within each other, got more.")


def split_top(text: str) -> list[str]:
    """The items that commas outside all brackets and strings separate; none in blank text."""
    items, start = [], 0
    while start < len(text):
        end = top_comma(text, start)
        items.append(text[start:end].strip())
        start = end + 1
    return [item for item in items if item]
