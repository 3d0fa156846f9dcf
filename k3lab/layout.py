"""Where hand-offs live: regions of tagged pairs, plain rows, locals, guards, byte offsets and tags.

A *region* is a named piece of scratch (device scope) or peer memory (system scope) that CTAs or GPUs hand values
through, one value and one tag in each 8-byte pair. *Plain rows* are untagged and guarded by a flag region. A *local* is
a hand-off between stages inside a CTA, through LDS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from k3lab.errors import expect
from k3lab.geometry import TAG_SLOTS

PAIR_BYTES = 8
WORD_BYTES = 4
ARMED_GROUP = 8  # armed words lie as [source rank][group of so many words][token][word of the group]
ROWS_ALIGN = 16
EPOCHS = 1 << 22  # epochs a tag can tell apart

Scope = Literal["device", "system"]
Word = Literal["fp32", "bf16", "bf16x2", "fp8x4", "flag"]
VALUES_A_WORD: dict[Word, int] = {"fp32": 1, "bf16": 1, "bf16x2": 2, "fp8x4": 4, "flag": 1}


@dataclass(frozen=True)
class Region:
    """A named array of (word, tag) pairs.

    Attributes:
        name: as reports print it, and as the twin names the value it holds.
        dims: shape of the values in it, as names of the key's dimensions, e.g. `"NA S NS 2"`.
        word: what a pair's value word holds: an fp32; the fp32 bits of a bf16-rounded value (`bf16`); two bf16, the
            even column in the low half (`bf16x2`); four fp8 bytes (`fp8x4`); the integer 1 (`flag`).
        scope: who may read it: this GPU, or every GPU. Those for every GPU lie in the peer buffers.
        about: what it is, in a phrase.
        armed: a build with `sentinel` hands its words over without tags, armed with a sentinel instead.
        present: whether a build with a key has it.
    """

    name: str
    dims: str
    word: Word
    scope: Scope = "device"
    about: str = ""
    armed: bool = False
    present: Callable[[Any], bool] = lambda key: True

    def pairs(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Its shape in pairs: the values' shape, the last dimension divided by the values a word holds."""
        *rows, last = shape_of(self.dims, sizes)
        return (*rows, last // VALUES_A_WORD[self.word])


@dataclass(frozen=True)
class PlainRows:
    """Untagged rows, readable once the region `guard` carries this launch's flags.

    They lie in scratch; as an `output`, in the tensor of that name that the launch fills.
    """

    name: str
    dims: str
    dtype: Literal["bf16"]
    guard: str
    about: str = ""
    output: bool = False

    @property
    def itemsize(self) -> int:
        return 2


@dataclass(frozen=True)
class Local:
    """A value that stages of one CTA hand over through LDS; a dumps build writes it out."""

    name: str
    dims: str
    dtype: Literal["bf16", "fp32", "fp8_e4m3"]
    producer: str
    consumers: tuple[str, ...]
    about: str = ""

    @property
    def itemsize(self) -> int:
        return {"bf16": 2, "fp32": 4, "fp8_e4m3": 1}[self.dtype]


def shape_of(dims: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """`"S NS+1 2"` with the key's `sizes` -> (4, 6, 2); a name may carry `+n`."""
    return tuple(_size(dim, sizes) for dim in dims.split())


def _size(dim: str, sizes: Mapping[str, int]) -> int:
    name, _, more = dim.partition("+")
    base = int(name) if name.isdigit() else sizes[name]
    return base + int(more or 0)


@dataclass(frozen=True)
class Placed:
    """A region, plain rows or a local with its byte offset in its buffer."""

    name: str
    offset: int
    shape: tuple[int, ...]
    nbytes: int

    @property
    def itemsize(self) -> int:
        """Bytes of a pair, or of an element."""
        return self.nbytes // prod(self.shape)


def place_scratch(
    regions: tuple[Region, ...], rows: tuple[PlainRows, ...], sizes: Mapping[str, int]
) -> tuple[Placed, ...]:
    """Scratch of one launch: device-scope regions back to back, then plain rows, each at a 16-byte boundary."""
    placed: list[Placed] = []
    offset = 0
    for region in (region for region in regions if region.scope == "device"):
        shape = region.pairs(sizes)
        placed.append(Placed(region.name, offset, shape, prod(shape) * PAIR_BYTES))
        offset += placed[-1].nbytes
    for plain in (plain for plain in rows if not plain.output):
        offset = -(-offset // ROWS_ALIGN) * ROWS_ALIGN
        shape = shape_of(plain.dims, sizes)
        placed.append(Placed(plain.name, offset, shape, prod(shape) * plain.itemsize))
        offset += placed[-1].nbytes
    return tuple(placed)


def place_peers(regions: tuple[Region, ...], sizes: Mapping[str, int], armed: bool) -> tuple[Placed, ...]:
    """One half of a peer buffer: system-scope regions, each at a 16-byte boundary; `armed` ones if the build has any.

    The shape is in pairs, or in words where these are armed.
    """
    placed: list[Placed] = []
    offset = 0
    for region in (region for region in regions if region.scope == "system"):
        shape = region.pairs(sizes)
        nbytes = prod(shape) * (WORD_BYTES if armed and region.armed else PAIR_BYTES)
        placed.append(Placed(region.name, offset, shape, nbytes))
        offset = -(-(offset + nbytes) // ROWS_ALIGN) * ROWS_ALIGN
    return tuple(placed)


def armed_index(number: int, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Source rank, token and word of an armed region's word by its place, of `shape` [ranks, tokens, words]."""
    _, tokens, words = shape
    rest, word = divmod(number, ARMED_GROUP)
    rest, token = divmod(rest, tokens)
    source, group = divmod(rest, words // ARMED_GROUP)
    return source, token, group * ARMED_GROUP + word


def place_locals(locals_: tuple[Local, ...], sizes: Mapping[str, int]) -> tuple[Placed, ...]:
    """Where a dumps build writes the locals, and a build of some stages finds those it does not make."""
    placed: list[Placed] = []
    offset = 0
    for local in locals_:
        shape = shape_of(local.dims, sizes)
        placed.append(Placed(local.name, offset, shape, prod(shape) * local.itemsize))
        offset = -(-(offset + placed[-1].nbytes) // ROWS_ALIGN) * ROWS_ALIGN
    return tuple(placed)


def step_tag(epoch: int, slot: int) -> int:
    """The 32-bit tag of the launch number `slot` of step `epoch`; never 0, so zeroed scratch means 'not yet'.

    Raises:
        BadInput: for a negative epoch or a slot outside 0 .. 255.
    """
    expect(epoch >= 0, "epoch", "a number >= 0", epoch)
    expect(0 <= slot < TAG_SLOTS, "slot", f"0 .. {TAG_SLOTS - 1}", slot)
    return (epoch % EPOCHS) * TAG_SLOTS + slot + 1
