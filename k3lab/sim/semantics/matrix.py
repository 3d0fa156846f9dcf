"""Matrix instructions: from the lanes' registers to matrices, through an accumulation model, and back.

A tile is T x T outputs, T = 16 or 32, and K slots. Of A, lane l holds row l % T and w = K T / 64 consecutive slots from
w (l // T) on; of B, column l % T and the same slots. Of C and D it holds column l % T and, for every group g of 64 / T
times 4 rows, the four rows from 4 (l // T) on. A scaled instruction has w = 32: a lane's slots are one block, and one
byte of its scale word is their scale.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from k3lab.formats import E8M0, bf16_values
from k3lab.hardware import mfma
from k3lab.hardware.mfma import MfmaModel
from k3lab.lowering.ir import Op
from k3lab.sim.semantics.context import WAVE, WaveContext
from k3lab.sim.semantics.narrow import decode_bytes, matrix_format
from k3lab.sim.semantics.registry import Compute, Unsupported, wave
from k3lab.sim.semantics.values import Array, align_axes

Decode = Callable[[Array], Array]

ROWS = 4  # consecutive rows of C and D that a lane holds
BLOCK = 32  # slots that share a scale
WAVES_AT_ONCE = 128  # so that the float64 matrices of a step stay in the cache

NAME = re.compile(r"rocdl\.mfma\.(?:scale\.)?f32\.(\d+)x\d+x(\d+)\.?(.*)")


@dataclass(frozen=True)
class Tile:
    """An instruction's shape: `size` x `size` outputs, `slots` products each."""

    size: int
    slots: int

    @property
    def groups(self) -> int:
        """Lanes that hold the same row: each has its own share of the slots."""
        return WAVE // self.size

    @property
    def width(self) -> int:
        """Slots a lane holds."""
        return self.slots // self.groups

    def operand(self, held: Array) -> Array:
        """Lanes' values [waves, 64, width] as rows of A, or columns of B: [waves, size, slots]."""
        split = held.reshape(-1, self.groups, self.size, self.width)
        return np.ascontiguousarray(split.transpose(0, 2, 1, 3)).reshape(-1, self.size, self.slots)

    def matrix(self, held: Array) -> Array:
        """Lanes' accumulators [waves, 64, outputs] as [waves, rows, columns]."""
        split = held.reshape(-1, self.groups, self.size, self.size // (self.groups * ROWS), ROWS)
        return split.transpose(0, 3, 1, 4, 2).reshape(-1, self.size, self.size)

    def lanes(self, matrix: Array) -> Array:
        """The inverse of `matrix`."""
        split = matrix.reshape(-1, self.size // (self.groups * ROWS), self.groups, ROWS, self.size)
        return split.transpose(0, 2, 4, 1, 3).reshape(-1, WAVE, self.size * self.size // WAVE)


UNSCALED: dict[str, Decode] = {
    "bf16": bf16_values,
    "f16": lambda x: x.astype(np.float32),
    "bf16.1k": lambda x: bf16_values(x.view(np.uint16)),
}
SHAPES = ("16x16x32.bf16", "16x16x32.f16", "32x32x16.bf16", "32x32x16.f16")
OLDER_SHAPES = ("16x16x16bf16.1k", "16x16x16f16", "32x32x8bf16.1k", "32x32x8f16")
EIGHT_BIT_SHAPES = tuple(
    f"{shape}.{a}.{b}" for shape in ("16x16x32", "32x32x16") for a in ("fp8", "bf8") for b in ("fp8", "bf8")
)


@wave(*(f"rocdl.mfma.f32.{shape}" for shape in (*SHAPES, *OLDER_SHAPES, *EIGHT_BIT_SHAPES)))
def plain(op: Op) -> Compute:
    """C + A B; the operands broadcast no blocks and permute no lanes."""
    tile, formats = _tile(op)
    _refuse_modifiers(op)
    decode_a, decode_b = _decoders(formats)

    def run(ctx: WaveContext, a: Array, b: Array, c: Array) -> Array:
        _check_full(ctx)
        return multiply(ctx.mfma, tile, decode_a(a), decode_b(b), c)

    return run


@wave("rocdl.mfma.scale.f32.16x16x128.f8f6f4", "rocdl.mfma.scale.f32.32x32x64.f8f6f4")
def scaled(op: Op) -> Compute:
    """C + A B, each lane's slots of A and B times a power of two."""
    tile, _ = _tile(op)
    decode_a = _scaled_operand(matrix_format(op.attrs["cbsz"]), op.attrs["opselA"])
    decode_b = _scaled_operand(matrix_format(op.attrs["blgp"]), op.attrs["opselB"])

    def run(ctx: WaveContext, a: Array, b: Array, c: Array, scale_a: Array, scale_b: Array) -> Array:
        _check_full(ctx)
        model = mfma.get(ctx.mfma.scaled_model)
        return multiply(model, tile, decode_a(a, scale_a), decode_b(b, scale_b), c)

    return run


def multiply(model: MfmaModel, tile: Tile, a: Array, b: Array, c: Array) -> Array:
    """C + A B of values as the lanes hold them; waves that share all three operands share the result."""
    rows, columns, start = tile.operand(_all_lanes(a)), tile.operand(_all_lanes(b)), tile.matrix(_all_lanes(c))
    waves = max(len(rows), len(columns), len(start))
    rows, columns, start = (np.broadcast_to(x, (waves, *x.shape[1:])) for x in (rows, columns, start))
    parts = [slice(first, first + WAVES_AT_ONCE) for first in range(0, waves, WAVES_AT_ONCE)]
    sums = [model.chain([rows[part]], [columns[part]], start[part]) for part in parts]
    return tile.lanes(sums[0] if len(sums) == 1 else np.concatenate(sums))


def _tile(op: Op) -> tuple[Tile, str]:
    """An operation's shape and the rest of its name."""
    found = NAME.match(op.name)
    assert found, op.name
    return Tile(int(found[1]), int(found[2])), found[3]


def _decoders(formats: str) -> tuple[Decode, Decode]:
    if formats in UNSCALED:
        return UNSCALED[formats], UNSCALED[formats]
    a, b = formats.split(".")
    return _byte_decoder(a), _byte_decoder(b)


def _byte_decoder(name: str) -> Decode:
    """A decoder of lanes' registers, words of any width, into values [waves, lanes, slots]."""
    return lambda held: decode_bytes(name, np.ascontiguousarray(align_axes(held, 3)).view(np.uint8))


def _scaled_operand(name: str, byte: int) -> Callable[[Array, Array], Array]:
    """A decoder of registers and scale words; E2M1 fills half of the registers that it may be given."""
    decode = _byte_decoder(name)
    registers = 4 if name == "fp4" else 8

    def run(held: Array, scale: Array) -> Array:
        factors = E8M0.decode(scale >> (8 * byte) & 0xFF)
        return decode(held[..., :registers]) * factors[..., None]

    return run


def _all_lanes(held: Array) -> Array:
    return np.broadcast_to(held, (held.shape[0], WAVE, held.shape[2]))


def _refuse_modifiers(op: Op) -> None:
    permuted = op.attrs.get("blgp", 0)
    if op.attrs.get("cbsz", 0) or op.attrs.get("abid", 0) or not (permuted == 0 or str(permuted).endswith(" none>")):
        raise Unsupported("cbsz, abid or blgp")


def _check_full(ctx: WaveContext) -> None:
    """Report a matrix instruction of which some lanes are masked off: they would feed it garbage."""
    if ctx.mask is None:
        return
    absent = ~ctx.mask
    if absent.any():
        ctx.report("masked-mfma", "a matrix instruction runs with lanes switched off", absent)
