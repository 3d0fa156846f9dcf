"""The GEMV twin: K dealt to waves and MFMAs as the kernel deals it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from k3lab.arith import KernelOrder, Oracle, TorchOrder
from k3lab.arith.plans import G1, GEMV
from k3lab.errors import BadInput


def bf16(*shape, seed=0, scale=1.0) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale).bfloat16().float()


def to_fp32(exact: Fraction) -> np.float32:
    """Nearest fp32, ties to even, of a fraction in the normal range."""
    if exact == 0:
        return np.float32(0)
    exponent = 0
    while abs(exact) / Fraction(2) ** exponent >= 2:
        exponent += 1
    while abs(exact) / Fraction(2) ** exponent < 1:
        exponent -= 1
    unit = Fraction(2) ** (exponent - 23)
    return np.float32(float(round(exact / unit) * unit))  # Fraction rounds ties to even


def slow_gemv(x: np.ndarray, w: np.ndarray) -> np.float32:
    """One output of a GEMV task, MFMA by MFMA, in fractions: the spec's text once more, with no tensors."""
    chunks = len(x) // 128
    rounds = -(-chunks // 8)
    total = np.float32(0.0)
    for wave in range(8):
        acc = np.float32(0.0)
        for chunk in (wave + 8 * r for r in range(rounds)):
            for quad in range(4) if chunk < chunks else ():
                cols = range(128 * chunk + 32 * quad, 128 * chunk + 32 * quad + 32)
                acc = to_fp32(Fraction(float(acc)) + sum(Fraction(float(x[c])) * Fraction(float(w[c])) for c in cols))
        total = np.float32(total + acc)
    return total


@pytest.mark.parametrize("k", [1024, 1280])
def test_kernel_order_equals_a_scalar_walk(k):
    x, w = bf16(2, k, seed=1), bf16(3, k, seed=2)
    got = KernelOrder("k1").matmul(x, w, GEMV)
    for s in range(2):
        for n in range(3):
            assert got[s, n].item() == slow_gemv(x[s].numpy(), w[n].numpy())


def test_orders_agree_to_fp32_accuracy():
    x, w = bf16(4, 2048, seed=3), bf16(48, 2048, seed=4)
    want = Oracle("k1").matmul(x.double(), w.double(), GEMV)
    scale = x.double().abs() @ w.double().abs().T
    for arith in (KernelOrder("k1"), TorchOrder("k1")):
        # At most n - 1 additions, each off by 2^-24 of a partial sum no larger than sum |x w|.
        assert ((arith.matmul(x, w, GEMV).double() - want).abs() <= 2048 * 2.0**-24 * scale).all()


def test_an_infinity_in_the_clamped_chunk_poisons():
    """K 1280 = 10 chunks: waves 2 .. 7 multiply chunk 9 by zero in the second round, and 0 x inf is NaN."""
    x, w = bf16(1, 1280), bf16(2, 1280)
    w[1, -1] = torch.inf
    x[0, -1] = 1.0
    got = KernelOrder("k1").matmul(x, w, GEMV)
    assert got[0, 0].isfinite() and got[0, 1].isnan()
    assert TorchOrder("k1").matmul(x, w, GEMV)[0, 1] == torch.inf


def test_g1_puts_a_lanes_columns_together():
    """MFMA q takes columns 32 g + 8 q + e in slot 8 g + e: told apart by products that cancel only within one MFMA."""
    x, w = torch.zeros(1, 128), torch.zeros(1, 128)
    x[0, [0, 32, 8]] = 1.0
    w[0, [0, 32]] = torch.tensor([2.0**30, -(2.0**30)])  # both in MFMA 0: cancel exactly there
    w[0, 8] = 1.0  # MFMA 1
    assert KernelOrder("k1").matmul(x, w, G1).item() == 1.0
    w[0, 1], x[0, 1] = 2.0**-20, 1.0  # MFMA 0 too: survives beside +-2^30 only because the sum is exact
    assert KernelOrder("k1").matmul(x, w, G1).item() == 1.0 + 2.0**-20


def test_an_unknown_model_is_refused():
    with pytest.raises(BadInput, match="MFMA model: expected one of fused"):
        KernelOrder("k1", "nosuch")
