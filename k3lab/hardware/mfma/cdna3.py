"""The `cdna3` model: CDNA3's bf16 MFMA as MMA-Sim found it (arXiv 2511.10909).

Slots go in blocks of 8. Exponents are those of the operands, with subnormals at -126; a product's exponent e_k is the
sum of its operands' and is not normalised. Of a block:
1. each product is truncated toward zero at 2^(e - 24), e the largest e_k of a non-zero product, and all are summed;
2. with e' = max(e, exponent of C), the sum is floored at 2^(e' - 32) and C at 2^(e' - 24), and the two are added;
3. the total is floored 31 bits below its own leading bit (-126 at least) and rounded to float32, nearest even.
The result is the next block's C. A product of 2^128 or more is an infinity.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from k3lab.hardware.mfma.bounds import BIAS, Exponents, exponents
from k3lab.hardware.mfma.model import F32, F64, Steps, slot_major

BLOCK = 8  # slots summed together
DOT_BITS = 24  # fraction bits a product keeps below the block's largest exponent
C_BITS = 24
JOIN_BITS = 32  # fraction bits the block's sum keeps beside C
TOTAL_BITS = 31  # fraction bits of the normalised total
NO_PRODUCT = -300  # exponent of a block whose products are all zero: below every other, and in float64's range
ABSENT = -4096  # exponent of a zero operand
F64_BIAS, F64_FRACTION = 1023, 52
MIN_EXPONENT = -126
OVERFLOW_EXPONENT = 128


def cdna3(a: Steps, b: Steps, c: F32) -> F32:
    """Chain of MFMAs; the instruction of K = 32 is four blocks of 8. See `MfmaModel.chain` for the shapes."""
    acc = c.copy()
    for a_step, b_step in zip(a, b, strict=True):
        slots = slot_major(b_step)
        for first in range(0, a_step.shape[-1], BLOCK):
            block = slice(first, first + BLOCK)
            acc = _block(acc, a_step[..., block], slots[..., block, :])
    return acc


def _block(acc: F32, a: F32, b: F32) -> F32:
    """One block: acc [..., M, N], a [..., M, 8], b [..., 8, N] (slot major)."""
    start = acc.astype(np.float64)
    dot, exponent = _truncated_dot(a, b)
    top = np.maximum(exponent, exponents(acc) - BIAS)
    dot_units = np.floor(dot * _power_of_two(JOIN_BITS - top))
    c_units = np.floor(start * _power_of_two(C_BITS - top)) * 2.0 ** (JOIN_BITS - C_BITS)
    total = (dot_units + c_units) * _power_of_two(top - JOIN_BITS)
    result = _floor_fraction(total).astype(np.float32)
    if not np.isfinite(total).all():
        plain = start + dot
        result = np.where(np.isfinite(plain), result, plain.astype(np.float32))
    return result


def _truncated_dot(a: F32, b: F32) -> tuple[F64, Exponents]:
    """(sum of the truncated products, exponent they were aligned to), both [..., M, N]."""
    a_exponents, b_exponents = _operand_exponents(a), _operand_exponents(b)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    exponent: Exponents = np.array(NO_PRODUCT, np.int16)
    for k in range(a.shape[-1]):
        exponent = np.maximum(exponent, a_exponents[..., k, None] + b_exponents[..., k, None, :])
    scale = _power_of_two(DOT_BITS - exponent)
    overflows = bool((exponent >= OVERFLOW_EXPONENT - 1).any())
    units = np.zeros(exponent.shape)
    for k in range(a.shape[-1]):
        product = wide_a[..., k, None] * wide_b[..., k, None, :]
        if overflows:
            np.copyto(product, np.copysign(np.inf, product), where=np.abs(product) >= 2.0**OVERFLOW_EXPONENT)
        units += np.trunc(product * scale)
    return units * _power_of_two(exponent - DOT_BITS), exponent


def _operand_exponents(values: F32) -> Exponents:
    return np.where(values == 0, np.int16(ABSENT), exponents(values) - np.int16(BIAS))


def _power_of_two(exponent: NDArray[np.int16]) -> F64:
    """2^exponent, for exponents in float64's normal range."""
    return ((exponent.astype(np.int64) + F64_BIAS) << F64_FRACTION).view(np.float64)


def _floor_fraction(total: F64) -> F64:
    """Floor each total 31 bits below its leading bit, or below 2^-126 for smaller ones."""
    biased = (total.view(np.int64) >> F64_FRACTION) & 0x7FF
    leading = np.maximum(biased - F64_BIAS, MIN_EXPONENT)
    return np.floor(total * _power_of_two(TOTAL_BITS - leading)) * _power_of_two(leading - TOTAL_BITS)
