"""The tie hunt: weights that put two reduction orders on different sides of a bf16 rounding boundary.

bf16 hides most order faults: two float32 sums that differ in the last bit round to the same bf16 value in 99 of 100
elements. A launch names the points whose value is something times a weight by column (`Launch.tie_weights`). The hunt
computes that something in the kernel's order and in others, and picks for each column the bf16 weight for which the
orders' results differ in most tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from k3lab.arith import KernelOrder
from k3lab.arith.orders import FROM_FIRST, Order
from k3lab.cases.stream import F32
from k3lab.formats import bf16_bits
from k3lab.formats.tensor import bf16_from_bits, bf16_values
from k3lab.launches import Launch, LaunchKey
from k3lab.launches.eager import run_twins

MANTISSAS: F32 = (1 + np.arange(128) / 128).astype(np.float32)  # every bf16 in [1, 2)
COLUMNS = 256  # columns whose 128 products with each token are held at once


class InOrder(KernelOrder):
    """Every sum one value after the other."""

    name = "in order"

    def sum(self, x: torch.Tensor, order: Order) -> torch.Tensor:
        return FROM_FIRST.fold(x)


class Backwards(KernelOrder):
    """Every sum by the kernel's tree over the values in reverse: sources, columns, slices."""

    name = "backwards"

    def sum(self, x: torch.Tensor, order: Order) -> torch.Tensor:
        return order.fold(x.flip(-1))


# Torch's own sums would do as well, but their order depends on the CPU's vector width, and a case must not.
RIVALS = (InOrder, Backwards)


def hunt_ties(
    launch: Launch, key: LaunchKey, ranks: Sequence[Mapping[str, torch.Tensor]]
) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """Weights chosen for every point in `launch.tie_weights`, and how many elements tell orders apart at each point.

    `ranks` are every rank's stored inputs and stay as they are; a column no weight helps keeps the weight it has.
    """
    chosen: dict[str, torch.Tensor] = {}
    hits: dict[str, int] = {}
    for point, weight in launch.tie_weights:
        held = [{**tensors, **chosen} for tensors in ranks]
        kernel, *rivals = (values.numpy() for values in unweighted(launch, key, held, point, weight))
        weights, hits[point] = choose_weights(kernel, rivals, bf16_values(held[0][weight]).numpy())
        chosen[weight] = bf16_from_bits(bf16_bits(weights))
    return chosen, hits


def unweighted(
    launch: Launch, key: LaunchKey, ranks: Sequence[Mapping[str, torch.Tensor]], point: str, weight: str
) -> list[torch.Tensor]:
    """The fp32 value before `point` with `weight` all 1, `[rows, columns]`: kernel order first, then the rivals."""
    ones = torch.ones_like(ranks[0][weight])
    with_ones = [{**tensors, weight: ones} for tensors in ranks]
    short = _until(launch, point)
    name = f"{launch.name}.{point}"
    return [
        run_twins(short, key, with_ones, order(launch.name))[1][name][-1].before for order in (KernelOrder, *RIVALS)
    ]


def _until(launch: Launch, point: str) -> Launch:
    """The launch cut off after the stage that holds `point`."""
    last = next(i for i, stage in enumerate(launch.stages) if point in [p.name for p in stage.points])
    return replace(launch, stages=launch.stages[: last + 1])


def choose_weights(kernel: F32, rivals: list[F32], weight: F32) -> tuple[F32, int]:
    """For each column the bf16 weight in [1, 2) whose product rounds differently in most rows and rivals.

    kernel and each rival: [rows, columns]; weight: [columns], kept where no weight makes a difference.
    Returns the weights and the number of (rival, row, column) elements that differ.
    """
    chosen, hits = weight.copy(), 0
    for start in range(0, weight.size, COLUMNS):
        part = slice(start, start + COLUMNS)
        mine = _products(kernel[:, part])
        differing = sum((mine != _products(rival[:, part])).sum(0) for rival in rivals)  # [columns, 128]
        most, best = differing.max(-1), differing.argmax(-1)
        chosen[part] = np.where(most > 0, MANTISSAS[best], chosen[part])
        hits += int(most.sum())
    return chosen, hits


def _products(values: F32) -> NDArray[np.uint16]:
    """bf16 bits of `values: [rows, columns]` times every mantissa, [rows, columns, 128].

    A product is rounded to fp32 and then to bf16, as in the twin.
    """
    return bf16_bits(values[:, :, None] * MANTISSAS)
