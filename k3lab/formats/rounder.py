"""Formats by name, and the little language that says how a value is rounded: `format[:rule][:mode][:seed]`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy.typing as npt

from k3lab.errors import BadInput, expect
from k3lab.formats.floats import BF16, E2M1, E8M0, FP8_E4M3, FP8_E4M3FNUZ, FP8_E5M2, FP16, FP32, FloatFormat
from k3lab.formats.mx import MXFP4, RULES, MxFormat
from k3lab.formats.rounding import MODES, Array

Format = FloatFormat | MxFormat

FORMATS: dict[str, Format] = {
    f.name: f for f in (BF16, FP16, FP32, FP8_E4M3, FP8_E4M3FNUZ, FP8_E5M2, E2M1, E8M0, MXFP4)
}
ALIASES = {"fp8": "fp8_e4m3", "fp4": "e2m1"}

GRAMMAR = "format[:rule][:mode][:seed]"


def get(name: str) -> Format:
    """The format called `name`, or the one its alias stands for (`fp8`: fp8_e4m3, `fp4`: e2m1).

    Raises:
        BadInput: naming every format, when there is none of that name.
    """
    canonical = ALIASES.get(name, name)
    expect(canonical in FORMATS, "format", f"one of {', '.join([*FORMATS, *ALIASES])}", repr(name))
    return FORMATS[canonical]


@dataclass(frozen=True)
class Rounder:
    """One way to round: a format with its mode and seed fixed.

    Args:
        spec: the text it was parsed from, such as `mxfp4:floor`.
        format: the format.
        mode: `nearest`, `zero` or `stochastic`.
        seed: seed of `stochastic`.
    """

    spec: str
    format: Format = field(repr=False)
    mode: str = "nearest"
    seed: int = 0

    @property
    def format_name(self) -> str:
        """The format's own name; aliases are resolved."""
        return self.format.name

    @property
    def max_value(self) -> float:
        """Magnitude at which values saturate; infinity where none does, and for mxfp4, where the block decides."""
        return self.format.max if self.format.saturates else float("inf")

    @property
    def smallest(self) -> float:
        """Smallest positive value."""
        return self.format.smallest

    @property
    def nearest(self) -> bool:
        """Whether it rounds to nearest, so that an error is at most half an ulp below saturation."""
        return self.mode == "nearest"

    @property
    def saturates(self) -> bool:
        """Whether overflow gives the largest value rather than infinity."""
        return self.format.saturates

    def round(self, x: npt.ArrayLike) -> Array:
        """`x` (float32 or float64) rounded, in its own dtype and shape.

        Raises:
            BadInput: for another dtype, or for mxfp4 when the last axis is no multiple of 32.
        """
        return self.format.round(x, self.mode, self.seed)

    def ulp(self, x: npt.ArrayLike) -> Array:
        """Spacing of the format at |x|, float64 in x's shape; for mxfp4 E2M1's spacing times the block's scale."""
        return self.format.ulp(x)


def parse(spec: str) -> Rounder:
    """The rounder that `spec` describes: `bf16`, `bf16:zero`, `fp8:stochastic:7`, `mxfp4:floor`, `mxfp4:rceil:nearest`.

    A rule belongs to mxfp4 alone (default `even`), a seed to `stochastic` alone (default 0).

    Raises:
        BadInput: when the text does not follow the grammar or names an unknown format.
    """
    name, *options = spec.strip().split(":")
    format_ = get(name)
    if isinstance(format_, MxFormat) and options and options[0] in RULES:
        format_ = MxFormat(rule=options.pop(0))
    mode = options.pop(0) if options and options[0] in MODES else "nearest"
    seed = int(options.pop(0)) if mode == "stochastic" and options and _is_seed(options[0]) else 0
    if options:
        raise BadInput(_leftover(spec, format_, options[0]))
    return Rounder(spec.strip(), format_, mode, seed)


def _is_seed(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _leftover(spec: str, format_: Format, option: str) -> str:
    """The sentence for an option that fits nowhere in `spec`."""
    rules = f"a scale rule ({', '.join(RULES)}), " if isinstance(format_, MxFormat) else ""
    return (
        f"rounding {spec!r}: expected {GRAMMAR}, where {format_.name} takes {rules}"
        f"a mode ({', '.join(MODES)}) and, after stochastic, a seed, got {option!r} out of place."
    )
