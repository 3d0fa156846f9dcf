"""The worst rounding points of a report: those that a reader should look at first."""

from __future__ import annotations

import math
from dataclasses import dataclass

from k3lab.analysis.report import PointRow, Report
from k3lab.analysis.words import decibel, number

NAMED = 3


@dataclass(frozen=True)
class Block:
    """A cell of a point's heat map: elements `first` to `last` of a token's values, counted through."""

    token: int
    first: int
    last: int
    ulps: float


@dataclass(frozen=True)
class Worst:
    """One of the worst points, in words; `failed` names the bounds it missed."""

    name: str
    about: str
    format: str
    failed: list[str]
    built_up: str
    own: str
    where: str


def worst_points(report: Report, most: int = NAMED) -> list[Worst]:
    """At most `most` points: those that missed a bound, then by built-up relative rms error (own without an oracle)."""
    failed = {
        row.name: [v.bound for v in report.verdicts if v.name == row.name and not v.passed] for row in report.points
    }
    rows = sorted(report.points, key=lambda row: (not failed[row.name], -_size(row)))
    return [_worst(row, failed[row.name]) for row in rows[:most]]


def largest_block(row: PointRow) -> Block | None:
    """Where the built-up error is largest; None without an oracle, or where there is no error."""
    cells = [(ulps, token, place) for token, line in enumerate(row.heat or ()) for place, ulps in enumerate(line)]
    ulps, token, place = max(cells, default=(0.0, 0, 0))
    if not ulps:
        return None
    edges = block_edges(row)
    return Block(token, edges[place], edges[place + 1] - 1, ulps)


def block_edges(row: PointRow) -> list[int]:
    """Where the blocks of `row.heat` begin in a token's values, counted through; the last is where they end.

    As `k3lab.analysis.compare` divides them: at multiples of width / blocks, rounded to the nearest, ties to even.
    """
    heat = row.heat or [[]]
    blocks = max(len(heat[0]), 1)
    width = math.prod(row.shape) // max(len(heat), 1)
    return [round(width * place / blocks) for place in range(blocks + 1)]


def _size(row: PointRow) -> float:
    figures = row.total or row.own
    if figures.mismatched:
        return math.inf
    return figures.relative_rms or 0.0


def _worst(row: PointRow, failed: list[str]) -> Worst:
    total = row.total
    built_up = f"{number(total.relative_rms)} ({decibel(total.snr_db)})" if total else "–"
    return Worst(row.name, row.about, row.format, failed, built_up, number(row.own.relative_rms), _where(row))


def _where(row: PointRow) -> str:
    """`token 2, elements 36 to 72 of 2048: 1.8 ulp`; of several ranks, in the first."""
    block = largest_block(row)
    if block is None:
        return "nowhere" if row.heat else "–"
    several = "rank 0, " if row.ranks > 1 else ""
    width = math.prod(row.shape) // len(row.heat or [0])
    element = f"element {block.first}" if block.first == block.last else f"elements {block.first} to {block.last}"
    return f"{several}token {block.token}, {element} of {width}: {number(block.ulps)} ulp"
