"""Checks the inputs of a launch against its declaration: one sentence that names the tensor and how to fix it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from k3lab.cases.shapes import DTYPES, dims_of
from k3lab.errors import expect
from k3lab.launches import Launch, LaunchKey, TensorDecl

LAYOUTS = {
    "contiguous": "a contiguous tensor",
    "rows": "a contiguous last dimension",
    "slots": "contiguous slots (only the first stride is free)",
    "free": "any strides",
}
"""What a declaration's `strides` ask for."""

NONFINITE = {
    "bf16": (torch.int16, 0x7FFF, 0x7F80),
    "fp32": (torch.int32, 0x7FFFFFFF, 0x7F800000),
    "fp8_e4m3": (torch.uint8, 0x7F, 0x7F),
    "e8m0": (torch.uint8, 0xFF, 0xFF),
}
"""Of a declared float dtype: its integer view, the bits beside the sign, and the lowest of these that is not finite."""

CHUNK = 1 << 18  # elements checked at a time, so that the temporaries stay in the cache


def validate(launch: Launch, key: LaunchKey, tensors: Mapping[str, Any], allow_nonfinite: bool) -> None:
    """Check one rank's inputs: names, dtypes, shapes, strides, finiteness, then whatever `launch.check` asks of values.

    Raises:
        BadInput: naming the tensor, what was expected, what came, and how to fix it.
    """
    expect(isinstance(key, launch.key_type), f"key of {launch.name}", launch.key_type.__name__, type(key).__name__)
    declared = launch.inputs_for(key)
    _check_names(launch.name, declared, set(tensors))
    for decl in declared:
        if decl.name not in tensors:
            continue
        tensor = tensors[decl.name]
        _check_kind(decl, tensor)
        _check_shape(decl, tensor, key.sizes)
        _check_strides(decl, tensor, updated=decl.name in launch.outputs)
        if not allow_nonfinite:
            _check_finite(decl, tensor)
    launch.check(key, tensors)


def _check_names(launch: str, declared: Sequence[TensorDecl], given: set[str]) -> None:
    known = [decl.name for decl in declared]
    missing = [decl.name for decl in declared if not decl.optional and decl.name not in given]
    unknown = sorted(str(name) for name in given if name not in known)
    expect(not missing, f"inputs of {launch}", f"tensors {known}", f"none called {', '.join(missing)}")
    fix = "leave it out, or set the key's option that asks for it"
    expect(not unknown, f"inputs of {launch}", f"only {known}", f"also {', '.join(unknown)}", fix)


def _check_kind(decl: TensorDecl, tensor: Any) -> None:
    expect(isinstance(tensor, torch.Tensor), decl.name, "a torch tensor", type(tensor).__name__)
    dense = tensor.layout == torch.strided and tensor.device.type != "meta"
    expect(dense, decl.name, "a dense tensor with data", f"layout {tensor.layout} on {tensor.device}")
    dtype = DTYPES[decl.dtype]
    expect(tensor.dtype == dtype, decl.name, f"dtype {dtype}", tensor.dtype, f"convert it with .to({dtype})")


def _check_shape(decl: TensorDecl, tensor: torch.Tensor, sizes: Mapping[str, int]) -> None:
    dims = dims_of(decl)
    fits = len(dims) == tensor.ndim and all(
        dim.accepts(size, sizes) for dim, size in zip(dims, tensor.shape, strict=True)
    )
    wanted = f"shape [{', '.join(dim.describe(sizes) for dim in dims)}]"
    expect(fits, decl.name, wanted, list(tensor.shape), "change the tensor or the key")


def _check_strides(decl: TensorDecl, tensor: torch.Tensor, updated: bool) -> None:
    got = f"strides {tensor.stride()} for shape {tuple(tensor.shape)}"
    expect(_laid_out(tensor, decl.strides), decl.name, LAYOUTS[decl.strides], got, "call .contiguous() on it")
    own = not (updated and _overlaps(tensor))
    expect(own, decl.name, "memory of its own for every element (it is updated in place)", got, "call .clone() on it")


def _laid_out(tensor: torch.Tensor, layout: str) -> bool:
    match layout:
        case "contiguous":
            return tensor.is_contiguous()
        case "rows":
            return tensor.shape[-1] == 1 or tensor.stride(-1) == 1
        case "slots":
            return tensor[0].is_contiguous()
    return True


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether two elements may share memory: a stride is shorter than what lies within it."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def _check_finite(decl: TensorDecl, tensor: torch.Tensor) -> None:
    if decl.dtype not in NONFINITE:
        return
    view, magnitude, limit = NONFINITE[decl.dtype]
    bits = tensor.detach().cpu().view(view).numpy()
    if _all_below(bits, magnitude, limit):
        return
    first = tuple(int(i) for i in np.argwhere((bits & bits.dtype.type(magnitude)) >= limit)[0])
    value = tensor[first].item() if tensor.is_floating_point() else f"NaN (byte 0x{int(bits[first]):02X})"
    fix = "mend it, or make the case with allow_nonfinite=True"
    expect(False, decl.name, "finite values", f"{value} at {list(first)}", fix)


def _all_below(bits: NDArray[Any], magnitude: int, limit: int) -> bool:
    """Whether every element, masked with `magnitude`, is below `limit`."""
    mask = bits.dtype.type(magnitude)
    flat = bits.reshape(-1) if bits.flags.c_contiguous else None
    parts = [bits] if flat is None else [flat[i : i + CHUNK] for i in range(0, flat.size, CHUNK)]
    return all(int((part & mask).max()) < limit for part in parts)
