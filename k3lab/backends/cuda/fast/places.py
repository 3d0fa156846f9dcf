"""Which workgroup does what: GEMV workgroups one to a multiprocessor as far as they go, attention ones beside them.

A GPU deals a launch's workgroups to its multiprocessors as it likes, and one with two GEMV workgroups takes twice as
long over its weights as one with a GEMV and an attention workgroup, whose work is over by then. A launch of as many
workgroups that only say where they are tells the GPU's deal, and the fast build numbers its workgroups accordingly. (An
H200 takes four deals in turn, in which 16 workgroups change places; a numbering made for one puts no two GEMV
workgroups together in the others.) Another deal would cost time and nothing else: no result depends on a workgroup's
place.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import torch

from k3lab.backends.cuda.compiler import binding, called, compiled

WHERE = """
extern "C" __global__ void __launch_bounds__({threads}, {per_unit}) k3_where(unsigned* where) {{
  if (threadIdx.x == 0) asm volatile("mov.u32 %0, %%smid;" : "=r"(where[blockIdx.x]));
  for (long long start = clock64(); clock64() - start < 100000;) {{}}  // until the last one has come
}}
"""


def dealt(where: Sequence[int], blocks: int, attention: int) -> tuple[int, ...]:
    """By the GPU's number of a workgroup, the number it takes on.

    Args:
        where: multiprocessor of each workgroup, of all ranks.
        blocks: workgroups of a rank; the first `attention` of them are attention workgroups.
    """
    by_unit: dict[int, list[int]] = {}
    for number, unit in enumerate(where):
        by_unit.setdefault(unit, []).append(number)
    turns = [
        held[turn] for turn in range(max(map(len, by_unit.values()))) for held in by_unit.values() if turn < len(held)
    ]
    numbers = range(len(where))
    light = [number for number in numbers if number % blocks < attention]
    heavy = [number for number in numbers if number % blocks >= attention]
    taken = dict(zip(turns, heavy + light, strict=True))
    return tuple(taken[number] for number in numbers)


@cache
def where(index: int, arch: str, blocks: int, threads: int, per_unit: int, shared: int) -> tuple[int, ...]:
    """The multiprocessors that device `index` deals a launch's workgroups to, found by such a launch."""
    driver = binding("driver")
    with torch.cuda.device(index):
        found = torch.zeros(blocks, dtype=torch.int32, device=f"cuda:{index}")
        torch.cuda.synchronize()
        text = WHERE.format(threads=threads, per_unit=per_unit)
        library = called(driver.cuModuleLoadData(compiled(text, arch)), "cuModuleLoadData")
        function = called(driver.cuModuleGetFunction(library, b"k3_where"), "cuModuleGetFunction")
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        called(driver.cuFuncSetAttribute(function, most, shared), "cuFuncSetAttribute")
        address = ctypes.c_uint64(found.data_ptr())
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(address))
        stream = torch.cuda.current_stream().cuda_stream
        how = (blocks, 1, 1, threads, 1, 1, shared, stream, ctypes.addressof(pointers))
        called(driver.cuLaunchCooperativeKernel(function, *how), "the launch")
        held = tuple(found.tolist())
        called(driver.cuModuleUnload(library), "cuModuleUnload")
    return held
