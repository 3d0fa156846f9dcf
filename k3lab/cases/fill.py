"""What a launch adds to the generic making of a case: its defaults, free sizes, and tensors with rules of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from k3lab.cases.values import Normal, Wanted

Fill = Callable[[Normal, Wanted], NDArray[Any]]
"""Makes one tensor's array: float32 for float tensors, any integers for integer ones."""


@dataclass(frozen=True)
class LaunchFill:
    """Everything about cases that one launch alone knows.

    Attributes:
        defaults: key options of a report's case.
        least_slots: how many slots (of states, of a cache) a case with this key needs; one more is the default.
        fills: tensors not drawn by their declared fill alone, by name; an optional tensor is made only if it is here.
        free_sizes: sizes of the free dimensions (`*name`) for a number of slots.
    """

    defaults: Mapping[str, Any]
    least_slots: Callable[[Any], int]
    fills: Mapping[str, Fill]
    free_sizes: Callable[[int], Mapping[str, int]] = lambda slots: {"slots": slots}
