"""The names kernels are written with, and what makes a helper traceable."""

from collections.abc import Callable
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr.meta import dsl_loc_tracing
from flydsl.expr.typing import Int32, Int64, T, Vector

F32, BF16, I8, I16 = fx.Float32, fx.BFloat16, fx.Int8, fx.Int16

__all__ = [
    "BF16",
    "F32",
    "I8",
    "I16",
    "Int32",
    "Int64",
    "Opaque",
    "T",
    "Vector",
    "fx",
    "located",
    "raw_value",
    "traced",
]


class Opaque:
    """A compile-time object that traced control flow may read: it carries no values of the kernel itself."""

    def __extract_to_ir_values__(self) -> list[Any]:
        return []

    def __get_ir_types__(self) -> list[Any]:
        return []

    @classmethod
    def __construct_from_ir_values__(cls, values: Any, exemplar: Any = None) -> Any:
        return exemplar


def traced(function: Callable[..., Any]) -> Any:
    """Let `function` hold traced `if`, `for` and `while`; what it calls is traced in place."""
    return flyc.jit(function)


def located(function: Callable[..., Any]) -> Any:
    """Let the operations of a primitive carry the line of the stage that calls it, not the primitive's own."""
    return dsl_loc_tracing(function)


def raw_value(value: Any) -> Any:
    """The IR value that FlyDSL's unwrapped builders take."""
    return value.ir_value() if hasattr(value, "ir_value") else value
