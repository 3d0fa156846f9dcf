"""Simulated memory: global buffers 64 GiB apart, and LDS with a red zone round every workgroup's share.

An address is an int64. Buffers are the caller's own arrays, used in place. An access gathers or scatters whole elements
when it is aligned for them, and bytes otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

SPACING_BITS = 36
OFFSET_MASK = (1 << SPACING_BITS) - 1
GRAIN = 4  # bytes whose having been written is tracked together
_ONES = {1: np.uint8(1), 2: np.uint16(0x0101), 4: np.uint32(0x01010101)}  # that many grains written
CONTAINERS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


@dataclass
class Buffer:
    """A named piece of global memory.

    Attributes:
        data: its bytes, the caller's array seen flat.
        written: by grain, whether it holds anything (None: not tracked, all of it counts as written).
    """

    name: str
    data: Bytes
    base: int
    written: Bools | None = None


@dataclass(frozen=True)
class OutOfBounds(Exception):
    """Element `index` of an access lies outside memory; `what` says how."""

    index: tuple[int, ...]
    what: str


@dataclass
class GlobalMemory:
    """Global buffers by address."""

    buffers: list[Buffer] = field(default_factory=list)

    def add(self, name: str, array: NDArray[Any]) -> int:
        """Map `array` (C-contiguous, used in place) and return its address."""
        data = array.reshape(-1).view(np.uint8)
        base = (len(self.buffers) + 1) << SPACING_BITS
        self.buffers.append(Buffer(name, data, base))
        return base

    def find(self, address: int) -> Buffer | None:
        """The buffer an address points into or past."""
        number = (address >> SPACING_BITS) - 1
        return self.buffers[number] if 0 <= number < len(self.buffers) else None

    def describe(self, address: int) -> str:
        """`x + 57344 (buffer has 57344 bytes)`, or the bare address."""
        buffer = self.find(address)
        if buffer is None:
            return f"address {address:#x}, which no buffer holds"
        return f"{buffer.name} + {address & OFFSET_MASK} (buffer has {buffer.data.size} bytes)"

    def load(self, address: I64, size: int) -> NDArray[Any]:
        """`size` bytes at each address -> [..., size] uint8.

        Raises:
            OutOfBounds: for the first address that is not wholly inside a buffer.
        """
        parts = self.parts(address, size, "load")
        if len(parts) == 1:
            buffer, chosen, offset = parts[0]
            return gather(buffer.data, offset, size)
        out = np.empty((*address.shape, size), np.uint8)
        for buffer, chosen, offset in parts:
            out[chosen] = gather(buffer.data, offset[chosen], size)
        return out

    def store(self, address: I64, values: Bytes) -> None:
        """Store `values: [..., size]` bytes at each address.

        Raises:
            OutOfBounds: for the first address that is not wholly inside a buffer.
        """
        parts = self.parts(address, values.shape[-1], "store")
        for buffer, chosen, offset in parts:
            scatter(buffer.data, offset[chosen], values[chosen])

    def parts(self, address: I64, size: int, what: str) -> list[tuple[Buffer, Any, I64]]:
        """The buffers touched, each with the elements (an index) that touch it, and all elements' offsets."""
        numbers = (address >> SPACING_BITS) - 1
        offset = address & OFFSET_MASK
        first = int(numbers.flat[0])
        if (numbers == first).all():
            return [(self._checked(first, address, offset, size, what, ...), ..., offset)]
        parts = []
        for number in np.unique(numbers):
            chosen = numbers == number
            parts.append((self._checked(int(number), address, offset, size, what, chosen), chosen, offset))
        return parts

    def _checked(self, number: int, address: I64, offset: I64, size: int, what: str, chosen: Any) -> Buffer:
        mine = np.zeros(address.shape, bool)
        if not 0 <= number < len(self.buffers):
            mine[chosen] = True
        else:
            buffer = self.buffers[number]
            limit = buffer.data.size - size
            if int(offset[chosen].max()) <= limit:
                return buffer
            mine[chosen] = offset[chosen] > limit
        index = tuple(int(i) for i in np.argwhere(mine)[0])
        raise OutOfBounds(index, f"{what} of {size} bytes at {self.describe(int(address[index]))}")


def gather(data: Bytes, offset: I64, size: int) -> Bytes:
    """`size` bytes at each offset of `data` -> [..., size]."""
    container = CONTAINERS.get(size)
    if container is not None and not (offset & (size - 1)).any() and data.size >= size:
        whole: NDArray[Any] = data[: data.size // size * size].view(container)
        return np.take(whole, offset // size)[..., None].view(np.uint8)
    return data[offset[..., None] + np.arange(size)]


def scatter(data: Bytes, offset: I64, values: Bytes) -> None:
    """Put `values: [..., size]` at each offset of `data`; where two meet, the last one stays."""
    size = values.shape[-1]
    container = CONTAINERS.get(size)
    if container is not None and not (offset & (size - 1)).any() and data.size >= size:
        whole: NDArray[Any] = data[: data.size // size * size].view(container)
        whole[offset // size] = np.ascontiguousarray(values).view(container)[..., 0]
    else:
        data[offset[..., None] + np.arange(size)] = values


class LocalMemory:
    """LDS of every workgroup in one array; addresses are a workgroup's own, from 0.

    A workgroup's share is followed by a red zone, so that an overrun lands in nobody's memory.
    """

    red_zone = 256

    def __init__(self, workgroups: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self.stride = -(-(nbytes + self.red_zone) // 16) * 16
        self.data = np.zeros(workgroups * self.stride + self.red_zone, np.uint8)
        self.written = np.zeros(self.data.size // GRAIN + 1, bool)

    def place(self, workgroup: I64, address: I64, size: int, what: str) -> I64:
        """Offsets in the one array of `address` in `workgroup` (broadcast against each other).

        Raises:
            OutOfBounds: for the first address that is not wholly inside the workgroup's share.
        """
        bad = (address < 0) | (address > self.nbytes - size)
        if bad.any():
            index = tuple(int(i) for i in np.argwhere(bad)[0])
            at = f"LDS + {int(address[index])} (it has {self.nbytes} bytes)"
            raise OutOfBounds(index, f"{what} of {size} bytes at {at}")
        return workgroup * self.stride + address

    def load(self, offset: I64, size: int) -> tuple[Bytes, Bools]:
        """`size` bytes at each offset, and whether each was ever written."""
        return gather(self.data, offset, size), self._grains(offset, size)

    def store(self, offset: I64, values: Bytes) -> None:
        """Store `values: [..., size]` bytes at each offset."""
        scatter(self.data, offset, values)
        size = values.shape[-1]
        first = offset[..., None] // GRAIN
        self.written[first + np.arange(-(-size // GRAIN))] = True

    def _grains(self, offset: I64, size: int) -> Bools:
        """Whether all grains of each access have been written."""
        count = -(-size // GRAIN)
        flags = gather(self.written.view(np.uint8), offset // GRAIN, count)
        if count in _ONES:
            return np.asarray(flags.view(CONTAINERS[count]) == _ONES[count])[..., 0]
        return np.asarray(flags.all(-1))
