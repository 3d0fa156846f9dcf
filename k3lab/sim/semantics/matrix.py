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
from k3lab.hardware.mfma import MfmaModel, TileSums
from k3lab.lowering.ir import Op
from k3lab.sim.semantics.context import WAVE, WaveContext
from k3lab.sim.semantics.narrow import decode_bytes, matrix_format
from k3lab.sim.semantics.registry import Compute, Unsupported, wave
from k3lab.sim.semantics.values import Array, align_axes

Decode = Callable[[Array], Array]
Waves = slice | Array  # which waves: a run of them, or their numbers

ROWS = 4  # consecutive rows of C and D that a lane holds
BLOCK = 32  # slots that share a scale
WAVES_AT_ONCE = 256  # few enough that their float64 matrices stay in the cache

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

    @property
    def outputs(self) -> int:
        """Outputs a lane holds."""
        return self.size * self.size // WAVE

    def operand(self, held: Array) -> Array:
        """What lanes hold of A or B [waves, 64, width] as rows of A, or columns of B: [waves, size, slots]."""
        share = np.ascontiguousarray(held).view(f"V{self.width * held.itemsize}")  # moved whole, not value by value
        rows = share.reshape(-1, self.groups, self.size).transpose(0, 2, 1)
        return np.ascontiguousarray(rows).view(held.dtype).reshape(-1, self.size, self.slots)

    def by_group(self, rows: Array) -> Array:
        """Rows of A by the group of lanes that holds their outputs: [waves, groups, size / groups, slots].

        Columns of B times these, transposed, give outputs as the lanes hold them, [waves, groups, size, outputs].
        """
        split = rows.reshape(len(rows), -1, self.groups, ROWS, self.slots)
        return split.transpose(0, 2, 1, 3, 4).reshape(len(rows), self.groups, -1, self.slots)

    def matrix(self, held: Array) -> Array:
        """Lanes' accumulators [waves, 64, outputs] as [waves, rows, columns]."""
        split = held.reshape(-1, self.groups, self.size, self.size // (self.groups * ROWS), ROWS)
        return split.transpose(0, 3, 1, 4, 2).reshape(-1, self.size, self.size)

    def lanes(self, matrix: Array) -> Array:
        """The inverse of `matrix`."""
        split = matrix.reshape(-1, self.size // (self.groups * ROWS), self.groups, ROWS, self.size)
        return split.transpose(0, 2, 4, 1, 3).reshape(-1, WAVE, self.outputs)


@dataclass(frozen=True)
class Factor:
    """A or B: `codes` [waves or 1, 64, width] as the lanes hold them, and what makes float32 values of codes."""

    tile: Tile
    codes: Array
    decode: Decode

    def rows(self, waves: Waves) -> Array:
        """Rows of A, or columns of B, of some waves, or of the one they share: [waves or 1, size, slots]."""
        return self.decode(self.tile.operand(_of_waves(self.codes, waves)))


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
        left, right = Factor(tile, _codes(a, tile), decode_a), Factor(tile, _codes(b, tile), decode_b)
        return multiply(ctx.mfma, left, right, c)

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
        left = Factor(tile, _all_lanes(decode_a(a, scale_a)), _unchanged)
        right = Factor(tile, _all_lanes(decode_b(b, scale_b)), _unchanged)
        return multiply(model, left, right, c)

    return run


def multiply(model: MfmaModel, a: Factor, b: Factor, c: Array) -> Array:
    """C + A B, with C [waves or 1, 64, outputs]; waves that share all three operands share the result."""
    start = _all_lanes(c)
    waves = max(len(a.codes), len(b.codes), len(start))
    if model.tiles is None:
        return np.concatenate([_chained(model, a, b, start, part) for part in _parts(waves)])
    made = [_quickly(model.tiles, a, b, start, part) for part in _parts(waves)]
    result = np.concatenate([outputs for outputs, _ in made])
    rest = np.flatnonzero(~np.concatenate([done for _, done in made]))
    for part in _parts(len(rest)):
        result[rest[part]] = _chained(model, a, b, start, rest[part])
    return result


def _parts(waves: int) -> list[slice]:
    return [slice(first, min(first + WAVES_AT_ONCE, waves)) for first in range(0, waves, WAVES_AT_ONCE)]


def _quickly(sums: TileSums, a: Factor, b: Factor, start: Array, waves: slice) -> tuple[Array, Array]:
    """Outputs of some waves [waves, 64, outputs], and which of the waves they hold for.

    B comes first, so that outputs lie as the lanes hold them and are not moved.
    """
    tile, here = a.tile, _of_waves(start, waves)
    c = here.reshape(len(here), tile.groups, tile.size, tile.outputs)
    outputs, done = sums(b.rows(waves)[:, None], tile.by_group(a.rows(waves)), c)
    return outputs.reshape(-1, WAVE, tile.outputs), np.broadcast_to(done, len(outputs))


def _chained(model: MfmaModel, a: Factor, b: Factor, start: Array, waves: Waves) -> Array:
    """Outputs of some waves [waves, 64, outputs] by the model's own rule."""
    c = a.tile.matrix(_of_waves(start, waves))
    return a.tile.lanes(model.chain([a.rows(waves)], [b.rows(waves)], c))


def _of_waves(held: Array, waves: Waves) -> Array:
    return held if len(held) == 1 else held[waves]


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
    """A decoder of words of any width [..., k] into values [..., slots]."""
    return lambda held: decode_bytes(name, np.ascontiguousarray(held).view(np.uint8))


def _codes(held: Array, tile: Tile) -> Array:
    """Lanes' registers as codes, one a slot: [waves, 64, width]."""
    lanes = np.ascontiguousarray(_all_lanes(align_axes(held, 3)))
    return lanes.view(f"{lanes.dtype.kind}{lanes.shape[2] * lanes.itemsize // tile.width}")


def _unchanged(values: Array) -> Array:
    return values


def _scaled_operand(name: str, byte: int) -> Callable[[Array, Array], Array]:
    """A decoder of registers and scale words; E2M1 fills half of the registers that it may be given."""
    decode = _byte_decoder(name)
    registers = 4 if name == "fp4" else 8

    def run(held: Array, scale: Array) -> Array:
        factors = E8M0.decode(scale >> (8 * byte) & 0xFF)
        return decode(align_axes(held, 3)[..., :registers]) * factors[..., None]

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
