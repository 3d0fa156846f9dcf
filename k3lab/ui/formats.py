"""The format explorer's views: a number's neighbours in each format, and a block of values under one scale."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from k3lab import formats
from k3lab.analysis.charts import WIDTH
from k3lab.analysis.palette import FORMATS, INK
from k3lab.analysis.words import number, plural
from k3lab.errors import BadInput, expect
from k3lab.formats import mx
from k3lab.formats.floats import FloatFormat
from k3lab.ui.html import Html, heading, joined, picture, swatch, table

SHOWN = ("bf16", "fp8_e4m3", "e2m1")
RUNGS = 2
"""Values shown on each side of the nearest."""
FAR = 4
"""Ulps from its nearest value beyond which a number is not drawn."""


@dataclass(frozen=True)
class Rung:
    """A value of a format: its code, and how many steps it lies above the nearest one."""

    step: int
    value: float
    code: int


@dataclass(frozen=True)
class Neighbours:
    """Where a number falls in a format.

    Attributes:
        rungs: the values around it, ascending; that of step 0 is what rounding to nearest even gives.
        tie: whether the number lies exactly in the middle of two values.
        beyond: whether it is finite and lies beyond the largest value.
    """

    format: FloatFormat
    value: float
    rungs: tuple[Rung, ...]
    tie: bool
    beyond: bool

    @property
    def nearest(self) -> Rung:
        return next(rung for rung in self.rungs if rung.step == 0)

    @property
    def ulp(self) -> float:
        """The format's spacing at the number."""
        return float(self.format.ulp(np.float64(self.value)))


def parse_number(text: str) -> float:
    """A number as Python writes it: `0.1`, `-3e-5`, `inf`, `nan`, or hexadecimal, `0x1.8p-3`.

    Raises:
        BadInput: for any other text.
    """
    try:
        return float.fromhex(text) if "0x" in text.lower() else float(text)
    except (ValueError, OverflowError):
        raise BadInput(f"number: expected one such as 0.1, -3e-5, 0x1.8p-3, inf or nan, got {text!r}.") from None


def parse_block(text: str) -> list[float]:
    """1 to 32 numbers separated by commas or blanks.

    Raises:
        BadInput: for another count, or a text that is no number.
    """
    values = [parse_number(word) for word in re.split(r"[\s,]+", text.strip()) if word]
    expect(1 <= len(values) <= mx.BLOCK, "block", f"1 .. {mx.BLOCK} numbers", len(values))
    return values


def neighbours(value: float, name: str, around: int = RUNGS) -> Neighbours:
    """The values of the format `name` around `value`, taken from float64 without any rounding before.

    Raises:
        BadInput: for a format that is no plain one (mxfp4 depends on the block).
    """
    held = formats.get(name)
    if not isinstance(held, FloatFormat):
        raise BadInput(f"format: expected one with a code a value, got {name!r}; look at a block instead.")
    at = np.float64(value)
    codes = {step: int(held.encode(held.step(at, step))) for step in range(-around, around + 1)}
    ladder = [Rung(step, float(held.decode(np.uint32(code))), code) for step, code in codes.items()]
    # At its ends, and for NaN, a ladder has no rung so many steps away.
    there = [held.steps_between(at, np.float64(rung.value)) == rung.step for rung in ladder]
    rungs = tuple(rung for rung, real in zip(ladder, there, strict=True) if real or rung.step == 0)
    return Neighbours(held, value, rungs, _is_tie(value, rungs), math.isfinite(value) and abs(value) > held.max)


def _is_tie(value: float, rungs: Sequence[Rung]) -> bool:
    """Whether another value is exactly as far away as the nearest: sums of two neighbours are exact in float64."""
    nearest = next(rung.value for rung in rungs if rung.step == 0)
    others = [rung.value for rung in rungs if abs(rung.step) == 1]
    return math.isfinite(nearest) and value != nearest and any(nearest + other == 2 * value for other in others)


def code_text(held: FloatFormat, code: int) -> str:
    """A code in hexadecimal and as sign, exponent and mantissa bits: `0x3dcd = 0 01111011 1001101`."""
    bits = f"{code:0{held.bits}b}"
    sign = held.bits - held.exp_bits - held.man_bits  # E8M0 has none
    parts = (bits[:sign], bits[sign : sign + held.exp_bits], bits[sign + held.exp_bits :])
    return f"{code:#0{2 + -(-held.bits // 4)}x} = {' '.join(part for part in parts if part)}"


def number_view(value: float, names: Sequence[str] = SHOWN) -> Html:
    """A number's neighbours in each format, with their codes, and a picture of the ladders around it."""
    found = [neighbours(value, name) for name in names]
    rows = [_row(each, rung) for each in found for rung in each.rungs]
    says = "The marked row is what rounding to nearest, ties to even, gives; codes are sign, exponent, mantissa."
    view = joined(
        heading(repr(value), "and the values next to it"),
        table(["format", "value", "code", "value − number", "in ulp", ""], rows, says, notes=True),
    )
    near = [each for each in found if abs(each.nearest.value - value) <= FAR * each.ulp]
    if not near:
        return view
    caption = (
        f"Where {value:.6g} falls: ticks are the format's values, the dot the nearest one, the line the number. "
        "Every format has its own axis: the fewer the bits, the wider the gaps."
    )
    return joined(view, picture(ladder_figure(near), caption))


