"""Attributes of the generic text as Python values: numbers, strings, truth values, lists; raw text for all else."""

from __future__ import annotations

import re
from typing import Any

from k3lab.errors import BadInput
from k3lab.lowering.floats import FORMATS, parse_float
from k3lab.lowering.ir import Type
from k3lab.lowering.scan import STRING, closing, split_top
from k3lab.lowering.types import parse_type

NAME = re.compile(rf"\s*([\w.$-]+|{STRING})\s*")
NUMBER = re.compile(r"-?(?:0x[0-9A-Fa-f]+|\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)$")
INTEGER = re.compile(r"-?(?:0x[0-9A-Fa-f]+|\d+)$")
ESCAPE = re.compile(r'\\([0-9A-Fa-f]{2}|["\\nt])')
NAMED_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
MOST_ELEMENTS = 1 << 20
"""Of a constant that one value fills; a wave's registers hold a sixteenth of that."""
TRUTH = {"true": True, "false": False}


def parse_attributes(text: str) -> dict[str, Any]:
    """The inside of `{a = 1 : i32, b}` as names and values; a name alone is True.

    Raises:
        BadInput: for text that is no list of attributes.
    """
    return dict(_named(item) for item in split_top(text))


def parse_attribute(text: str) -> Any:
    """One attribute's value.

    int, float, bool, str (strings without quotes, symbols without @), list (arrays; dense constants, flat and with
    splats spread), dict; a NaN is ("bits", pattern); anything else stays as its text.
    """
    text = text.strip()
    if text in TRUTH:
        return TRUTH[text]
    match text[:1]:
        case '"':
            return unquote(text)
        case "@":
            return text.replace("@", "")
        case "[":
            return [parse_attribute(item) for item in split_top(text[1:-1])]
        case "{":
            return parse_attributes(text[1:-1])
    if text.startswith("array<"):
        return _array(text)
    if text.startswith("dense<"):
        return _dense(text)
    return _number(text)


def unquote(text: str) -> str:
    """A quoted string's content."""
    return ESCAPE.sub(_unescaped, text[1:-1]) if "\\" in text else text[1:-1]


def _unescaped(found: re.Match[str]) -> str:
    return NAMED_ESCAPES.get(found[1]) or chr(int(found[1], 16))


def _named(item: str) -> tuple[str, Any]:
    found = NAME.match(item)
    if not found:
        raise BadInput(f"IR attribute: expected a name, got {item!r}.")
    name = unquote(found[1]) if found[1].startswith('"') else found[1]
    rest = item[found.end() :]
    if not rest:
        return name, True
    if not rest.startswith("="):
        raise BadInput(f"IR attribute: expected NAME = VALUE, got {item!r}.")
    return name, parse_attribute(rest[1:])


def _number(text: str) -> Any:
    digits, colon, spelled = text.partition(" : ")
    if not NUMBER.match(digits):
        return text
    return _element(digits, parse_type(spelled)) if colon else _untyped(digits)


def _untyped(digits: str) -> int | float:
    return int(digits, 0) if INTEGER.match(digits) else float(digits)


def _element(text: str, kind: Type) -> Any:
    if text in TRUTH:
        return TRUTH[text]
    if kind.kind == "float":
        return parse_float(text, kind.name)
    return int(text, 0)


def _array(text: str) -> list[Any]:
    """`array<i32: 1, -2>`; `array<i32>` is empty."""
    spelled, _, items = text[len("array<") : -1].partition(":")
    kind = parse_type(spelled)
    return [_element(item, kind) for item in split_top(items)]


def _dense(text: str) -> list[Any]:
    """`dense<...> : vector<...>`, flat: a splat, nested lists, or a string of hexadecimal bytes."""
    end = closing(text, len("dense"))
    inside, whole = text[len("dense<") : end].strip(), parse_type(text[end + 1 :].strip().removeprefix(":"))
    count, kind = 1, whole
    while kind.kind == "vector" and kind.element:
        count, kind = count * kind.count, kind.element
    if inside.startswith('"0x'):
        items = _raw_items(bytes.fromhex(inside[3:-1]), kind)
    else:
        items = [_element(item, kind) for item in split_top(inside.replace("[", "").replace("]", ""))]
    if len(items) == 1 and count > MOST_ELEMENTS:
        raise BadInput(f"IR attribute: expected a constant of at most {MOST_ELEMENTS} elements, got {count}.")
    return items * count if len(items) == 1 else items


def _raw_items(data: bytes, kind: Type) -> list[Any]:
    width = kind.nbytes
    words = (int.from_bytes(data[place : place + width], "little") for place in range(0, len(data), width))
    if kind.kind == "float" and kind.name in FORMATS:
        return [parse_float(hex(word), kind.name) for word in words]
    sign = 1 << (kind.bits - 1)
    return [word - 2 * sign if word & sign else word for word in words]
