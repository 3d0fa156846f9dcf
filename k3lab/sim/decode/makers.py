"""Which function makes which memory operation: a registry by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from k3lab.lowering.ir import Op

Access = Callable[..., Any]
Maker = Callable[[Op], Access]

_MAKERS: dict[str, Maker] = {}


def access(*names: str) -> Callable[[Maker], Maker]:
    """Register a maker for the operations called `names`."""

    def register(maker: Maker) -> Maker:
        _MAKERS.update(dict.fromkeys(names, maker))
        return maker

    return register


def lookup(name: str) -> Maker | None:
    """The maker of the memory operation `name`."""
    return _MAKERS.get(name)


def memory_operations() -> list[str]:
    """The names of all memory operations, sorted."""
    return sorted(_MAKERS)
