"""Every float32 input of the hardware functions: NumPy model against torch version, and both against the mathematics.

All 2^32 inputs of a function take some five minutes of one core:

    python -m tests.hardware.sweep_approx                          # all functions, all inputs
    python -m tests.hardware.sweep_approx --shards 8 --shard 3     # the fourth eighth
    python -m tests.hardware.sweep_approx --functions rsq --device cuda
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray

from k3lab.hardware import approx, approx_torch

F32 = NDArray[np.float32]

ALL_INPUTS = 1 << 32
CHUNK = 1 << 22  # divides the sign's half of the inputs: a chunk has one sign
SAMPLES = 4  # inputs of a chunk checked in exact arithmetic
SMALLEST_NORMAL = Fraction(1, 2**126)


@dataclass(frozen=True)
class Function:
    """A hardware function's two implementations and its definition in exact arithmetic."""

    name: str
    numpy: Callable[[F32], F32]
    torch: Callable[[torch.Tensor], torch.Tensor]
    exact: Callable[[float], float]
    falls: bool  # decreasing in x


def nearest_f32(value: Fraction) -> float:
    """The float32 nearest to a fraction, ties to even, by the definition; +-infinity from 2^128 - 2^103 on."""
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(magnitude / unit) * unit  # Fraction rounds half to even
    return math.copysign(math.inf if rounded >= 2**128 else float(rounded), value)


def exact_exp2(x: float) -> float:
    """2^x by 60 decimal digits; 0 below 2^-126."""
    if math.isnan(x) or x >= 128:
        return x + math.inf
    if x < -126:
        return 0.0
    with localcontext() as context:
        context.prec = 60
        return nearest_f32(Fraction(Decimal(2) ** Decimal(x)))


def exact_rsq(x: float) -> float:
    """1 / sqrt(x) by an integer square root of 60 decimal digits."""
    if abs(x) < SMALLEST_NORMAL:
        return math.copysign(math.inf, x)
    if math.isnan(x) or x < 0:
        return math.nan
    if x == math.inf:
        return 0.0
    return nearest_f32(Fraction(math.isqrt(int(10**200 / Fraction(x))), 10**100))


def exact_rcp(x: float) -> float:
    """1 / x as a fraction, flushed at both ends."""
    if math.isnan(x):
        return x
    if abs(x) < SMALLEST_NORMAL:
        return math.copysign(math.inf, x)
    if math.isinf(x) or abs(1 / Fraction(x)) < SMALLEST_NORMAL:
        return math.copysign(0.0, x)
    return nearest_f32(1 / Fraction(x))


FUNCTIONS = {
    "exp2": Function("exp2", approx.exp2, approx_torch.exp2_on_device, exact_exp2, falls=False),
    "rsq": Function("rsq", approx.rsq, approx_torch.rsq_on_device, exact_rsq, falls=True),
    "rcp": Function("rcp", approx.rcp, approx_torch.rcp_on_device, exact_rcp, falls=True),
}


def same(x: F32, y: F32) -> NDArray[np.bool_]:
    """Equal bits, or both NaN."""
    return (x.view(np.uint32) == y.view(np.uint32)) | (np.isnan(x) & np.isnan(y))


def check_exactly(function: Function, x: F32, result: F32) -> None:
    """Assert that every result is the one its definition rounds to."""
    expected = np.array([function.exact(value) for value in x.tolist()], np.float32)
    wrong = ~same(result, expected)
    assert not wrong.any(), f"{function.name}({x[wrong][:4]}) = {result[wrong][:4]}, not {expected[wrong][:4]}"


def check_monotonic(function: Function, x: F32, result: F32) -> None:
    """Assert that results follow ascending bits of one sign: a bigger pattern of a negative is a smaller number."""
    number = ~np.isnan(result)
    steps = np.sign(np.subtract(result[number][1:], result[number][:-1], dtype=np.float64))
    falls = function.falls != bool(np.signbit(x[0]))
    assert not (steps == (1 if falls else -1)).any(), f"{function.name} is not monotonic near {x[0]}"


def sweep(function: Function, start: int, stop: int, stride: int = 1, device: str = "cpu") -> None:
    """Check the inputs whose bits are range(start, stop, stride), chunk by chunk."""
    rng = np.random.default_rng(start)
    for first in range(start, stop, CHUNK * stride):
        bits = np.arange(first, min(first + CHUNK * stride, stop), stride, dtype=np.uint32)
        for x in (part for part in (bits[bits < 1 << 31], bits[bits >= 1 << 31]) if part.size):
            _check_chunk(function, x.view(np.float32), rng, device)


def _check_chunk(function: Function, x: F32, rng: np.random.Generator, device: str) -> None:
    result = function.numpy(x)
    on_device = function.torch(torch.from_numpy(x).to(device)).cpu().numpy()
    differs = ~same(result, on_device)
    assert not differs.any(), f"{function.name}: NumPy and torch differ at {x[differs][:4]}"
    with np.errstate(invalid="ignore"):
        check_monotonic(function, x, result)
    sample = rng.integers(0, x.size, SAMPLES)
    check_exactly(function, x[sample], result[sample])


def main() -> None:
    """Sweep one shard of all inputs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=1, help="equal parts that the inputs are cut into")
    parser.add_argument("--shard", type=int, default=0, help="the part to sweep, from 0")
    parser.add_argument("--functions", nargs="+", choices=FUNCTIONS, default=list(FUNCTIONS))
    parser.add_argument("--device", default="cpu", help="where the torch version runs")
    options = parser.parse_args()
    start, stop = (ALL_INPUTS * part // options.shards for part in (options.shard, options.shard + 1))
    for name in options.functions:
        sweep(FUNCTIONS[name], start, stop, device=options.device)
        print(f"{name}: inputs {start:#010x} to {stop - 1:#010x} agree")


if __name__ == "__main__":
    main()
