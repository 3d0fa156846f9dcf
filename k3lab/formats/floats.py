"""Narrow floating-point formats, bit by bit.

A format is described by its field widths, its bias and its special codes; everything else (the largest value, the
ladder of values, the spacing) follows from those. Layouts: IEEE 754-2019 for fp16 and fp32; OCP 8-bit Floating Point
Specification (OFP8) v1.0 for e4m3 and e5m2; OCP Microscaling Formats (MX) v1.0 for E2M1 and E8M0; the FNUZ variant as
the gfx940 / gfx942 instruction set has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from k3lab.errors import expect
from k3lab.formats import bf16
from k3lab.formats.rounding import Array, as_floats, check_mode, magnitude_codes, widen

NAN_STEPS = int(np.iinfo(np.int64).max)
"""What `steps_between` says of a NaN and a number: no count of steps joins them."""


@dataclass(frozen=True)
class FloatFormat:
    """A binary float format: sign, `exp_bits`, `man_bits`, most significant first.

    Args:
        name: the format's name in k3lab.
        exp_bits: width of the exponent field.
        man_bits: width of the mantissa field.
        bias: a normal is 2^(field - bias) * 1.mantissa, a subnormal 2^(1 - bias) * 0.mantissa.
        max_code: magnitude code of the largest finite value.
        inf_code: magnitude code of infinity, None where the format has none. Magnitude codes above the largest
            number (or infinity) are NaN.
        nan_code: code that `encode` gives for NaN (the sign bit is kept where zero has one too); None where the
            format has no NaN, which then becomes +0.
        saturates: overflow and infinity become the largest value; otherwise overflow becomes infinity.
        signed_zero: False: the code of -0 is the format's NaN (FNUZ), and -0 becomes +0.
    """

    name: str
    exp_bits: int
    man_bits: int
    bias: int
    max_code: int
    inf_code: int | None = None
    nan_code: int | None = None
    saturates: bool = True
    signed_zero: bool = True

    # -- derived constants ---------------------------------------------------------------------------------------

    @property
    def bits(self) -> int:
        """Width of a code in bits."""
        return 1 + self.exp_bits + self.man_bits

    @property
    def code_dtype(self) -> np.dtype[np.unsignedinteger]:
        """Smallest unsigned dtype that holds a code."""
        return np.dtype(np.uint8 if self.bits <= 8 else np.uint16 if self.bits <= 16 else np.uint32)

    @property
    def sign_bit(self) -> int:
        """The code of -0: the sign bit alone."""
        return 1 << (self.bits - 1)

    @property
    def has_inf(self) -> bool:
        """Whether the format has infinities."""
        return self.inf_code is not None

    @property
    def top_code(self) -> int:
        """Magnitude code of the top of the ladder: infinity, or the largest value where there is none."""
        return self.max_code if self.inf_code is None else self.inf_code

    @cached_property
    def max(self) -> float:
        """Largest finite value."""
        return float(self._values(np.array([self.max_code]))[0])

    @property
    def smallest_normal(self) -> float:
        """Smallest positive value with a full mantissa."""
        return 2.0 ** (1 - self.bias)

    @property
    def smallest(self) -> float:
        """Smallest positive value (a subnormal)."""
        return 2.0 ** (1 - self.bias - self.man_bits)

    # -- values to codes and back --------------------------------------------------------------------------------

    def encode(self, x: npt.ArrayLike, mode: str = "nearest", seed: int = 0) -> Array:
        """Round `x` (float32 or float64, any shape) to codes, once, straight from its own dtype.

        `nearest` breaks ties to the even code. `zero` drops the rest, and its overflow is the largest value, never
        infinity (IEEE 754). `stochastic` rounds up with the probability of the dropped fraction; a seed and a shape
        decide every draw. In a saturating format |x| is clamped to `max` first, infinity included, so e4m3 has no
        NaN from overflow: this is the quantiser's rule here, not that of every library. Subnormals are kept.

        Raises:
            BadInput: for another dtype, mode or a negative seed.
        """
        x = as_floats(x)
        check_mode(mode)
        if x.dtype == np.float32 and self.bits <= 8 and mode != "stochastic":
            return np.asarray(_codes_of_upper_halves(self, mode)[bf16.bf16_odd(x)])
        return self._encode(x, mode, seed)

    def _encode(self, x: Array, mode: str, seed: int) -> Array:
        """`encode` by integer arithmetic, for every dtype and mode."""
        codes = self._clip(magnitude_codes(x, self.man_bits, self.bias, mode, seed), x, mode)
        negative = np.signbit(x)
        if not self.signed_zero:
            negative = negative & (codes != 0)
        codes = np.where(negative, codes | codes.dtype.type(self.sign_bit), codes)
        return self._put_nan(codes, x)

    def decode(self, codes: npt.ArrayLike) -> Array:
        """The float32 values of `codes` (integers, any shape), exactly.

        Raises:
            BadInput: when a code does not fit the format's width.
        """
        codes = np.asarray(codes)
        self._check_codes(codes)
        return np.asarray(self._table[codes])

    def round(self, x: npt.ArrayLike, mode: str = "nearest", seed: int = 0) -> Array:
        """`x` rounded to the format and widened again, exactly, to x's own dtype (float32 or float64)."""
        x = as_floats(x)
        return np.asarray(self.decode(self.encode(x, mode, seed)).astype(x.dtype, copy=False))

    def codes(self) -> Array:
        """Every code of the format in ascending order.

        Raises:
            BadInput: for fp32, whose 2^32 codes are no array to ask for lightly.
        """
        expect(self.bits <= 16, f"all codes of {self.name}", "a format of at most 16 bits", f"{self.bits} bits")
        return np.arange(1 << self.bits).astype(self.code_dtype)

    # -- the ladder of values ------------------------------------------------------------------------------------

    def ulp(self, x: npt.ArrayLike) -> Array:
        """Spacing of the format in the binade that holds |x|, as float64.

        Below the smallest normal it is the subnormal spacing, beyond `max` the top one; NaN for NaN.
        """
        magnitude = np.abs(widen(x))
        _, exponent = np.frexp(np.clip(magnitude, self.smallest_normal, self.max))
        return np.where(np.isnan(magnitude), np.nan, np.ldexp(1.0, exponent - 1 - self.man_bits))

    def step(self, x: npt.ArrayLike, n: npt.ArrayLike) -> Array:
        """The value `n` steps up the ladder from `x` (rounded to the format first), in x's dtype.

        `n` may be negative and is broadcast against x. Both zeros are one rung; a result of zero keeps x's sign.
        The ladder ends at infinity, or at the largest value where there is none. NaN stays NaN.
        """
        x = as_floats(x)
        rung = np.clip(self._rung(x) + np.asarray(n, np.int64), -self.top_code, self.top_code)
        magnitude = self.decode(np.abs(rung).astype(self.code_dtype)).astype(x.dtype)
        negative = (rung < 0) | ((rung == 0) & np.signbit(x))
        return np.where(np.isnan(x), x, np.where(negative & self._may_negate(rung), -magnitude, magnitude))

    def neighbours(self, x: npt.ArrayLike, n: int = 1) -> Array:
        """The ladder around `x`: shape [2 n + 1, *x.shape], from n steps below to n steps above."""
        return np.stack([self.step(x, k) for k in range(-n, n + 1)])

    def steps_between(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Array:
        """Signed count of steps from `a` up to `b` (int64), both rounded to the format first: the ulp distance.

        +0 and -0 are 0 steps apart, as are two NaNs; a NaN and a number are `NAN_STEPS` apart.
        """
        a, b = as_floats(a), as_floats(b)
        steps = self._rung(b) - self._rung(a)
        a_nan, b_nan = np.isnan(a), np.isnan(b)
        return np.where(a_nan & b_nan, 0, np.where(a_nan | b_nan, NAN_STEPS, steps))

    # -- helpers -------------------------------------------------------------------------------------------------

    @cached_property
    def _table(self) -> Array:
        """float32 value of every code, shape [2^bits]."""
        codes = np.arange(1 << self.bits)
        magnitude = codes & (self.sign_bit - 1)
        values = self._values(magnitude)
        values = np.where(codes & self.sign_bit, -values, values)
        if not self.signed_zero:
            values[self.sign_bit] = np.nan
        return values.astype(np.float32)

    def _values(self, magnitude: Array) -> Array:
        """float64 values of magnitude codes (no sign bit)."""
        field, mantissa = magnitude >> self.man_bits, magnitude & ((1 << self.man_bits) - 1)
        hidden = (field > 0).astype(np.int64) << self.man_bits
        values = np.ldexp((hidden | mantissa).astype(np.float64), np.maximum(field, 1) - self.bias - self.man_bits)
        if self.has_inf:
            values = np.where(magnitude == self.inf_code, np.inf, values)
        return np.where(magnitude > self.top_code, np.nan, values)

    def _clip(self, codes: Array, x: Array, mode: str) -> Array:
        """Overflowed magnitude codes brought back to the largest value or to infinity."""
        if self.inf_code is None:
            return np.minimum(codes, self.max_code).astype(self.code_dtype)
        limit = self.max_code if mode == "zero" else self.inf_code
        codes = np.minimum(codes, limit).astype(self.code_dtype)
        return np.where(np.isinf(x), self.code_dtype.type(self.inf_code), codes)

    def _put_nan(self, codes: Array, x: Array) -> Array:
        """`codes` with the format's NaN (or +0 where it has none) wherever x is NaN."""
        nan = np.isnan(x)
        if not nan.any():
            return codes
        if self.nan_code is None:
            return np.where(nan, codes.dtype.type(0), codes)
        signs = np.signbit(x) if self.signed_zero else np.zeros_like(nan)
        nan_codes = np.where(signs, self.nan_code | self.sign_bit, self.nan_code).astype(codes.dtype)
        return np.where(nan, nan_codes, codes)

    def _rung(self, x: Array) -> Array:
        """Place of x on the ladder of values, int64: 0 for both zeros, negative below."""
        codes = self.encode(x).astype(np.int64)
        magnitude = codes & (self.sign_bit - 1)
        return np.where(codes & self.sign_bit, -magnitude, magnitude)

    def _may_negate(self, rung: Array) -> Array:
        """Where a negative result exists: everywhere, but for the missing -0 of FNUZ."""
        return np.asarray((rung != 0) | self.signed_zero)

    def _check_codes(self, codes: Array) -> None:
        expect(codes.dtype.kind in "iu", f"{self.name} codes", "an integer array", codes.dtype)
        if codes.size and np.iinfo(codes.dtype).max >= 1 << self.bits:
            expect(
                codes.min() >= 0 and codes.max() < 1 << self.bits,
                f"{self.name} codes",
                f"integers in [0, {(1 << self.bits) - 1}]",
                f"values from {codes.min()} to {codes.max()}",
            )


class Bfloat16(FloatFormat):
    """bf16, the upper half of a float32: float32 input takes the short way of `k3lab.formats.bf16`."""

    def encode(self, x: npt.ArrayLike, mode: str = "nearest", seed: int = 0) -> Array:
        x = as_floats(x)
        if x.dtype == np.float32 and mode == "nearest":
            return bf16.bf16_bits(x)
        return super().encode(x, mode, seed)

    def decode(self, codes: npt.ArrayLike) -> Array:
        codes = np.asarray(codes)
        self._check_codes(codes)
        return bf16.bf16_values(codes.astype(np.uint16, copy=False))


class Float32(FloatFormat):
    """fp32: rounding a float32 changes no bit, NaN payloads included."""

    def encode(self, x: npt.ArrayLike, mode: str = "nearest", seed: int = 0) -> Array:
        x = as_floats(x)
        check_mode(mode)
        if x.dtype == np.float32:
            return np.ascontiguousarray(x).view(np.uint32).reshape(x.shape).copy()
        return super().encode(x, mode, seed)

    def decode(self, codes: npt.ArrayLike) -> Array:
        codes = np.asarray(codes)
        self._check_codes(codes)
        return np.ascontiguousarray(codes.astype(np.uint32)).view(np.float32).reshape(codes.shape)


class PowerOfTwo(FloatFormat):
    """E8M0: code e stands for 2^(e - 127), 255 for NaN (OCP MX v1.0, 5.4.1). No sign, no zero, no infinity.

    What has no code is decided here: zero and everything tiny saturate to code 0, overflow and infinity to 254;
    negative numbers become NaN, -0 counts as zero. Ties (1.5 times a power of two) go to the even code.
    """

    @property
    def bits(self) -> int:
        return self.exp_bits

    @property
    def smallest_normal(self) -> float:
        return 2.0**-self.bias

    @property
    def smallest(self) -> float:
        return 2.0**-self.bias

    def _encode(self, x: Array, mode: str, seed: int) -> Array:
        # Two binades lower, 2^-127 is a normal like any other (in float64, not in float32: hence the widening), and
        # two codes less keep even codes even.
        codes = magnitude_codes(widen(x), 0, self.bias + 2, mode, seed) - 2
        codes = np.clip(codes, 0, self.max_code).astype(np.uint8)
        return np.where(np.isnan(x) | (x < 0), np.uint8(self.nan_code or 0), codes)

    def step(self, x: npt.ArrayLike, n: npt.ArrayLike) -> Array:
        x = as_floats(x)
        rung = np.clip(self._rung(x) + np.asarray(n, np.int64), 0, self.max_code)
        return np.where(np.isnan(x) | (x < 0), x.dtype.type(np.nan), self.decode(rung).astype(x.dtype))

    @cached_property
    def _table(self) -> Array:
        return self._values(np.arange(1 << self.bits)).astype(np.float32)

    def _values(self, magnitude: Array) -> Array:
        return np.where(magnitude > self.max_code, np.nan, np.ldexp(1.0, magnitude - self.bias))

    def _rung(self, x: Array) -> Array:
        return self.encode(x).astype(np.int64)


@cache
def _codes_of_upper_halves(fmt: FloatFormat, mode: str) -> Array:
    """The code of `fmt` for each float32 that `bf16_odd` can give: a short way to 8 bits, shape [2^16]."""
    return fmt._encode(bf16.bf16_values(np.arange(1 << 16).astype(np.uint16)), mode, 0)


BF16 = Bfloat16("bf16", 8, 7, 127, max_code=0x7F7F, inf_code=0x7F80, nan_code=0x7FC0, saturates=False)
FP16 = FloatFormat("fp16", 5, 10, 15, max_code=0x7BFF, inf_code=0x7C00, nan_code=0x7E00, saturates=False)
FP32 = Float32("fp32", 8, 23, 127, max_code=0x7F7FFFFF, inf_code=0x7F800000, nan_code=0x7FC00000, saturates=False)
FP8_E4M3 = FloatFormat("fp8_e4m3", 4, 3, 7, max_code=0x7E, nan_code=0x7F)
FP8_E4M3FNUZ = FloatFormat("fp8_e4m3fnuz", 4, 3, 8, max_code=0x7F, nan_code=0x80, signed_zero=False)
FP8_E5M2 = FloatFormat("fp8_e5m2", 5, 2, 15, max_code=0x7B, inf_code=0x7C, nan_code=0x7E, saturates=False)
E2M1 = FloatFormat("e2m1", 2, 1, 1, max_code=0x7)
E8M0 = PowerOfTwo("e8m0", 8, 0, 127, max_code=0xFE, nan_code=0xFF)
