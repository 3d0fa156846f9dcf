"""A cohort: waves that stand at the same block and run it together.

A wave whose lanes have gone different ways is in several cohorts at once, with masks that do not overlap. Values are
arrays [W, L] (vectors [W, L, k]) with W one or the number of waves, L one or 64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3lab.geometry import LANES

Values = dict[Any, Any]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass
class Cohort:
    """Waves at one block.

    Attributes:
        block: index of the block to run next.
        waves: [n] numbers of the waves, ascending.
        mask: [n, 64] which lanes are here; None when all are.
        values: live values by SSA number.
    """

    block: int
    waves: I64
    mask: Bools | None
    values: Values

    @property
    def n(self) -> int:
        return len(self.waves)

    def rows(self, chosen: NDArray[Any], mask: Bools | None = None) -> Cohort:
        """The waves at positions `chosen`, with `mask` (their own, if None)."""
        if mask is None and self.mask is not None:
            mask = self.mask[chosen]
        if mask is not None and mask.all():
            mask = None
        values = {name: on_rows(value, chosen) for name, value in self.values.items()}
        return Cohort(self.block, self.waves[chosen], mask, values)


def on_rows(value: Any, chosen: NDArray[Any]) -> Any:
    """`value` for the waves at positions `chosen`."""
    return each(lambda array: array if array.shape[0] == 1 else array[chosen], value)


def each(function: Callable[..., Any], *values: Any) -> Any:
    """`function` on arrays, or member by member on tuples of them (structs, buffer resources)."""
    if isinstance(values[0], tuple):
        return tuple(each(function, *members) for members in zip(*values, strict=True))
    return function(*values)


def split(cohort: Cohort, condition: Bools) -> tuple[Cohort | None, Cohort | None]:
    """The cohort's part where `condition: [W, L]` holds, and the other; waves that disagree are in both."""
    if condition.size == 1:
        return (cohort, None) if condition.flat[0] else (None, cohort)
    if condition.shape[1] == 1:
        holds = np.broadcast_to(condition[:, 0], (cohort.n,))
        return _part(cohort, holds, None), _part(cohort, ~holds, None)
    holds = np.broadcast_to(condition, (cohort.n, LANES))
    here = np.ones((cohort.n, LANES), bool) if cohort.mask is None else cohort.mask
    return _masked(cohort, holds & here), _masked(cohort, ~holds & here)


def _part(cohort: Cohort, chosen: Bools, mask: Bools | None) -> Cohort | None:
    if chosen.all():
        return cohort
    return cohort.rows(np.flatnonzero(chosen), mask) if chosen.any() else None


def _masked(cohort: Cohort, mask: Bools) -> Cohort | None:
    some = mask.any(1)
    if not some.any():
        return None
    chosen = np.flatnonzero(some)
    return cohort.rows(chosen, mask[chosen])


def merge(cohorts: list[Cohort]) -> Cohort:
    """Cohorts at the same block as one; parts of one wave are laid over each other by their masks."""
    if len(cohorts) == 1:
        return cohorts[0]
    waves = np.concatenate([cohort.waves for cohort in cohorts])
    order = np.argsort(waves, kind="stable")
    unique, first = np.unique(waves[order], return_index=True)
    masks = None
    if len(unique) < len(waves) or any(cohort.mask is not None for cohort in cohorts):
        masks = np.concatenate([_full(cohort.mask, cohort.n) for cohort in cohorts])[order]
    values = {
        name: _merged(
            [cohort.values[name] for cohort in cohorts], [cohort.n for cohort in cohorts], order, first, masks
        )
        for name in cohorts[0].values
    }
    mask = None if masks is None else np.logical_or.reduceat(masks, first, axis=0)
    return Cohort(cohorts[0].block, unique, None if mask is None or mask.all() else mask, values)


def _full(mask: Bools | None, n: int) -> Bools:
    return np.ones((n, LANES), bool) if mask is None else mask


def _merged(parts: list[Any], counts: Iterable[int], order: I64, first: I64, masks: Bools | None) -> Any:
    return each(lambda *arrays: _merged_arrays(arrays, counts, order, first, masks), *parts)


def _merged_arrays(
    arrays: tuple[NDArray[Any], ...], counts: Iterable[int], order: I64, first: I64, masks: Bools | None
) -> NDArray[Any]:
    if all(array is arrays[0] for array in arrays[1:]) and arrays[0].shape[0] == 1:
        return arrays[0]
    lanes = max(array.shape[1] for array in arrays)
    divided = len(first) < len(order)
    lanes = LANES if divided else lanes
    rows = np.concatenate([np.broadcast_to(a, (n, lanes, *a.shape[2:])) for a, n in zip(arrays, counts, strict=True)])[
        order
    ]
    if not divided:
        return rows
    assert masks is not None
    out = rows[first].copy()
    owner = np.repeat(np.arange(len(first)), np.diff(np.append(first, len(order))))
    for row in np.flatnonzero(~np.isin(np.arange(len(order)), first)):
        out[owner[row]][masks[row]] = rows[row][masks[row]]
    return out
