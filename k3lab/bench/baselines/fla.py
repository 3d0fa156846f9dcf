"""A public kernel for a part of K1: flash-linear-attention's `fused_recurrent_kda`, where it is installed.

It does the l2 norms and the gated delta rule in one kernel, on states in its own layout, and keeps one final state a
request where K1 keeps one a token. The same part in torch is timed beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch

from k3lab.bench.baselines.k1 import Key, Tensors
from k3lab.errors import BackendUnavailable
from k3lab.geometry import HEAD_DIM

NAME = "fla.ops.kda.fused_recurrent_kda"


def kernel() -> Callable[..., Any]:
    """The public function.

    Raises:
        BackendUnavailable: when the package is not installed, or has no such function.
    """
    try:
        return import_module("fla.ops.kda").fused_recurrent_kda  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise BackendUnavailable(f"{NAME}: not installed ({error}).") from None


def drawn(key: Key, seed: int, device: str) -> dict[str, torch.Tensor]:
    """Inputs of the part: q, k, v [R, L, HEADS, 128] bf16, log decay g of that shape and beta [R, L, HEADS] fp32."""
    made = torch.Generator().manual_seed(seed)
    shape = (key.requests, key.qlen, key.geometry.heads, HEAD_DIM)
    q, k, v, g = (torch.randn(shape, generator=made) for _ in range(4))
    beta = torch.rand(shape[:-1], generator=made)
    held = {"q": q.bfloat16(), "k": k.bfloat16(), "v": v.bfloat16(), "g": -g.exp(), "beta": beta}
    return {name: tensor.to(device) for name, tensor in held.items()}


def part(run: Callable[..., Any], inputs: Tensors, state: torch.Tensor) -> torch.Tensor:
    """The public kernel on the part's inputs and `state: [R, HEADS, 128 k, 128 v]` fp32; o [R, L, HEADS, 128]."""
    o, _ = run(
        q=inputs["q"],
        k=inputs["k"],
        v=inputs["v"],
        g=inputs["g"],
        beta=inputs["beta"],
        initial_state=state,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    return o  # type: ignore[no-any-return]
