"""Sweeps functions of the translated kernels' run time over every input on a GPU, against models.

    python -m benchmarks.cuda_sweep [--out OUT] [--build exact|fast]

exp2, rsq, 1 / x, a quotient of x and another float, and the conversions to bf16 (one alone, and two at once) and e4m3
take every float32; the conversion to E2M1 takes every bf16 with every scale that is a power of two. Writes
OUT/sweep-BUILD.json: by function, how many results differ from the model; for the first four also by how many ulps at
most.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch

from k3lab.backends.cuda import compiler, device
from k3lab.backends.cuda.emit import Source
from k3lab.backends.run import device_name
from k3lab.files import write_text
from k3lab.hardware import approx_torch

Words = Callable[[torch.Tensor], torch.Tensor]
"""Of 32-bit words, as int32."""

CHUNK = 1 << 27
THREADS, BLOCKS = 512, 4096
SIZES = "#define K3_LDS 0\n#define K3_ROW 0\n#define K3_WAVE_BYTES 0\n#define K3_SHARED 0\n#define K3_PARAMETERS 4\n"
OTHER_BF16 = 0x803F
OTHER_FLOAT = (OTHER_BF16 << 16) - (1 << 32)
"""Bits that tell the second of a pair from the first: the sign and most of a bf16's mantissa. A NaN stays one."""
SCATTER = 0x9E3779B1
"""Times a float's bits modulo 2^32: those of the float that it is divided by, of any sign and exponent."""
BODY = (
    f"#define K3_OTHER {OTHER_BF16}u\n#define K3_SCATTER {SCATTER}u\n"
    + """
K3_DEV u32 applied(u32 function, u32 word) {
  float x = k3_f32(word), other = k3_f32(word ^ K3_OTHER << 16);
  K3Vec<u16, 2> pair;
  switch (function) {
    case 0: return k3_cast<u32>(k3_exp2(x));
    case 1: return k3_cast<u32>(k3_rsq(x));
    case 2: return k3_cast<u32>(k3_quotient(1.0f, x));
    case 3: return k3_cast<u32>(k3_quotient(x, k3_f32(word * K3_SCATTER)));
    case 4: return k3_to_bf16(x);
    case 5: pair = k3_to_bf16(K3Vec<float, 2>{x, other}); return k3_cast<u32>(pair);
    case 6: return k3_two_e4m3(x, other);
  }
  pair.v[0] = (u16)word;
  pair.v[1] = (u16)(word ^ K3_OTHER);
  return k3_two_e2m1(pair, k3_f32(word >> 16 << 23));
}
K3_KERNEL {
  const u64* args = launch.args;
  const u32* x = (const u32*)args[0];
  u32* y = (u32*)args[1];
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < args[2]; i += gridDim.x * (u64)blockDim.x)
    y[i] = applied((u32)args[3], x[i]);
}
"""
)


@dataclass(frozen=True)
class Function:
    """What is swept.

    Attributes:
        model: the code for a word.
        nan: whether a code is a NaN.
        bits: of a code.
        pairs: whether two words are taken at once, the second one `other` of the first; its code is the upper one.
        words: the inputs.
    """

    model: Words
    nan: Words
    bits: int = 32
    pairs: bool = False
    words: range = range(-(1 << 31), 1 << 31)

    def taken(self, words: torch.Tensor) -> list[torch.Tensor]:
        """What is taken at once."""
        return [words, words ^ OTHER_FLOAT if self.bits > 4 else words ^ OTHER_BF16] if self.pairs else [words]

    def codes(self, result: torch.Tensor) -> list[torch.Tensor]:
        """Those in the words that the device gave."""
        if self.bits == 32:
            return [result]
        return [result >> self.bits * place & (1 << self.bits) - 1 for place in range(1 + self.pairs)]


def floats(words: torch.Tensor) -> torch.Tensor:
    """Words as float32."""
    return words.view(torch.float32)


def of_floats(function: Words, words: torch.Tensor) -> torch.Tensor:
    """A function of float32, as one of words."""
    return function(floats(words)).view(torch.int32)


