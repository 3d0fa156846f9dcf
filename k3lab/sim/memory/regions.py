"""Regions of global memory through which workgroups hand values over, as a launch declares them.

*Pairs* are 8-byte (value, tag) words, *flags* are tag words or pairs that guard *rows*: plain data, readable once the
guard's flags have been seen. Everything else is ordinary memory, through which nothing is handed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from k3lab.errors import BadInput, expect
from k3lab.layout import PAIR_BYTES, Scope
from k3lab.sim.checks.touch import DEVICE, SYSTEM, WORD, Touch, words_of
from k3lab.sim.memory.spaces import GlobalMemory

Numbers = NDArray[np.int16]
I64 = NDArray[np.int64]
NOWHERE = -1
_UNIT = {"pairs": PAIR_BYTES, "flags": WORD, "rows": 1}


@dataclass(frozen=True)
class SharedRegion:
    """A piece of a buffer that workgroups share.

    Attributes:
        buffer: which argument of the rank's first launch it lies in, or the name of a buffer.
        start, nbytes: from which byte of that argument's array or of that buffer, and how many.
        guard: name of the flags that say when these rows can be read; they are of the same rank.
        scope: who may read it: this GPU, or every GPU.
        rank: whose it is; ranks may have regions of the same name each. None: there is only one of it, in an argument
            of rank 0 or in a named buffer.
        scratch: whether rows hold nothing when the simulation begins, so that a read of a byte that nothing has written
            since is an error (the option `uninitialised` says what comes of it).
    """

    name: str
    buffer: int | str
    start: int
    nbytes: int
    kind: Literal["pairs", "rows", "flags"]
    guard: str | None = None
    scope: Scope = "device"
    rank: int | None = None
    scratch: bool = False

    def __post_init__(self) -> None:
        expect(self.kind in _UNIT, f"region {self.name}: kind", f"one of {tuple(_UNIT)}", self.kind)
        unit = _UNIT[self.kind]
        fits = self.start >= 0 and self.nbytes > 0 and self.start % max(unit, WORD) == 0 and self.nbytes % unit == 0
        expect(fits, f"region {self.name}", f"whole words of {unit} bytes", (self.start, self.nbytes))
        expect(self.guard is None or self.kind == "rows", f"region {self.name}: guard", "none but on rows", self.guard)
        expect(not self.scratch or self.kind == "rows", f"region {self.name}: scratch", "only rows", self.kind)

    def __str__(self) -> str:
        return f"{self.kind} {self.title}"

    @property
    def title(self) -> str:
        """`XRDY of rank 1`."""
        return self.name if self.rank is None else f"{self.name} of rank {self.rank}"

    @property
    def unit(self) -> int:
        """Bytes of one pair, flag word or byte of rows."""
        return _UNIT[self.kind]


class RegionMap:
    """Declared regions by place.

    Region `NOWHERE` is the last in every attribute, so that ordinary memory needs no case of its own.

    Attributes:
        handed: [regions + 1] whether it is made of words that hand over (pairs, flags).
        policy: [regions + 1] cache policy bits that an access to it must have.
        guard: [regions + 1] number of the flags that guard it, or `NOWHERE`; `guarding`: whether it is such a guard.
    """

    def __init__(self, regions: Sequence[SharedRegion], held: Sequence[Sequence[Any]], memory: GlobalMemory) -> None:
        """Place `regions` in buffers; `held` are the arguments of each rank's first launch, arrays as addresses.

        Raises:
            BadInput: for regions that overlap, lie outside their buffer, or whose guard is not declared as flags.
        """
        self.regions = tuple(regions)
        names = [(region.rank, region.name) for region in regions]
        expect(len(set(names)) == len(names), "regions", "different names on each rank", names)
        flags = {
            name: number
            for number, (name, region) in enumerate(zip(names, regions, strict=True))
            if region.kind == "flags"
        }
        self.handed = np.array([*(region.kind != "rows" for region in regions), False])
        self.policy = np.array([*(SYSTEM if r.scope == "system" else DEVICE for r in regions), 0])
        self.guard = np.array([*(_guard(region, flags) for region in regions), NOWHERE], np.int16)
        self.guarding = np.isin(np.arange(len(regions) + 1), self.guard[self.guard >= 0])
        self._starts: list[int] = []  # in the buffer, by region
        self._bases: list[int] = []  # of the buffer, by region
        self._memory, self._scratch = memory, list[tuple[int, int]]()  # address and bytes of regions that hold nothing
        self._numbers: dict[int, Numbers] = {}
        for number, region in enumerate(regions):
            self._place(number, region, held, memory)

    def begin(self, fill: bytes | None) -> None:
        """What is declared scratch holds `fill`, or nothing (None) so that reading it is reported."""
        for address, nbytes in self._scratch:
            self._memory.scratch(address, nbytes, fill)

    def of(self, touch: Touch) -> Numbers:
        """The region of every word of every element, `[..., words]`; of shape () when they are all in one."""
        numbers = self._numbers.get(touch.buffer.base)
        if numbers is None:
            return np.array(NOWHERE, np.int16)
        first, last = int(touch.offset.min()), int(touch.offset.max()) + touch.size - 1
        number = int(numbers[first // WORD])
        if number != NOWHERE:
            start = self._starts[number]
            if start <= first and last < start + self.regions[number].nbytes:
                return np.array(number, np.int16)
        return numbers[words_of(touch.offset, touch.size)]

    def describe(self, touch: Touch, index: tuple[int, ...]) -> str:
        """`load of 8 bytes at scratch + 128, in the rows X`."""
        numbers = self.of(touch)
        number = int(numbers if numbers.ndim == 0 else numbers[index[: touch.offset.ndim]].max())
        if number == NOWHERE:
            return touch.describe(index)
        return f"{touch.describe(index)}, in the {self.regions[number]}"

    def at(self, base: int, offset: int) -> tuple[SharedRegion, int] | None:
        """The region of a byte of the buffer at `base`, and which pair, flag word or byte of it that is."""
        numbers = self._numbers.get(base)
        number = NOWHERE if numbers is None else int(numbers[offset // WORD])
        if number == NOWHERE:
            return None
        return self.regions[number], (offset - self._starts[number]) // self.regions[number].unit

    @property
    def homes(self) -> dict[int, int]:
        """The rank that owns the regions in a buffer, by the buffer's base address, where they say."""
        ranks = zip(self.regions, self._bases, strict=True)
        return {base: region.rank for region, base in ranks if region.rank is not None}

    def places(self, base: int, words: I64) -> tuple[I64, I64]:
        """By 4-byte word of the buffer at `base`: (its region's number, which pair, flag word or byte of it that is).

        Outside of all regions it is (`NOWHERE`, the byte of the buffer).
        """
        numbers = self._numbers.get(base)
        region = np.full(words.shape, NOWHERE) if numbers is None else numbers[words].astype(np.int64)
        starts, units = np.array([*self._starts, 0]), np.array([*(r.unit for r in self.regions), 1])
        return region, (words * WORD - starts[region]) // units[region]

    def _place(self, number: int, region: SharedRegion, held: Sequence[Sequence[Any]], memory: GlobalMemory) -> None:
        if isinstance(region.buffer, str):
            at = next((buffer.base for buffer in memory.buffers if buffer.name == region.buffer), None)
        else:
            args = held[region.rank or 0] if (region.rank or 0) < len(held) else ()
            at = args[region.buffer] if 0 <= region.buffer < len(args) else None
        buffer = memory.find(at) if isinstance(at, int) else None
        start = 0 if buffer is None or at is None else at - buffer.base + region.start
        if buffer is None or start + region.nbytes > buffer.data.size or start % max(region.unit, WORD):
            raise BadInput(f"region {region.name}: expected a place inside a buffer, got {region!r}.")
        numbers = self._numbers.setdefault(buffer.base, np.full(buffer.data.size // WORD + 2, NOWHERE, np.int16))
        mine = slice(start // WORD, -(-(start + region.nbytes) // WORD))
        expect(bool((numbers[mine] == NOWHERE).all()), f"region {region.name}", "no overlap", "one")
        numbers[mine] = number
        self._starts.append(start)
        self._bases.append(buffer.base)
        if region.scratch:
            self._scratch.append((buffer.base + start, region.nbytes))


def _guard(region: SharedRegion, flags: Mapping[tuple[int | None, str], int]) -> int:
    if region.guard is None:
        return NOWHERE
    known = (region.rank, region.guard) in flags
    expect(known, f"region {region.name}: guard", f"one of the flags {[name for _, name in flags]}", region.guard)
    return flags[region.rank, region.guard]
