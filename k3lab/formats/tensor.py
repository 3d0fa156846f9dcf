"""The same formats on torch tensors: a thin layer, the only module of the package that imports torch.

CPU tensors are read as NumPy views without a copy; tensors of other devices go to the CPU and back, but for
bf16, whose rounding and bit moves are plain torch operations that give the same bits everywhere.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from k3lab.errors import expect
from k3lab.formats import mx
from k3lab.formats.rounder import Rounder
from k3lab.formats.rounding import Array


def round_tensor(rounder: Rounder, x: Tensor) -> Tensor:
    """`x` (float32 or float64, any device) rounded by `rounder`: same shape, dtype and device, no gradient.

    Raises:
        BadInput: for another dtype, or whatever the rounder refuses.
    """
    if x.device.type != "cpu" and x.dtype == torch.float32 and (rounder.format_name, rounder.mode) == _BF16_NEAREST:
        return bf16_values(bf16_round(x))
    return torch.from_numpy(rounder.round(as_array(x))).to(x.device)


def ulp_tensor(rounder: Rounder, x: Tensor) -> Tensor:
    """Spacing of the rounder's format at |x|: float64, x's shape and device."""
    return torch.from_numpy(rounder.ulp(as_array(x))).to(x.device)


def as_array(x: Tensor) -> Array:
    """A float32 or float64 tensor as a NumPy array: a view on the CPU, a copy from elsewhere.

    Raises:
        BadInput: for another dtype.
    """
    expect(x.dtype in (torch.float32, torch.float64), "tensor to round", "float32 or float64", x.dtype, "convert it")
    return x.detach().cpu().numpy()


def bf16_round(x: Tensor) -> Tensor:
    """Round a float32 tensor to a bfloat16 tensor: nearest, ties to even, every NaN quiet (0x7FC0 with its sign)."""
    _expect_dtype(x, torch.float32)
    words = x.detach().view(torch.int32)
    odd = (words >> 16) & 1
    bits = (words + 0x7FFF + odd) >> 16
    quiet = ((words >> 16) & -0x8000) | 0x7FC0
    return _low_half(torch.where(torch.isnan(x), quiet, bits)).view(torch.bfloat16)


def bf16_values(x: Tensor) -> Tensor:
    """The float32 values of a bfloat16 tensor: a shift of integers, every NaN payload preserved."""
    _expect_dtype(x, torch.bfloat16)
    return (x.detach().view(torch.int16).to(torch.int32) << 16).view(torch.float32)


def bf16_pack(x: Tensor) -> Tensor:
    """The bfloat16 tensor of float32 values that are bf16 already, every NaN payload preserved.

    Raises:
        BadInput: when a value needs rounding, which this function refuses to do.
    """
    _expect_dtype(x, torch.float32)
    words = x.detach().view(torch.int32)
    inexact = int(((words & 0xFFFF) != 0).sum())
    expect(
        inexact == 0,
        "values to pack as bf16",
        "float32 values with 16 zero low bits",
        f"{inexact} of {words.numel()} that need rounding",
        "round them first",
    )
    return _low_half(words >> 16).view(torch.bfloat16)


def bf16_bits(x: Tensor) -> Array:
    """The bits of a bfloat16 tensor as a uint16 NumPy array: a view on the CPU, a copy from elsewhere."""
    _expect_dtype(x, torch.bfloat16)
    return x.detach().view(torch.int16).cpu().numpy().view(np.uint16)


def bf16_from_bits(bits: Array) -> Tensor:
    """The CPU bfloat16 tensor over uint16 `bits`, sharing their memory."""
    expect(bits.dtype == np.uint16, "bf16 bits", "a uint16 array", bits.dtype)
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)


def mxfp4_values(packed: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Values ([..., n]) of E2M1 codes packed two a byte ([..., n / 2] uint8, low nibble first) and E8M0 `scales`."""
    codes = mx.unpack_nibbles(packed.cpu().numpy())
    wide = np.float64 if dtype == torch.float64 else np.float32
    return torch.from_numpy(mx.dequantise(codes, scales.cpu().numpy(), wide)).to(packed.device)


_BF16_NEAREST = ("bf16", "nearest")


def _low_half(words: Tensor) -> Tensor:
    """The low 16 bits of int32 words in [-2^15, 2^16), as int16; the cast wraps on every device."""
    return words.to(torch.int16)


def _expect_dtype(x: Tensor, dtype: torch.dtype) -> None:
    expect(x.dtype == dtype, "tensor", dtype, x.dtype)