def _row(each: Neighbours, rung: Rung) -> tuple[object, ...]:
    held, error = each.format, rung.value - each.value
    notes = []
    if rung.step == 0:
        lost = math.isnan(each.value) and not math.isnan(rung.value)
        said = {"a tie, to the even code": each.tie, "beyond the largest value": each.beyond, "has no NaN": lost}
        notes = ["◀ nearest", *(text for text, true in said.items() if true)]
    square = swatch(FORMATS[held.name], held.name)
    return (
        square,
        f"{rung.value:.9g}",
        code_text(held, rung.code),
        number(error),
        number(error / each.ulp),
        ", ".join(notes),
    )


def ladder_figure(found: Sequence[Neighbours]) -> Figure:
    """The values of each format next to a number, a panel and an axis a format."""
    figure = Figure(figsize=(WIDTH, 0.5 + 0.85 * len(found)), layout="constrained")
    for axes, each in zip(figure.subplots(len(found), 1, squeeze=False)[:, 0], found, strict=True):
        colour = FORMATS[each.format.name]
        values = [rung.value for rung in each.rungs if math.isfinite(rung.value)]
        axes.plot(values, np.zeros(len(values)), "|", color=colour, markersize=22, markeredgewidth=2)
        axes.plot([each.nearest.value], [0], "o", color=colour, markeredgecolor=INK, markersize=9, zorder=3)
        axes.axvline(each.value, color=INK, linewidth=1.4)
        axes.set_xticks(values, [f"{value:.7g}" for value in values], fontsize=8)
        axes.set_yticks([0], [each.format.name])
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.margins(x=0.08)
    figure.supxlabel("value", fontsize=9)
    return figure


# -- a block -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """Values that share a scale.

    Attributes:
        amax: the largest magnitude, as the scale rule reads it (float32).
        scale_code, scale: the E8M0 code and what it stands for.
        values, scaled, codes, decoded: by value: what was given, that over the scale, its E2M1 code, and what the code
            stands for, times the scale.
    """

    rule: str
    amax: float
    scale_code: int
    scale: float
    values: tuple[float, ...]
    scaled: tuple[float, ...]
    codes: tuple[int, ...]
    decoded: tuple[float, ...]


def block(values: Sequence[float], rule: str = "even") -> Block:
    """1 to 32 values as one MXFP4 block, the rest of it zeros, which change nothing.

    Raises:
        BadInput: for another count or an unknown rule.
    """
    expect(1 <= len(values) <= mx.BLOCK, "block", f"1 .. {mx.BLOCK} numbers", len(values))
    padded = np.zeros(mx.BLOCK)
    padded[: len(values)] = values
    codes, scales = mx.quantise(padded, rule)
    amax = float(mx.amax_bits(padded).astype(np.uint32).view(np.float32)[0])
    scale = float(formats.E8M0.decode(scales)[0])
    mine = slice(0, len(values))
    return Block(
        rule,
        amax,
        int(scales[0]),
        scale,
        tuple(padded[mine].tolist()),
        tuple((padded[mine] / scale).tolist()),
        tuple(codes[mine].tolist()),
        tuple(mx.dequantise(codes, scales, np.float64)[mine].tolist()),
    )


def block_view(values: Sequence[float], rule: str = "even") -> Html:
    """A block's shared scale under `rule`, beside the other rules', and what becomes of each value."""
    held = block(values, rule)
    others = [block(values, name) for name in mx.RULES]
    rms = [float(np.sqrt(np.mean(np.subtract(each.decoded, each.values) ** 2))) for each in others]
    rules = [
        (
            f"▶ {each.rule}" if each.rule == rule else each.rule,
            code_text(formats.E8M0, each.scale_code),
            f"{each.scale:g}",
            f"{6 * each.scale:g}",
            number(error),
        )
        for each, error in zip(others, rms, strict=True)
    ]
    rows = [
        (f"{v:.9g}", f"{s:.6g}", code_text(formats.E2M1, c), f"{d:.9g}", number(d - v))
        for v, s, c, d in zip(held.values, held.scaled, held.codes, held.decoded, strict=True)
    ]
    return joined(
        heading(f"MXFP4, {plural(len(values), 'value')}", f"amax {held.amax:g}, rule {rule}"),
        table(
            ["rule", "E8M0 code", "scale", "largest value", "rms error"],
            rules,
            "The four scale rules on this block: a smaller scale rounds finer, and clips what lies beyond 6 scales.",
        ),
        table(
            ["value", "over the scale", "E2M1 code", "becomes", "error"],
            rows,
            "Each value over the shared scale is rounded once, to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6.",
            left=0,
        ),
    )
