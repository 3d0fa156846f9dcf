"""MXFP4: blocks of 32 E2M1 values along the last axis that share one power-of-two scale (OCP MX v1.0, 6.3).

All four scale rules are one integer addition on the fp32 bits of the block's amax, followed by reading the exponent
field; they differ only in the mantissa above which the addition carries into the exponent:

| rule    | added      | the exponent goes up when amax = m 2^e has | meaning                                  |
|---------|------------|--------------------------------------------|------------------------------------------|
| `floor` | 0          | never                                      | floor(log2 amax) - 2 (OCP MX v1.0)       |
| `even`  | 0x200000   | m >= 1.75                                  | amax rounded half up to one mantissa bit |
| `rceil` | 0x3FFFFF   | m > 1.5                                    | smallest scale with amax / scale <= 6    |
| `ceil`  | 0x7FFFFF   | m > 1                                      | ceil(log2 amax) - 2                      |

No logarithm is taken: a float32 log2 is wrong just below powers of two. `even` is the rule of the kernels, and of the
AITER and Quark quantisers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from k3lab.errors import expect
from k3lab.formats.floats import E2M1, E8M0
from k3lab.formats.rounding import Array, as_floats, magnitude_bits, widen

BLOCK = 32
"""Values that share a scale."""

RULES = {"even": 0x200000, "floor": 0, "rceil": 0x3FFFFF, "ceil": 0x7FFFFF}
"""Scale rule: what it adds to the fp32 bits of amax before the exponent is read."""

NONFINITE = ("zero", "six")

_EMAX = 2  # the exponent of 4, E2M1's largest power of two


def even_code(amax_bits: Array) -> Array:
    """E8M0 codes (uint8) by the `even` rule, before a kernel raises code 0 to 1.

    Args:
        amax_bits: fp32 bits of amax, any integer dtype of at least 32 bits, sign bit clear. Bits from 0x7FE00000 up
            (NaNs) roll over into the sign bit, whose exponent field is 0: they give code 0.
    """
    field = ((np.asarray(amax_bits).astype(np.int64) + RULES["even"]) >> 23) & 0xFF
    return np.asarray(np.maximum(field - _EMAX, 0), np.uint8)


def amax_bits(x: Array) -> Array:
    """fp32 bits (int32) of each block's amax, compared as integers; shape [..., n / 32] for x [..., n].

    A NaN's bits are larger than any number's, so a NaN wins its block. float64 is rounded to float32 for this alone.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        x = x.astype(np.float32, copy=False)
    blocks = magnitude_bits(x).reshape(*x.shape[:-1], x.shape[-1] // BLOCK, BLOCK)
    return np.asarray(blocks.max(axis=-1))


def block_scale(x: npt.ArrayLike, rule: str = "even") -> Array:
    """E8M0 scale codes (uint8, shape [..., n / 32]) of the blocks of `x` (float32 or float64, [..., n]).

    `even` gives at least 1, as the kernel does, so that an all-zero block has code 1 and no scale is a denormal.
    The other rules are clamped to [0, 254], the codes that stand for numbers (OCP MX v1.0): an all-zero block has
    code 0. What amax = infinity or NaN gives follows from the same integers: a finite scale, never code 255. For
    the three rules other than `even` that is *assumed*, as OCP leaves it open.

    Raises:
        BadInput: for an unknown rule, another dtype, or a last axis that is no multiple of 32.
    """
    x = _as_blocked(x)
    _check_rule(rule)
    bits = amax_bits(x)
    if rule == "even":
        return np.asarray(np.maximum(even_code(bits), np.uint8(1)))
    field = (bits.astype(np.int64) + RULES[rule]) >> 23
    return np.asarray(np.clip(field - _EMAX, 0, E8M0.max_code), np.uint8)


def quantise(
    x: npt.ArrayLike, rule: str = "even", mode: str = "nearest", nonfinite: str = "zero", seed: int = 0
) -> tuple[Array, Array]:
    """Quantise `x` (float32 or float64, [..., n]) to E2M1 codes (uint8, [..., n]) and scales (uint8, [..., n / 32]).

    Dividing by the scale is exact, so each value is rounded once; magnitudes beyond 6 scales saturate.

    Args:
        x: the values; n a multiple of 32.
        rule: a scale rule of `RULES`.
        mode: a rounding mode: `nearest` (ties to even), `zero` or `stochastic`.
        nonfinite: what a NaN becomes, *assumed* either way: `zero` (+0, as AMD's own emulator does) or `six` (6 with
            the NaN's sign). An infinity becomes 6 with its sign under both.
        seed: seed of `stochastic`.

    Raises:
        BadInput: for an unknown rule, mode, option or dtype, or a last axis that is no multiple of 32.
    """
    x = _as_blocked(x)
    expect(nonfinite in NONFINITE, "nonfinite", f"one of {', '.join(NONFINITE)}", repr(nonfinite))
    scales = block_scale(x, rule)
    with np.errstate(over="ignore"):  # exact in x's own dtype too, wherever E2M1 can tell
        scaled = (widen(x) / _spread(scales)).astype(x.dtype)
    codes = E2M1.encode(scaled, mode, seed)
    if nonfinite == "six":
        six = np.where(np.signbit(x), np.uint8(0xF), np.uint8(0x7))
        codes = np.where(np.isnan(x), six, codes)
    return codes, scales


def dequantise(codes: npt.ArrayLike, scales: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> Array:
    """Values ([..., n], float32 unless `dtype` says float64) of E2M1 `codes` [..., n] and E8M0 `scales` [..., n / 32].

    Exact, but for float32's own range: 4 * 2^126 and more overflow to infinity there. A scale of 255 gives NaN.

    Raises:
        BadInput: when there is not one scale for every 32 codes.
    """
    codes, scales = np.asarray(codes), np.asarray(scales)
    fits = codes.ndim > 0 and codes.shape == (*scales.shape[:-1], scales.shape[-1] * BLOCK if scales.ndim else 0)
    expect(fits, "scales", f"one for every {BLOCK} codes of shape {codes.shape}", f"shape {scales.shape}")
    with np.errstate(over="ignore"):
        values: Array = (E2M1.decode(codes) * _spread(scales)).astype(dtype)
    return values


def round(x: npt.ArrayLike, rule: str = "even", mode: str = "nearest", nonfinite: str = "zero", seed: int = 0) -> Array:
    """`x` quantised and dequantised, in x's shape and dtype; arguments and errors as `quantise`."""
    x = as_floats(x)
    return dequantise(*quantise(x, rule, mode, nonfinite, seed), dtype=x.dtype)


def pack_nibbles(codes: npt.ArrayLike) -> Array:
    """Two E2M1 codes a byte: codes [..., 2 n] to bytes (uint8) [..., n], element 2 i in the low nibble.

    Raises:
        BadInput: when the last axis is odd or a code exceeds 15.
    """
    codes = np.asarray(codes)
    expect(codes.ndim > 0 and codes.shape[-1] % 2 == 0, "codes to pack", "an even last axis", f"shape {codes.shape}")
    expect(codes.size == 0 or int(codes.max()) <= 0xF, "codes to pack", "4-bit codes, at most 15", "a larger one")
    codes = codes.astype(np.uint8, copy=False)
    return np.asarray(codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4)))


