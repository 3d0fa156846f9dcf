"""Declared dimensions: how a `TensorDecl` writes a shape, read once for making and for checking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from k3lab.launches import TensorDecl
from k3lab.layout import shape_of

FREE, AT_LEAST = "*", ">="

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp8_e4m3": torch.uint8,
    "e2m1x2": torch.uint8,
    "e8m0": torch.uint8,
    "int32": torch.int32,
    "int64": torch.int64,
}
"""Storage dtype of a declared one."""


@dataclass(frozen=True)
class Dim:
    """One dimension of a declared shape: `HIDDEN` exactly, `>=L` at least, `*slots` free (1 or more)."""

    text: str

    @property
    def name(self) -> str:
        return self.text.removeprefix(FREE).removeprefix(AT_LEAST)

    @property
    def free(self) -> bool:
        return self.text.startswith(FREE)

    @property
    def at_least(self) -> bool:
        return self.text.startswith(AT_LEAST)

    def wanted(self, sizes: Mapping[str, int]) -> int:
        """Its size, or the least it may be."""
        size = 1 if self.free else shape_of(self.name, sizes)[0]
        return max(size, 1)

    def accepts(self, size: int, sizes: Mapping[str, int]) -> bool:
        """Whether a tensor may have `size` here."""
        wanted = self.wanted(sizes)
        return size >= wanted if self.free or self.at_least else size == wanted

    def describe(self, sizes: Mapping[str, int]) -> str:
        """As an error message writes it: `S=4`, `L>=4`, `slots>=1`, `128`."""
        wanted = self.wanted(sizes)
        if self.name.isdigit():
            return self.name
        return f"{self.name}{'>=' if self.free or self.at_least else '='}{wanted}"


def dims_of(decl: TensorDecl) -> tuple[Dim, ...]:
    """The declared dimensions, outermost first."""
    return tuple(Dim(text) for text in decl.dims.split())


def least_shape(decl: TensorDecl, sizes: Mapping[str, int], free: Mapping[str, int]) -> tuple[int, ...]:
    """The smallest shape `decl` allows, but for free dimensions, whose sizes are in `free`."""
    return tuple(free.get(dim.name, 1) if dim.free else dim.wanted(sizes) for dim in dims_of(decl))
