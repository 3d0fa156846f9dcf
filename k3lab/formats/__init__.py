"""Number formats to the bit: bf16, fp16, fp32, fp8, E2M1, E8M0 and MXFP4.

NumPy alone: the torch layer is `k3lab.formats.tensor`, imported only by those who have tensors.

    >>> import numpy as np
    >>> from k3lab import formats
    >>> formats.parse("fp8").round(np.float32([0.3, 0.7]))
    array([0.3125, 0.6875], dtype=float32)
"""

from k3lab.formats import mx
from k3lab.formats.bf16 import bf16_bits, bf16_pack, bf16_values
from k3lab.formats.floats import (
    BF16,
    E2M1,
    E8M0,
    FP8_E4M3,
    FP8_E4M3FNUZ,
    FP8_E5M2,
    FP16,
    FP32,
    NAN_STEPS,
    FloatFormat,
)
from k3lab.formats.mx import MXFP4, MxFormat
from k3lab.formats.rounder import ALIASES, FORMATS, GRAMMAR, Format, Rounder, get, parse
from k3lab.formats.rounding import MODES

__all__ = [
    "ALIASES",
    "BF16",
    "E2M1",
    "E8M0",
    "FORMATS",
    "FP8_E4M3",
    "FP8_E4M3FNUZ",
    "FP8_E5M2",
    "FP16",
    "FP32",
    "GRAMMAR",
    "MODES",
    "MXFP4",
    "NAN_STEPS",
    "FloatFormat",
    "Format",
    "MxFormat",
    "Rounder",
    "bf16_bits",
    "bf16_pack",
    "bf16_values",
    "get",
    "mx",
    "parse",
]
