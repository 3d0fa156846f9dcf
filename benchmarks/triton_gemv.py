"""A GEMV task of 16 weight rows in Triton, run by its interpreter."""

from __future__ import annotations

import time

import torch
import triton
import triton.language as tl

BLOCK_K = 32  # as one MFMA takes


@triton.jit
def gemv_kernel(x, w, out, k, rows, BLOCK: tl.constexpr):
    """out [16 tokens, rows] = x [16, k] w^T [rows, k], 16 rows a program."""
    first = tl.program_id(0) * 16
    i, j = tl.arange(0, 16), tl.arange(0, BLOCK)
    acc = tl.zeros((16, 16), tl.float32)
    for step in range(0, k, BLOCK):
        left = tl.load(x + i[:, None] * k + step + j[None, :])
        right = tl.load(w + (first + i)[None, :] * k + step + j[:, None])
        acc += tl.dot(left, right)
    tl.store(out + i[:, None] * rows + first + i[None, :], acc)


def seconds(x: torch.Tensor, w: torch.Tensor) -> float:
    """Wall time of the interpreted kernel on `x: [4, k]` (padded to 16 tokens) and `w: [16, k]`; checks the result."""
    tokens = torch.zeros(16, x.shape[1])
    tokens[: len(x)] = x
    out = torch.zeros(16, len(w))
    start = time.perf_counter()
    gemv_kernel[(len(w) // 16,)](tokens, w, out, x.shape[1], len(w), BLOCK=BLOCK_K)
    took = time.perf_counter() - start
    torch.testing.assert_close(out, tokens @ w.T, rtol=1e-4, atol=1e-4)
    return took
