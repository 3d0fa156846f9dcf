"""What a twin is given beside its arithmetic: the tensors its stage reads, and the build key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

Key = Any
"""A launch's key (`k3lab.launches`); a twin reads sizes and options from it."""

Written = dict[str, torch.Tensor]
"""What a stage writes, by the declared name."""


class Tensors:
    """Read-only view of the tensors a stage declares: `t.prefix`; anything undeclared is an AttributeError."""

    def __init__(self, values: Mapping[str, torch.Tensor], reads: Iterable[str]) -> None:
        self._values = {name: values[name] for name in reads if name in values}

    def __getattr__(self, name: str) -> torch.Tensor:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"stage reads {sorted(self._values)}, not {name!r}") from None
