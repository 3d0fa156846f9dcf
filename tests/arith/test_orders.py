"""Reduction orders: against scalar loops in fp32, and revealed from outside (FPRev)."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
import torch

from k3lab.arith.orders import (
    COLUMNS_128,
    FROM_FIRST,
    FROM_ZERO,
    HEAD_128,
    LANES_64,
    Chain,
    Order,
    pairwise,
    slices,
)


def f32(values) -> list[np.float32]:
    return [np.float32(v) for v in values]


def chain(values):
    return reduce(lambda a, b: np.float32(a + b), values)


def butterfly(lanes):
    """As the wave does it: every lane adds its partner's value, offsets falling."""
    offset = len(lanes) // 2
    while offset:
        lanes = [np.float32(lanes[i] + lanes[i ^ offset]) for i in range(len(lanes))]
        offset //= 2
    assert len({float(v) for v in lanes}) == 1
    return lanes[0]


def tree(values):
    """The halves' sums, each formed alike, are added last."""
    half = len(values) // 2
    return np.float32(tree(values[:half]) + tree(values[half:])) if half else values[0]


SCALAR = {
    "columns_128": (COLUMNS_128, 128, lambda v: butterfly([chain(v[4 * i : 4 * i + 4]) for i in range(32)])),
    "lanes_64": (LANES_64, 64, butterfly),
    "lanes_64 with 5 present": (LANES_64, 5, lambda v: butterfly(v + f32([0] * 59))),
    "head_128": (HEAD_128, 128, lambda v: butterfly([np.float32(v[i] + v[i + 64]) for i in range(64)])),
    "56 slices": (slices(56), 56, lambda v: chain([chain(v[7 * g : 7 * g + 7]) for g in range(8)])),
    "16 slices": (slices(16), 16, lambda v: chain([chain(v[2 * g : 2 * g + 2]) for g in range(8)])),
    "from zero": (FROM_ZERO, 9, lambda v: chain([np.float32(0), *v])),
    "from first": (FROM_FIRST, 8, chain),
    "pairwise over 8": (pairwise(8), 8, tree),
    "pairwise over 2": (pairwise(2), 2, tree),
    "pairwise over 1": (pairwise(1), 1, tree),
}


@pytest.mark.parametrize("name", SCALAR)
def test_equals_a_scalar_loop(name):
    order, n, scalar = SCALAR[name]
    rng = np.random.default_rng(1)
    for _ in range(20):
        values = (rng.standard_normal(n) * 2.0 ** rng.integers(-12, 12, n)).astype(np.float32)
        assert order.fold(torch.from_numpy(values)).item() == scalar(list(values))


def test_minus_zero_survives_only_a_sum_from_the_first_value():
    zeros = torch.full((8,), -0.0)
    assert FROM_FIRST.fold(zeros).signbit() and not FROM_ZERO.fold(zeros).signbit()


def joined_at(order: Order, n: int, i: int, j: int) -> int:
    """How many of n summands meet +-M only after these two have cancelled (FPRev): ones outside their subtree."""
    values = torch.ones(n)
    values[i], values[j] = 2.0**60, -(2.0**60)
    return int(order.fold(values).item())


def test_the_tree_of_a_slice_sum_is_what_the_spec_says():
    """Two columns of one thread, then of neighbouring lanes, then 16 lanes apart: subtree sizes tell the order."""
    n = 128
    inside = {
        (0, 1): n - 2,  # added first of all
        (0, 2): n - 3,
        (0, 3): n - 4,
        (0, 64): n - 8,  # lane 0 meets lane 16 first
        (0, 32): n - 16,  # then lane 8
        (0, 4): 0,  # lane 1 comes last
    }
    assert {pair: joined_at(COLUMNS_128, n, *pair) for pair in inside} == inside


def test_an_order_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match="leaves 2 values"):
        Order((Chain(4),)).fold(torch.ones(8))


def test_orders_say_what_they_do():
    assert slices(56).describe() == "7 in order from the first, then 8 in order from the first"
    assert COLUMNS_128.describe() == "4 in order from the first, then butterfly over 32 lanes"