def quotient(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a / b of floats, rounded right: a quotient of 24 bits by 24 that is no tie lies further from one than a double's
    rounding reaches."""
    return (a.double() / b.double()).float()


def scattered(words: torch.Tensor) -> torch.Tensor:
    """The bits of what each float is divided by."""
    product = words.long() * SCATTER & 0xFFFFFFFF
    return (product - (product >> 31 << 32)).int()


def bf16(words: torch.Tensor) -> torch.Tensor:
    """The bf16 of floats, as torch rounds them."""
    return floats(words).bfloat16().view(torch.int16).int() & 0xFFFF


def e4m3(words: torch.Tensor) -> torch.Tensor:
    """The e4m3 of floats: nearest, ties to even; NaN above 464, halfway from 448 to what would be next."""
    a = floats(words).abs()
    return torch.where(a <= 464, nearest(a.double(), -6, 3), 0x7F) | words >> 24 & 0x80


def e2m1(words: torch.Tensor) -> torch.Tensor:
    """The E2M1 of a bf16 (the lower half) over a power of two (by its exponent field): nearest, ties to even, 6 at
    most, and +0 for a NaN."""
    x = floats(words << 16).double() / floats(words >> 16 << 23).double()
    return torch.where(x.isnan(), 0, nearest(x.abs().clamp(max=6), 0, 1) | words >> 12 & 8)


def nearest(a: torch.Tensor, least: int, bits: int) -> torch.Tensor:
    """Codes of non-negative float64 in a format with `bits` bits of mantissa, and exponents from `least` on."""
    exponent = ((a.view(torch.int64) >> 52) - 1023).clamp(min=least)
    steps = torch.round(a * (1023 + bits - exponent << 52).view(torch.float64))  # halves go to even
    return ((exponent - least << bits) + steps.long()).int()


def float_nan(words: torch.Tensor) -> torch.Tensor:
    """Whether words are a float's NaN."""
    return floats(words).isnan()


def bf16_nan(codes: torch.Tensor) -> torch.Tensor:
    """Whether codes are a bf16's NaN."""
    return codes & 0x7FFF > 0x7F80


def e4m3_nan(codes: torch.Tensor) -> torch.Tensor:
    """Whether codes are an e4m3's NaN."""
    return codes & 0x7F == 0x7F


def no_nan(codes: torch.Tensor) -> torch.Tensor:
    """E2M1 has none."""
    return torch.zeros_like(codes, dtype=torch.bool)


FUNCTIONS: Mapping[str, Function] = {
    "exp2": Function(partial(of_floats, approx_torch.exp2), float_nan),
    "rsq": Function(partial(of_floats, approx_torch.rsq), float_nan),
    "reciprocal": Function(partial(of_floats, lambda x: quotient(torch.ones_like(x), x)), float_nan),
    "quotient": Function(lambda words: of_floats(lambda x: quotient(x, floats(scattered(words))), words), float_nan),
    "bf16": Function(bf16, bf16_nan, 16),
    "bf16_pair": Function(bf16, bf16_nan, 16, True),
    "e4m3": Function(e4m3, e4m3_nan, 8, True),
    "e2m1": Function(e2m1, no_nan, 4, True, range(1 << 16, 255 << 16)),
}
"""In the order of the kernel's numbers."""


class Launch(ctypes.Structure):
    """`K3Launch` of the run time."""

    _fields_ = (("blocks", ctypes.c_uint32), ("args", ctypes.c_uint64 * 4))


class Sweep:
    """The functions on the device."""

    def __init__(self, fast: bool) -> None:
        source = source_of(fast)
        image = compiler.binary(source, device.limits(0).arch, 1, 1)
        self.function = device._loaded(image, source, BLOCKS, 0).function

    def apply(self, number: int, words: torch.Tensor) -> torch.Tensor:
        """Function `number` of words."""
        y = torch.empty_like(words)
        given = Launch(BLOCKS, (ctypes.c_uint64 * 4)(words.data_ptr(), y.data_ptr(), words.numel(), number))
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(given))
        stream = torch.cuda.current_stream().cuda_stream
        how = (BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, ctypes.addressof(pointers), 0)
        compiler.called(compiler.binding("driver").cuLaunchKernel(self.function, *how), "the launch")
        torch.cuda.synchronize()
        return y


def source_of(fast: bool) -> Source:
    """The kernel that applies the functions."""
    return Source("sweep", SIZES, BODY, THREADS, 4, 0, 0, fast=fast)


def ordered(x: torch.Tensor) -> torch.Tensor:
    """Words of floats as integers in the floats' order: neighbours are one apart, both zeros are 0."""
    bits = x.long()
    return torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)


def compared(function: Function, apply: Words, where: str) -> dict[str, Any]:
    """How the results of `apply` differ from the model's: how many, and at which word most, or first."""
    differ = most = at = 0
    for start in function.words[::CHUNK]:
        stop = min(start + CHUNK, function.words.stop)
        words = torch.arange(start, stop, dtype=torch.int64, device=where).int()
        results, wants = function.codes(apply(words)), [function.model(each) for each in function.taken(words)]
        wrong = torch.zeros_like(words, dtype=torch.bool)
        for got, want in zip(results, wants, strict=True):
            wrong |= (got != want) & ~(function.nan(want) & function.nan(got))
        differ += int(wrong.sum())
        apart = wrong.int()
        if function.bits == 32:
            apart = (ordered(results[0]) - ordered(wants[0])).abs().masked_fill(~wrong, 0)
        place = int(apart.argmax())  # the first of the largest
        if int(apart[place]) > most:
            most, at = int(apart[place]), int(words[place])
    found: dict[str, Any] = {"inputs": len(function.words), "differ": differ}
    if function.bits == 32:
        found["most_ulps"] = most
    return found | {"at_bits": f"{at & 0xFFFFFFFF:#010x}" if most or function.bits == 32 else None}


@click.command(help=__doc__)
@click.option("--out", type=Path, default="cuda-check", show_default=True)
@click.option("--build", type=click.Choice(["exact", "fast"]), default="exact", show_default=True)
def main(out: Path, build: str) -> None:
    sweep, found = Sweep(build == "fast"), {}
    for number, (name, function) in enumerate(FUNCTIONS.items()):
        found[name] = compared(function, partial(sweep.apply, number), "cuda")
        click.echo(f"{name}: {found[name]}")
    write_text(
        out / f"sweep-{build}.json", json.dumps({"device": device_name("cuda"), "build": build, **found}, indent=1)
    )


if __name__ == "__main__":
    main()
