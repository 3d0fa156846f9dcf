"""Models that round after every addition: `sequential` and `pairwise`, in float32 throughout."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from k3lab.hardware.mfma.model import F32, Steps, slot_major

Product = Callable[[int], F32]


def sequential(a: Steps, b: Steps, c: F32) -> F32:
    """acc = fl(acc + fl(a_k b_k)) for the slots k in order; see `MfmaModel.chain` for the shapes."""
    acc = c.copy()
    product_of_slot = np.empty_like(acc)
    for a_step, b_step in zip(a, b, strict=True):
        slots = slot_major(b_step)
        for k in range(a_step.shape[-1]):
            np.multiply(a_step[..., k, None], slots[..., k, None, :], out=product_of_slot)
            acc += product_of_slot
    return acc


def pairwise(a: Steps, b: Steps, c: F32) -> F32:
    """acc = fl(acc + tree), tree the balanced binary tree over the rounded products in slot order."""
    acc = c.copy()
    for a_step, b_step in zip(a, b, strict=True):
        slots = slot_major(b_step)

        def product(k: int, a_step: F32 = a_step, slots: F32 = slots) -> F32:
            return a_step[..., k, None] * slots[..., k, None, :]

        acc += _tree(product, 0, a_step.shape[-1])
    return acc


def _tree(product: Product, first: int, last: int) -> F32:
    """Sum the products of slots first .. last - 1; depth first, so only log2 K partial sums are alive."""
    if last - first == 1:
        return product(first)
    middle = (first + last) // 2
    left = _tree(product, first, middle)
    left += _tree(product, middle, last)
    return left
