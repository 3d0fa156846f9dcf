"""Narrow formats and the scaled matrix instruction, against k3lab.formats."""

from __future__ import annotations

import numpy as np
import pytest

from k3lab.formats import E2M1, E8M0, FP8_E4M3, bf16_bits, bf16_pack, bf16_values, mx

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from k3lab.device import peers
from tests.device.micro import agree, floats, run, words

F32 = np.float32


def test_fp8_saturates_and_keeps_nans():
    a = (np.random.default_rng(1).standard_normal((4, 64)) * 100).astype(F32)
    a[0, :10] = [448, 464, 465, np.inf, -np.inf, -1e30, 2.0**-10, 3 * 2.0**-10, -0.0, 0.0625]
    a[2, 5] = np.nan
    got = run("fp8", a, 1)[0].view(np.uint8).reshape(64, 4).T
    number = ~np.isnan(a)
    assert (got[number] == FP8_E4M3.encode(np.clip(a, -448, 448))[number]).all()
    assert got[2, 5] & 0x7F == 0x7F


def test_mxfp4_blocks():
    """Scales by the `even` rule, elements as the format rounds them; zeros, tiny and huge blocks, NaN and infinity."""
    x = floats(2, 64, 32)
    x[0], x[1], x[2] = 0.0, x[1] * F32(1e30), x[2] * F32(1e-30)
    x = bf16_values(bf16_bits(x))
    x[3, :4] = [1.75, -0.25, 0.75, 3.5]
    for row, first in enumerate((0x7FC0, 0x7F80, 0xFF80, 0x7FDF, 0x7FE0), start=4):  # 0x7FE0 rolls over to code 1
        x[row, :2] = bf16_values(np.array([first, 0x3F80], np.uint16))
    out = run("mxfp4", bf16_pack(x).view(np.int32).T, 5)
    expected, scales = mx.quantise(x)
    agree(out[:1], [scales[:, 0].astype(np.int32)])
    packed = np.ascontiguousarray(out[1:].T).view(np.uint8)
    assert (np.stack([packed & 15, packed >> 4], axis=-1).reshape(64, 32) == expected).all()


def test_scaled_product_is_exact_where_float32_is():
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, (2, 16, 128)).astype(np.uint8)
    exponents = rng.integers(125, 130, (2, 16, 4)).astype(np.int32)
    packed = np.ascontiguousarray(codes[..., ::2] | codes[..., 1::2] << 4).view(np.int32)
    out = run("scaled_product", np.concatenate([packed.ravel(), exponents.ravel()]), 4).view(F32).reshape(16, 16)
    values = E2M1.decode(codes).astype(np.float64) * np.repeat(E8M0.decode(exponents.astype(np.uint8)), 32, axis=2)
    assert (out == values[0] @ values[1].T).all()


def test_only_the_sentinel_is_disarmed():
    row = words(4, 64)
    row[:3] = [peers.SENTINEL, peers.DISARMED, 0x7FFF7FFF]
    agree(run("disarming", row, 1), [np.where(row == -1, peers.DISARMED, row)])
