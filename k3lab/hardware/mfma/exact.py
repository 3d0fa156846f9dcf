"""Exact sums of float64 terms, rounded once: error-free additions, expansions and rounding to odd.

Rounding to odd (Boldo and Melquiond, 2008): an inexact value takes the neighbour whose last bit is 1. A 53-bit value
rounded so keeps on which side of every float32 midpoint the exact value lies, so rounding it again to float32 gives
what one rounding of the exact value gives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from k3lab.hardware.mfma.model import F64


def two_sum(x: F64, y: F64) -> tuple[F64, F64]:
    """Knuth's error-free addition: (s, e) with s = fl(x + y) and s + e = x + y exactly."""
    s = x + y
    of_y = s - x
    return s, (x - (s - of_y)) + (y - of_y)


def to_odd(value: F64, error: F64) -> F64:
    """Round value + error (0 <= |error| < ulp(value)) to odd; zeros, infinities and NaN pass."""
    bits = value.view(np.int64)
    inexact = (error != 0) & np.isfinite(error)
    outward = (error > 0) == (value > 0)
    move = np.where(outward, np.int64(1), np.int64(-1)) * (inexact & (bits & 1 == 0))
    return (bits + move).view(np.float64)


def round_to_odd(terms: Sequence[F64]) -> F64:
    """The exact sum of equally shaped finite float64 arrays, rounded to odd.

    Builds Shewchuk's expansion (1997): components that do not overlap, smallest first. From the top, components merge
    as long as that is exact; the first remainder tells on which side the exact sum lies, since all below is smaller.
    """
    components = _expansion(terms)
    value = components[-1]
    error = np.zeros_like(value)
    for component in reversed(components[:-1]):
        merged, remainder = two_sum(value, component)
        exact_so_far = error == 0
        value = np.where(exact_so_far, merged, value)
        error = np.where(exact_so_far, remainder, error)
    return to_odd(value, error)


def _expansion(terms: Sequence[F64]) -> list[F64]:
    """Grow an expansion term by term; component i holds the rounding errors left at that level."""
    components: list[F64] = []
    for term in terms:
        carried = term
        for i, component in enumerate(components):
            carried, components[i] = two_sum(carried, component)
        components.append(carried)
    return components