def unpack_nibbles(packed: npt.ArrayLike) -> Array:
    """The inverse of `pack_nibbles`: bytes [..., n] to codes (uint8) [..., 2 n]."""
    packed = np.asarray(packed, np.uint8)
    expect(packed.ndim > 0, "bytes to unpack", "at least one axis", "a scalar")
    pairs = np.stack([packed & np.uint8(0xF), packed >> np.uint8(4)], axis=-1)
    return pairs.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


@dataclass(frozen=True)
class MxFormat:
    """MXFP4 with its options fixed, in the shape of a `FloatFormat` so that a `Rounder` can hold either.

    Args:
        rule: the scale rule.
        nonfinite: what a NaN becomes, see `quantise`.
    """

    name: str = "mxfp4"
    rule: str = "even"
    nonfinite: str = "zero"
    saturates: bool = True

    def __post_init__(self) -> None:
        _check_rule(self.rule)

    @property
    def max(self) -> float:
        """Infinity: where a block saturates depends on the block."""
        return float("inf")

    @property
    def smallest(self) -> float:
        """Smallest positive value that any block can hold."""
        return E2M1.smallest * 2.0 ** ((1 if self.rule == "even" else 0) - E8M0.bias)

    def round(self, x: npt.ArrayLike, mode: str = "nearest", seed: int = 0) -> Array:
        """`x` ([..., n], n a multiple of 32) quantised and dequantised, in x's shape and dtype."""
        return round(x, self.rule, mode, self.nonfinite, seed)

    def ulp(self, x: npt.ArrayLike) -> Array:
        """E2M1's spacing at |x| / scale times the scale of x's own block, float64 in x's shape."""
        x = _as_blocked(x)
        scale = _spread(block_scale(x, self.rule))
        return E2M1.ulp(widen(x) / scale) * scale


def _spread(scales: Array) -> Array:
    """E8M0 codes [..., n / 32] as float64 scales [..., n], one for each value.

    float64 keeps x / scale exact where float32 would flush or round it (scales down to 2^-127).
    """
    return np.repeat(E8M0.decode(scales).astype(np.float64), BLOCK, axis=-1)


def _as_blocked(x: npt.ArrayLike) -> Array:
    x = as_floats(x)
    expect(
        x.ndim > 0 and x.shape[-1] % BLOCK == 0,
        "values for mxfp4",
        f"a last axis that is a multiple of {BLOCK}",
        f"shape {x.shape}",
        "pad it with zeros",
    )
    return x


def _check_rule(rule: str) -> None:
    expect(rule in RULES, "scale rule", f"one of {', '.join(RULES)}", repr(rule))


MXFP4 = MxFormat()
