"""A launch's arguments as the translated kernel takes them: a 64-bit word for each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from k3lab.errors import expect
from k3lab.lowering.ir import Module

WORD = (1 << 64) - 1


def packed(module: Module, args: Sequence[Any]) -> list[int]:
    """The words of the kernel's parameters, from the host function's arguments: numbers, and addresses as numbers.

    Raises:
        BadInput: for too few arguments.
    """
    launch = module.launches[0]
    return [int(_given(source, args)) & WORD for source in launch.args]


def blocks_of(module: Module, args: Sequence[Any]) -> int:
    """Workgroups of the launch that these arguments of the host function make."""
    size = module.launches[0].grid[0]
    return size if isinstance(size, int) else int(_given(size, args))


def _given(source: tuple[str, Any], args: Sequence[Any]) -> Any:
    how, value = source
    if how == "const":
        return value
    expect(value < len(args), "launch", f"at least {value + 1} arguments", len(args))
    return args[value]
