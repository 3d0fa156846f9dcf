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
from k3lab.sim.memory import GlobalMemory
from k3lab.sim.touch import DEVICE, SYSTEM, WORD, Touch, words_of

Numbers = NDArray[np.int16]
NOWHERE = -1
_UNIT = {"pairs": PAIR_BYTES, "flags": WORD, "rows": 1}


@dataclass(frozen=True)
class SharedRegion:
    """A piece of a buffer that workgroups share.

    Attributes:
        buffer: which argument of the launch it lies in.
        start, nbytes: from which byte of the argument's buffer, and how many.
        guard: name of the flags that say when these rows can be read.
        scope: who may read it: this GPU, or every GPU.
    """

    name: str
    buffer: int
    start: int
    nbytes: int
    kind: Literal["pairs", "rows", "flags"]
    guard: str | None = None
    scope: Scope = "device"

    def __post_init__(self) -> None:
        expect(self.kind in _UNIT, f"region {self.name}: kind", f"one of {tuple(_UNIT)}", self.kind)
        unit = _UNIT[self.kind]
        fits = self.start >= 0 and self.nbytes > 0 and self.start % max(unit, WORD) == 0 and self.nbytes % unit == 0
        expect(fits, f"region {self.name}", f"whole words of {unit} bytes", (self.start, self.nbytes))
        expect(self.guard is None or self.kind == "rows", f"region {self.name}: guard", "none but on rows", self.guard)


class RegionMap:
    """Declared regions by place.

    Region `NOWHERE` is the last in every attribute, so that ordinary memory needs no case of its own.

    Attributes:
        handed: [regions + 1] whether it is made of words that hand over (pairs, flags).
        policy: [regions + 1] cache policy bits that an access to it must have.
        guard: [regions + 1] number of the flags that guard it, or `NOWHERE`; `guarding`: whether it is such a guard.
    """

    def __init__(self, regions: Sequence[SharedRegion], held: Sequence[Any], memory: GlobalMemory) -> None:
        """Place `regions` in the buffers at `held`, the launch's arguments as addresses.

        Raises:
            BadInput: for regions that overlap, lie outside their buffer, or whose guard is not declared as flags.
        """
        self.regions = tuple(regions)
        self.names = tuple(region.name for region in regions)
        expect(len(set(self.names)) == len(self.names), "regions", "different names", self.names)
        flags = {region.name: number for number, region in enumerate(regions) if region.kind == "flags"}
        self.handed = np.array([*(region.kind != "rows" for region in regions), False])
        self.policy = np.array([*(SYSTEM if r.scope == "system" else DEVICE for r in regions), 0])
        self.guard = np.array([*(_guard(region, flags) for region in regions), NOWHERE], np.int16)
        self.guarding = np.isin(np.arange(len(regions) + 1), self.guard[self.guard >= 0])
        self._numbers: dict[int, Numbers] = {}
        for number, region in enumerate(regions):
            self._place(number, region, held, memory)

    def of(self, touch: Touch) -> Numbers:
        """The region of every word of every element, `[..., words]`; of shape () when they are all in one."""
        numbers = self._numbers.get(touch.buffer.base)
        if numbers is None:
            return np.array(NOWHERE, np.int16)
        first, last = int(touch.offset.min()), int(touch.offset.max()) + touch.size - 1
        number = int(numbers[first // WORD])
        if number != NOWHERE:
            region = self.regions[number]
            if region.start <= first and last < region.start + region.nbytes:
                return np.array(number, np.int16)
        return numbers[words_of(touch.offset, touch.size)]

    def describe(self, touch: Touch, index: tuple[int, ...]) -> str:
        """`load of 8 bytes at scratch + 128, in the rows X`."""
        numbers = self.of(touch)
        number = int(numbers if numbers.ndim == 0 else numbers[index[: touch.offset.ndim]].max())
        if number == NOWHERE:
            return touch.describe(index)
        return f"{touch.describe(index)}, in the {self.regions[number].kind} {self.names[number]}"

    def _place(self, number: int, region: SharedRegion, held: Sequence[Any], memory: GlobalMemory) -> None:
        at = held[region.buffer] if 0 <= region.buffer < len(held) else None
        buffer = memory.find(at) if isinstance(at, int) else None
        if buffer is None or at != buffer.base or region.start + region.nbytes > buffer.data.size:
            raise BadInput(f"region {region.name}: expected a place inside a buffer, got {region}.")
        numbers = self._numbers.setdefault(at, np.full(buffer.data.size // WORD + 2, NOWHERE, np.int16))
        mine = slice(region.start // WORD, -(-(region.start + region.nbytes) // WORD))
        expect(bool((numbers[mine] == NOWHERE).all()), f"region {region.name}", "no overlap", "one")
        numbers[mine] = number


def _guard(region: SharedRegion, flags: Mapping[str, int]) -> int:
    if region.guard is None:
        return NOWHERE
    expect(region.guard in flags, f"region {region.name}: guard", f"one of the flags {tuple(flags)}", region.guard)
    return flags[region.guard]
