"""The words of an error report, each explained in a line: those that a given report uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from k3lab.analysis.report import Report


@dataclass(frozen=True)
class Term:
    """A word and its meaning; `used` is the pattern a report's texts hold where it occurs (empty: it always does)."""

    word: str
    meaning: str
    used: str = ""


TERMS = (
    Term(
        "bf16",
        "A 16-bit number format with 8 significant bits: about 2 to 3 decimal digits. Rounding to it is wrong by "
        "at most 1 part in 256.",
    ),
    Term(
        "fp8 (e4m3)",
        "An 8-bit format with 4 significant bits and a largest value of 448: wrong by at most 1 part in 16.",
        "fp8",
    ),
    Term(
        "mxfp4",
        "4-bit values (0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives), 32 of which share one power-of-two scale.",
        "mxfp4",
    ),
    Term(
        "AttnRes",
        "Attention residuals: instead of the plain residual sum, a layer reads a softmax-weighted mix of earlier "
        "blocks' outputs and the running prefix (the sum of what came since).",
        r"\bAttnRes\b",
    ),
    Term(
        "KDA",
        "Kimi Delta Attention: linear attention that keeps one state matrix a head, decayed and corrected token by "
        "token (the gated delta rule).",
        r"\bKDA\b",
    ),
    Term(
        "MLA",
        "Multi-head latent attention: the cache keeps one short vector a token (the latent), from which every "
        "head's keys and values follow.",
        r"\bMLA\b",
    ),
    Term(
        "seam",
        "The steps between two sub-layers: the last output joins the prefix, the AttnRes mix is taken, and normed.",
        r"\bseam\b",
    ),
    Term(
        "rank",
        "One of the GPUs that share a layer, each with heads of its own. The tables show one rank's shape and say "
        "how many ranks have their own.",
        r"\branks?\b",
    ),
    Term(
        "region, local",
        "Values handed from step to step inside a launch: a region through memory, between blocks of GPU threads "
        "(CTAs) or GPUs; a local inside one CTA.",
        r"\b(region|local)\b",
    ),
    Term(
        "outliers",
        "How the inputs were drawn: normal, but for a few channels that are 20 to 100 times larger, as in real models.",
        r"\boutliers\b",
    ),
    Term(
        "rounding point",
        "A named place where a value is narrowed to a smaller format, such as {point}. Everything between two "
        "points is computed in fp32 (24 significant bits).",
    ),
    Term(
        "ulp",
        "Unit in the last place: the gap between neighbouring numbers of a format at a value. A correct rounding "
        "is off by at most half an ulp. Close to 0 the gap is tiny, so there a harmless error can count thousands "
        "of ulps.",
    ),
    Term(
        "oracle",
        "The same calculation in float64 (53 significant bits), nothing rounded to a smaller format, with true "
        "exponentials: as good as exact here.",
    ),
    Term(
        "own error",
        "What one rounding does by itself: the value after it against the value before it.",
    ),
    Term(
        "built-up error",
        "All that has gone wrong until there: the value after the rounding against the oracle's value.",
    ),
    Term(
        "rms, relative rms",
        "Root of the mean square, the usual size of an error; relative: divided by the rms of the values themselves.",
    ),
    Term(
        "SNR",
        "Signal-to-noise ratio, −20 log₁₀(relative rms error): 60 dB is one part in 1000, and 6 dB more halve the "
        "error. One rounding to bf16 leaves about 56 dB.",
    ),
    Term(
        "share",
        "The part of a result's error energy (mean squared error) that appears when this rounding is the only one "
        "switched on.",
    ),
    Term(
        "kernel order, torch order",
        "fp32 sums depend on the order of their terms. Kernel order follows the GPU kernel's lanes, waves and "
        "slices; torch order is whatever PyTorch does.",
    ),
    Term(
        "MFMA",
        "AMD's matrix instruction. How it adds inside is not documented for the gfx950 GPU (MI355X), so k3lab has "
        "several models of it.",
    ),
)


def glossary(report: Report, case: str) -> list[Term]:
    """The terms that `report`, or its `case` in words, uses."""
    text = " ".join([*_texts(report), case])
    point = report.points[0].name if report.points else report.launch
    used = (term for term in TERMS if re.search(term.used, text))
    return [Term(term.word, term.meaning.replace("{point}", point)) for term in used]


def _texts(report: Report) -> Iterator[str]:
    yield report.about
    for point in report.points:
        yield f"{point.about} {point.format}"
    for tensor in report.tensors:
        yield f"{tensor.kind} {tensor.about} {tensor.format}"
