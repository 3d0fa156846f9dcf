"""How the values of a lowered kernel are held in CUDA C++: a type and the spelling of a constant for each."""

from __future__ import annotations

import struct
from typing import Any

from k3lab.errors import BackendUnavailable
from k3lab.formats import BF16
from k3lab.lowering.ir import Type
from k3lab.sim.semantics.values import BUFFER, spelled

INTEGERS = {1: "bool", 8: "signed char", 16: "short", 32: "int", 64: "i64"}
FLOATS = {"bf16": "u16", "f32": "float", "f64": "double"}
GLOBAL, LDS = 1, 3
POINTERS = {GLOBAL: "u64", LDS: "u32", BUFFER: "K3Buffer"}
SIZES = (1, 2, 4, 8, 16)
"""Bytes of the accesses that there are."""


class Untranslated(BackendUnavailable):
    """An operation, or a form of one, that this translation does not know."""


def ctype(kind: Type) -> str:
    """The C++ type of a value.

    Raises:
        Untranslated: for a type that there is none for.
    """
    found = None
    match kind.kind:
        case "int":
            found = INTEGERS.get(kind.bits)
        case "float":
            found = FLOATS.get(kind.name)
        case "ptr":
            found = POINTERS.get(kind.space)
        case "vector" if kind.element and kind.element.bits != 1:
            found = f"K3Vec<{ctype(kind.element)}, {kind.count}>"
        case "struct" if len(kind.elements) == 2:
            found = f"K3Two<{ctype(kind.elements[0])}, {ctype(kind.elements[1])}>"
    if found is None:
        raise Untranslated(f"values of type {spelled(kind)}")
    return found


def moved(kind: Type) -> str:
    """The C++ type of a value that memory holds.

    Raises:
        Untranslated: for one that no single access can move.
    """
    if kind.scalar.kind not in ("int", "float") or kind.scalar.bits == 1 or kind.nbytes not in SIZES:
        raise Untranslated(f"an access of type {spelled(kind)}")
    return ctype(kind)


def constant(kind: Type, value: Any) -> str:
    """A constant's spelling; floats are spelled by their bits."""
    if kind.kind == "vector":
        assert kind.element
        items = value if isinstance(value, list) else [value] * kind.count
        return f"{ctype(kind)}{{{{{', '.join(constant(kind.element, item) for item in items)}}}}}"
    if kind.kind == "float":
        return _float(kind, value)
    if kind.kind != "int" or not isinstance(value, int):
        raise Untranslated(f"a constant {value!r} of type {spelled(kind)}")
    name = ctype(kind)
    if name == "bool":
        return "true" if value & 1 else "false"
    word = value & ((1 << kind.bits) - 1)
    return f"({name}){word:#x}{'ull' if kind.bits == 64 else 'u'}"


def _float(kind: Type, value: Any) -> str:
    bits = value[1] if isinstance(value, tuple) else None
    match kind.name:
        case "f32":
            (word,) = struct.unpack("<I", struct.pack("<f", value)) if bits is None else (bits,)
            return f"k3_f32({word:#x}u)"
        case "f64":
            (word,) = struct.unpack("<Q", struct.pack("<d", value)) if bits is None else (bits,)
            return f"k3_f64({word:#x}ull)"
        case "bf16":
            return f"(u16){int(BF16.encode(value)) if bits is None else bits:#x}u"
    raise Untranslated(f"a constant of type {spelled(kind)}")
