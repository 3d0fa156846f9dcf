"""The hardware functions: correctly rounded everywhere, the same on NumPy and torch, flushed as documented."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch

from k3lab.errors import BadInput
from k3lab.hardware import approx, approx_torch
from tests.hardware.sweep_approx import ALL_INPUTS, FUNCTIONS, Function, check_exactly, same, sweep

INF, NAN = math.inf, math.nan
SUBNORMAL = float(np.float32(2.0**-127))
functions = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=list(FUNCTIONS))


def f32(*values: float) -> approx.F32:
    return np.array(values, np.float32)


SPECIALS = {
    "exp2": [
        (0.0, 1.0), (-0.0, 1.0), (SUBNORMAL, 1.0), (-SUBNORMAL, 1.0), (1e-45, 1.0), (1.0, 2.0), (-126.0, 2.0**-126),
        (np.nextafter(np.float32(-126), np.float32(-INF)), 0.0), (-127.0, 0.0), (-149.0, 0.0), (-1e30, 0.0),
        (-INF, 0.0), (127.0, 2.0**127), (128.0, INF), (1e30, INF), (INF, INF), (NAN, NAN),
    ],
    "rsq": [
        (0.0, INF), (-0.0, -INF), (SUBNORMAL, INF), (-SUBNORMAL, -INF), (2.0**-126, 2.0**63), (4.0, 0.5),
        (-1.0, NAN), (-(2.0**-126), NAN), (-INF, NAN), (INF, 0.0), (NAN, NAN),
    ],
    "rcp": [
        (0.0, INF), (-0.0, -INF), (SUBNORMAL, INF), (-SUBNORMAL, -INF), (2.0**126, 2.0**-126), (-4.0, -0.25),
        (2.0**126 * (1 + 2.0**-23), 0.0), (-(2.0**127), -0.0), (2.0**-126, 2.0**126), (INF, 0.0), (-INF, -0.0),
        (NAN, NAN),
    ],
}  # fmt: skip


@functions
def test_specials(function: Function) -> None:
    x, expected = (f32(*column) for column in zip(*SPECIALS[function.name], strict=True))
    assert same(function.numpy(x), expected).all()
    assert same(function.torch(torch.from_numpy(x)).numpy(), expected).all()


@functions
def test_random_inputs_are_correctly_rounded(function: Function) -> None:
    bits = np.random.default_rng(0).integers(0, ALL_INPUTS, 2000, dtype=np.uint32)
    x = np.concatenate([bits.view(np.float32), np.random.default_rng(1).normal(0, 30, 2000).astype(np.float32)])
    check_exactly(function, x, function.numpy(x))


@functions
def test_the_hardest_of_many_inputs_are_correctly_rounded(function: Function) -> None:
    """Of 2^20 inputs, those whose float64 value comes nearest to a float32 midpoint."""
    x = np.random.default_rng(2).uniform(1, 4, 1 << 20).astype(np.float32)
    wide = {"exp2": np.exp2, "rsq": lambda v: 1 / np.sqrt(v), "rcp": np.reciprocal}[function.name](x.astype(np.float64))
    distance = np.abs((wide.view(np.int64) & approx.TAIL) - approx.MIDPOINT)
    hardest = x[np.argpartition(distance, 300)[:300]]
    check_exactly(function, hardest, function.numpy(hardest))


def test_exp2_beside_constructed_midpoints() -> None:
    """Near 0 the inputs are finer than the results: log2 of a midpoint, rounded, maps within some 2^-50 of it."""
    odd = np.arange(1, 400, 2)
    midpoints = np.concatenate([1 + odd * 2.0**-24, 1 - odd * 2.0**-25])
    x = np.log2(midpoints).astype(np.float32)
    x = np.concatenate([x, np.nextafter(x, f32(INF)), np.nextafter(x, f32(-INF))])
    check_exactly(FUNCTIONS["exp2"], x, approx.exp2(x))


@pytest.mark.parametrize("name", ["exp2", "rsq"])
def test_exact_decisions_agree_with_float64_where_that_is_safe(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(3).uniform(1, 4, 1 << 16).astype(np.float32)
    function = FUNCTIONS[name]
    ordinary = function.numpy(x)
    monkeypatch.setattr(approx, "SLACK", 1 << 22)  # sends about 1 in 64 inputs to exact arithmetic
    assert same(function.numpy(x), ordinary).all()
    assert same(function.torch(torch.from_numpy(x)).numpy(), ordinary).all()


def test_rsq_of_every_significand_is_nearest() -> None:
    """Scaling by 4 only shifts rsq, so the binades [1, 4) stand for all; every fourth significand here."""
    x = np.arange(0x3F800000, 0x40800000, 4, dtype=np.uint32).view(np.float32)
    result = approx.rsq(x)
    half_ulp = np.spacing(result).astype(np.float64) / 2
    wide, wide_x = result.astype(np.float64), x.astype(np.float64)

    def excess(bound: np.ndarray) -> np.ndarray:
        """The sign of bound^2 x - 1; the square has 50 bits, so each half times x is exact."""
        square = bound * bound
        high = square.astype(np.float32).astype(np.float64)
        return (high * wide_x - 1) + (square - high) * wide_x

    assert (excess(wide + half_ulp) > 0).all()
    below = np.where(result == 1, half_ulp / 2, half_ulp)  # 1 has its lower neighbour at half the distance
    assert (excess(wide - below) < 0).all()


@functions
def test_numpy_and_torch_agree_on_strided_inputs(function: Function) -> None:
    sweep(function, 0, ALL_INPUTS, stride=4093)


@functions
def test_numpy_and_torch_agree_around_every_special_input(function: Function) -> None:
    for bits in (0, 0x00800000, 0x3F800000, 0x43000000, 0x7E800000, 0x7F800000):
        for sign in (0, 1 << 31):
            sweep(function, max(bits + sign - 2000, 0), bits + sign + 2000)


@pytest.mark.slow
@functions
def test_numpy_and_torch_agree_densely(function: Function) -> None:
    sweep(function, 0, ALL_INPUTS, stride=61)


@pytest.mark.gpu
@functions
def test_a_gpu_agrees(function: Function) -> None:
    sweep(function, 0, ALL_INPUTS, stride=61, device="cuda")


def test_cpu_tensors_pass_through_numpy_and_shapes_stay() -> None:
    x = torch.linspace(-3, 3, 24).reshape(2, 3, 4)
    for of_tensor, of_array in (
        (approx_torch.exp2, approx.exp2),
        (approx_torch.rsq, approx.rsq),
        (approx_torch.rcp, approx.rcp),
    ):
        assert same(of_tensor(x).numpy(), of_array(x.numpy())).all()
        assert of_tensor(x.mT).shape == (2, 4, 3)
        assert of_tensor(torch.tensor(2.0)).shape == ()
        assert of_tensor(x[:0]).shape == (0, 3, 4)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(BadInput, match="float32"):
        approx.exp2(np.zeros(3))
    with pytest.raises(BadInput, match="float32"):
        approx_torch.rsq(torch.zeros(3, dtype=torch.float64))


def test_a_million_ordinary_values_take_milliseconds() -> None:
    """40 ms is the aim; the bound leaves room for a busy machine."""
    x = np.random.default_rng(4).normal(0, 10, 10**6).astype(np.float32)
    for function in (approx.exp2, approx.rsq, approx.rcp):
        started = time.perf_counter()
        function(np.abs(x))
        assert time.perf_counter() - started < 0.4
