"""Figures in words: how reports and the command line write numbers for people."""

from __future__ import annotations

import math
from collections.abc import Iterable

DIGITS = "⁰¹²³⁴⁵⁶⁷⁸⁹"


def number(value: float | None) -> str:
    """Three significant digits; powers of ten outside 0.001 .. 99999: `0.0124`, `1.78 × 10⁻⁴`, `–` for None."""
    if value is None:
        return "–"
    if value == 0 or not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "0" if value == 0 else "NaN")
    if 1e-3 <= abs(value) < 1e5:
        return _minus(_fixed(value))
    mantissa, exponent = f"{value:.2e}".split("e")
    return _minus(f"{mantissa} × 10{_superscript(int(exponent))}")


def plain(value: float) -> str:
    """A short axis label: `0.25`, `8`, `2 × 10⁻³`."""
    if value and not 1e-2 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.1e}".split("e")
        return _minus(f"{float(mantissa):g} × 10{_superscript(int(exponent))}")
    return _minus(f"{value:.3g}") if abs(value) < 1e3 else f"{value:.0f}"


def percent(share: float | None) -> str:
    """A share with three significant digits at most: `45.7 %`, `0 %`, `100 %`; `–` for None."""
    if share is None:
        return "–"
    if 0 < share < 1e-5:
        return "< 0.001 %"
    if 1 > share > 0.9995:
        return "> 99.9 %"
    return f"{_minus(_fixed(100 * share))} %"


def share_text(share: float) -> str:
    """A budget share: whole percent, `< 0.1 %` for what hardly counts."""
    if share < 1e-3:
        return "< 0.1 %" if share else "0 %"
    return f"{100 * share:.1f} %" if share < 0.0095 else f"{100 * share:.0f} %"


def decibel(value: float | None) -> str:
    """`48.9 dB`; `–` for None."""
    return "–" if value is None else f"{_minus(f'{value:.1f}')} dB"


def shape(sizes: Iterable[int], ranks: int = 1) -> str:
    """`4 × 7168`, or `8 ranks × 4 × 7168` where several ranks hold one each."""
    several = [plural(ranks, "rank")] if ranks > 1 else []
    return " × ".join([*several, *map(str, sizes)]) or "scalar"


def listed(items: Iterable[str], word: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    *most, last = list(items) or [""]
    return f"{', '.join(most)} {word} {last}" if most else last


def plural(count: int, noun: str) -> str:
    """`1 point`, `8 points`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _fixed(value: float) -> str:
    """Three significant digits without an exponent, trailing zeros of the fraction dropped."""
    places = 2 - math.floor(math.log10(abs(value))) if value else 0
    text = f"{round(value, places):.{max(0, places)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _superscript(exponent: int) -> str:
    return ("⁻" if exponent < 0 else "") + "".join(DIGITS[int(digit)] for digit in str(abs(exponent)))


def _minus(text: str) -> str:
    return text.replace("-", "−")
