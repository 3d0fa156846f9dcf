"""The colours of every picture: Okabe and Ito's, which colour-blind readers can tell apart.

A format, a stage or a kind of error has one colour, the same in every chart, page and control.
"""

from __future__ import annotations

INK, SOFT, FAINT = "#222222", "#5A5A5A", "#8a8a8a"
"""Of text, of text that matters less, and of lines and marks that are no text."""

OWN, TOTAL = "#E69F00", "#0072B2"
"""A rounding's own error, and what has built up."""

STAGES = ("#56B4E9", "#E69F00", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#F0E442", "#8C6D46", "#7F7F7F")
"""In the order stages come; beyond the last they start again."""

PATH = "#C4161C"
"""The critical path: in no stage's colour."""

FORMATS = {
    "fp32": "#7F7F7F",
    "fp16": "#56B4E9",
    "bf16": "#0072B2",
    "fp8_e4m3": "#009E73",
    "fp8_e4m3fnuz": "#F0E442",
    "fp8_e5m2": "#8C6D46",
    "e2m1": "#D55E00",
    "e8m0": "#CC79A7",
    "mxfp4": "#D55E00",
}
"""By format; MXFP4's elements are E2M1, so they share a colour."""
