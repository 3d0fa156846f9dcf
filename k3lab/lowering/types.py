"""Types as the generic text writes them: `i32`, `vector<8xbf16>`, `!llvm.ptr<3>`, `!llvm.struct<(i32, i32)>`."""

from __future__ import annotations

import re
from functools import lru_cache

from k3lab.errors import BadInput
from k3lab.lowering.ir import Type
from k3lab.lowering.scan import closing, split_top

INDEX_BITS = 64
POINTER = re.compile(r"ptr(?:<(\d+)>)?$")
INTEGER = re.compile(r"[su]?i(\d+)$")
FLOAT = re.compile(r"(?:bf|tf|f)(\d+)(?:E\d+M\d+\w*)?$")
VECTOR = re.compile(r"(?:vector<|vec<)((?:\d+ ?x ?)+)(.+)>$")
TENSOR = re.compile(r"tensor<((?:\d+x)+)(.+)>$")
ARRAY = re.compile(r"array<(\d+) x (.+)>$")
STRUCT = re.compile(r'struct<(?:"(?:[^"\\]|\\.)*", )?(?:packed )?\((.*)\)>$')


@lru_cache(maxsize=4096)
def parse_type(text: str) -> Type:
    """The type that `text` spells, with or without `!llvm.` in front.

    Raises:
        BadInput: for a type that no kernel value has here.
    """
    spelled = text.strip().removeprefix("!llvm.")
    made = _scalar(spelled) or _aggregate(spelled)
    if made is None:
        raise BadInput(f"IR type: expected an int, float, pointer, vector, array or struct, got {text.strip()!r}.")
    return made


@lru_cache(maxsize=4096)
def parse_signature(text: str) -> tuple[tuple[Type, ...], tuple[Type, ...]]:
    """Operand and result types of `(i32, f32) -> i1` or `(i32) -> (i1, i32)`.

    Raises:
        BadInput: for text that is no signature.
    """
    if not text.startswith("("):
        raise BadInput(f"IR signature: expected (types) -> types, got {text!r}.")
    end = closing(text, 0)
    arrow, results = text[end + 1 :].strip()[:2], text[end + 1 :].strip()[2:].strip()
    if arrow != "->":
        raise BadInput(f"IR signature: expected (types) -> types, got {text!r}.")
    if results.startswith("(") and closing(results, 0) == len(results) - 1:
        results = results[1:-1]
    return _types(text[1:end]), _types(results)


def _types(text: str) -> tuple[Type, ...]:
    return tuple(parse_type(part) for part in split_top(text))


def _scalar(spelled: str) -> Type | None:
    if spelled in ("void", "none"):
        return Type("void", name=spelled)
    if spelled == "index":
        return Type("int", INDEX_BITS, "index")
    if found := INTEGER.match(spelled):
        return Type("int", int(found[1]), spelled)
    if found := FLOAT.match(spelled):
        return Type("float", int(found[1]), spelled)
    if found := POINTER.match(spelled):
        return Type("ptr", name="ptr", space=int(found[1] or 0))
    return None


def _aggregate(spelled: str) -> Type | None:
    if found := VECTOR.match(spelled) or TENSOR.match(spelled):
        made = parse_type(found[2])
        for count in reversed(re.findall(r"\d+", found[1])):
            made = Type("vector", count=int(count), element=made)
        return made
    if found := ARRAY.match(spelled):
        return Type("array", count=int(found[1]), element=parse_type(found[2]))
    if found := STRUCT.match(spelled):
        return Type("struct", elements=_types(found[1]))
    return None
