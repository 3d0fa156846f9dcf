"""The torch layer: the same bits as the NumPy core, without a copy on the way in."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from k3lab import formats
from k3lab.errors import BadInput
from k3lab.formats import tensor


def words(n: int = 100_000) -> np.ndarray:
    """Random float32 bit patterns, NaNs, infinities and zeros among them."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, n, dtype=np.uint32)
    bits[:6] = 0, 0x80000000, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF
    return bits.view(np.float32)


@pytest.mark.parametrize("spec", ["bf16", "bf16:zero", "fp8", "fp8:stochastic:7", "e2m1", "fp32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_round_tensor_is_the_rounder(spec: str, dtype: torch.dtype) -> None:
    x = torch.from_numpy(words().copy()).to(dtype).reshape(100, -1)
    rounder = formats.parse(spec)
    rounded = tensor.round_tensor(rounder, x)
    assert rounded.dtype == dtype and rounded.shape == x.shape
    np.testing.assert_array_equal(rounded.numpy(), rounder.round(x.numpy()))
    np.testing.assert_array_equal(tensor.ulp_tensor(rounder, x).numpy(), rounder.ulp(x.numpy()))


def test_cpu_tensors_are_views_and_scalars_work() -> None:
    x = torch.ones(4, requires_grad=True)
    assert np.shares_memory(tensor.as_array(x), x.detach().numpy())
    assert tensor.round_tensor(formats.parse("bf16"), torch.tensor(1.003)).shape == ()
    with pytest.raises(BadInput, match="float32 or float64"):
        tensor.round_tensor(formats.parse("bf16"), torch.ones(2, dtype=torch.bfloat16))


def test_bf16_round_has_the_bits_of_numpy_and_of_torch() -> None:
    x = words()
    ours = tensor.bf16_round(torch.from_numpy(x.copy()))
    np.testing.assert_array_equal(tensor.bf16_bits(ours), formats.bf16_bits(x))
    number = ~np.isnan(x)
    theirs = torch.from_numpy(x.copy()).to(torch.bfloat16)
    np.testing.assert_array_equal(tensor.bf16_bits(ours)[number], tensor.bf16_bits(theirs)[number])


def test_bf16_moves_keep_every_payload() -> None:
    bits = np.arange(1 << 16).astype(np.uint16)
    held = tensor.bf16_from_bits(bits)
    assert held.dtype == torch.bfloat16
    values = tensor.bf16_values(held)
    np.testing.assert_array_equal(values.view(torch.int32).numpy().view(np.uint32) >> 16, bits)
    np.testing.assert_array_equal(tensor.bf16_bits(tensor.bf16_pack(values)), bits)
    assert np.shares_memory(tensor.bf16_bits(held), bits)
    with pytest.raises(BadInput, match="need rounding"):
        tensor.bf16_pack(torch.tensor([1.0 + 2**-10]))
