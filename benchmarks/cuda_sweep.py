"""Sweeps exp2 and rsq of the translated kernels' run time over every float32 on a GPU, against the shared models.

    python -m benchmarks.cuda_sweep [--out OUT] [--build exact|fast]

Writes OUT/sweep-BUILD.json: by function, how many values differ from the model, and by how many ulps at most.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import torch

from k3lab.backends.cuda import compiler, device
from k3lab.backends.cuda.emit import Source
from k3lab.backends.run import device_name
from k3lab.files import write_text
from k3lab.hardware import approx_torch

CHUNK = 1 << 27
THREADS, BLOCKS = 512, 4096
SIZES = "#define K3_LDS 0\n#define K3_ROW 0\n#define K3_WAVE_BYTES 0\n#define K3_SHARED 0\n#define K3_PARAMETERS 4\n"
BODY = """
K3_KERNEL {
  const u64* args = launch.args;
  const float* x = (const float*)args[0];
  float* y = (float*)args[1];
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < args[2]; i += gridDim.x * (u64)blockDim.x)
    y[i] = args[3] ? k3_rsq(x[i]) : k3_exp2(x[i]);
}
"""
MODELS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {"exp2": approx_torch.exp2, "rsq": approx_torch.rsq}


class Words(ctypes.Structure):
    """`K3Launch` of the run time."""

    _fields_ = (("blocks", ctypes.c_uint32), ("args", ctypes.c_uint64 * 4))


class Sweep:
    """The functions on the device."""

    def __init__(self, fast: bool) -> None:
        source = Source("sweep", SIZES, BODY, THREADS, 4, 0, 0, fast=fast)
        image = compiler.binary(source, device.limits(0).arch, 1, 1)
        self.function = device._loaded(image, source, BLOCKS, 0).function

    def apply(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """Function `number` of x."""
        y = torch.empty_like(x)
        given = Words(BLOCKS, (ctypes.c_uint64 * 4)(x.data_ptr(), y.data_ptr(), x.numel(), number))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(given))
        stream = torch.cuda.current_stream().cuda_stream
        how = (BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, ctypes.addressof(pointers), 0)
        compiler.called(compiler.binding("driver").cuLaunchKernel(self.function, *how), "the launch")
        torch.cuda.synchronize()
        return y


def ordered(x: torch.Tensor) -> torch.Tensor:
    """Floats as integers in their order: neighbours are one apart, both zeros are 0."""
    bits = x.view(torch.int32).long()
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


@click.command(help=__doc__)
@click.option("--out", type=Path, default="cuda-check", show_default=True)
@click.option("--build", type=click.Choice(["exact", "fast"]), default="exact", show_default=True)
def main(out: Path, build: str) -> None:
    sweep, found = Sweep(build == "fast"), {}
    for number, (name, model) in enumerate(MODELS.items()):
        differ = most = at = 0
        for start in range(-(1 << 31), 1 << 31, CHUNK):
            x = torch.arange(start, start + CHUNK, dtype=torch.int64, device="cuda").int().view(torch.float32)
            got, want = sweep.apply(number, x), model(x)
            same = (got.view(torch.int32) == want.view(torch.int32)) | (got.isnan() & want.isnan())
            differ += int((~same).sum())
            apart = (ordered(got) - ordered(want)).abs().masked_fill(same, 0)
            if int(apart.max()) > most:
                most, at = int(apart.max()), int(x.view(torch.int32)[apart.argmax()])
        found[name] = {"inputs": 1 << 32, "differ": differ, "most_ulps": most, "at_bits": f"{at & 0xFFFFFFFF:#010x}"}
        click.echo(f"{name}: {found[name]}")
    write_text(
        out / f"sweep-{build}.json", json.dumps({"device": device_name("cuda"), "build": build, **found}, indent=1)
    )


if __name__ == "__main__":
    main()
