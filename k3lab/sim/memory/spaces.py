"""Simulated memory: global buffers 64 GiB apart, and LDS with a red zone round every workgroup's share.

An address is an int64. Buffers are the caller's own arrays, used in place. An access gathers or scatters whole elements
when it is aligned for them, and bytes otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3lab.geometry import LANES

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
        written: by byte, whether it holds anything (None: not tracked, all of it counts as written).
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
    """Global buffers by address.

    Attributes:
        has_scratch: whether it is tracked for any buffer what has been written.
    """

    buffers: list[Buffer] = field(default_factory=list)
    has_scratch: bool = False

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

    def scratch(self, address: int, nbytes: int, fill: bytes | None) -> None:
        """These bytes hold nothing yet: what reads them before they are written finds `fill`, or is told so (None)."""
        buffer = self.find(address)
        assert buffer is not None
        start = address & OFFSET_MASK
        if fill is not None:
            buffer.data[start : start + nbytes] = _pattern(fill, nbytes)
            return
        if buffer.written is None:
            buffer.written = np.ones(buffer.data.size, bool)
        buffer.written[start : start + nbytes] = False
        self.has_scratch = True

    def written(self, address: I64, size: int) -> Bools:
        """Whether all bytes of each access inside of memory have been written."""
        out = np.ones(address.shape, bool)
        for buffer, chosen, offset in self.parts(address, size, "load"):
            if buffer.written is not None:
                out[chosen] = gather(buffer.written.view(np.uint8), offset[chosen], size).all(-1)
        return out

    def mark(self, address: I64, size: int) -> None:
        """Stores inside of memory have written."""
        for buffer, chosen, offset in self.parts(address, size, "store"):
            if buffer.written is not None:
                buffer.written[offset[chosen][..., None] + np.arange(size)] = True

    def outside(self, address: I64, size: int) -> Bools:
        """Which accesses are not wholly inside a buffer."""
        limits = np.array([buffer.data.size for buffer in self.buffers] or [0], np.int64) - size
        numbers = (address >> SPACING_BITS) - 1
        known = (numbers >= 0) & (numbers < len(self.buffers))
        out: Bools = ~known | (address & OFFSET_MASK > limits[np.where(known, numbers, 0)])
        return out

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


def _pattern(fill: bytes, nbytes: int) -> Bytes:
    """`nbytes` of a pattern repeated."""
    return np.resize(np.frombuffer(fill, np.uint8), nbytes)


class LocalMemory:
    """LDS of every workgroup in one array; addresses are a workgroup's own, from 0.

    A workgroup's share is followed by a red zone, so that an overrun lands in nobody's memory.
    """

    red_zone = 256

    def __init__(self, workgroups: int, nbytes: int, fill: bytes | None = None) -> None:
        """`fill`: what it holds when a kernel starts, and counts as written; None: nothing."""
        self.nbytes = nbytes
        self._fill = fill
        self.stride = -(-(nbytes + self.red_zone) // 16) * 16
        self.data = np.zeros(workgroups * self.stride + self.red_zone, np.uint8)
        self.written = np.zeros(self.data.size // GRAIN + 1, bool)
        self.limit = np.full(workgroups, nbytes, np.int64)
        self._alike = True  # whether all limits are equal

    def begin(self, workgroups: slice, nbytes: int) -> None:
        """A kernel that takes `nbytes` starts in `workgroups`: what LDS holds stays, but counts as never written."""
        self.limit[workgroups] = nbytes
        self._alike = bool((self.limit == nbytes).all())
        self.written[: self.limit.size * self.stride // GRAIN].reshape(self.limit.size, -1)[workgroups] = False
        if self._fill is not None:
            self.written[:] = True
            whole = self.data[: self.limit.size * self.stride].reshape(self.limit.size, -1)
            whole[workgroups] = _pattern(self._fill, self.stride)

    def place(self, workgroup: I64, address: I64, size: int, what: str) -> I64:
        """Offsets in the one array of `address` in `workgroup` (broadcast against each other).

        Raises:
            OutOfBounds: for the first address that is not wholly inside the workgroup's share.
        """
        bad = self.outside(workgroup, address, size)
        if bad.any():
            index = tuple(int(i) for i in np.argwhere(bad)[0])
            place, limit = (np.broadcast_to(x, bad.shape)[index] for x in (address, self._limit(workgroup)))
            at = f"LDS + {int(place)} (it has {int(limit)} bytes)"
            raise OutOfBounds(index, f"{what} of {size} bytes at {at}")
        return workgroup * self.stride + address

    def outside(self, workgroup: I64, address: I64, size: int) -> Bools:
        """Which accesses are not wholly inside the workgroup's share."""
        return np.asarray((address < 0) | (address > self._limit(workgroup) - size))

    def _limit(self, workgroup: I64) -> Any:
        return self.limit[0] if self._alike else self.limit[workgroup]

    def load(self, offset: I64, size: int) -> tuple[Bytes, Bools]:
        """`size` bytes at each offset, and whether each was ever written."""
        return gather(self.data, offset, size), self._grains(offset, size)

    def store(self, offset: I64, values: Bytes) -> None:
        """Store `values: [..., size]` bytes at each offset."""
        scatter(self.data, offset, values)
        self.written[_grains_of(offset, values.shape[-1])] = True

    def _grains(self, offset: I64, size: int) -> Bools:
        """Whether all grains of each access have been written."""
        if (offset & (GRAIN - 1)).any():
            return np.asarray(self.written[_grains_of(offset, size)].all(-1))
        count = -(-size // GRAIN)
        flags = gather(self.written.view(np.uint8), offset // GRAIN, count)
        if count in _ONES:
            return np.asarray(flags.view(CONTAINERS[count]) == _ONES[count])[..., 0]
        return np.asarray(flags.all(-1))


def _grains_of(offset: I64, size: int) -> I64:
    """The grains each access reaches into, `[..., grains]`; the last one several times where it reaches less far."""
    first, slack = offset[..., None] // GRAIN, int((offset & (GRAIN - 1)).max())
    grains = first + np.arange(-(-(slack + size) // GRAIN))
    return grains if slack == 0 else np.minimum(grains, (offset[..., None] + size - 1) // GRAIN)


class PrivateMemory:
    """Private memory of every lane of every wave; addresses are a lane's own, from 0."""

    def __init__(self, waves: int, fill: bytes | None = None) -> None:
        """`fill`: what it holds when allocated, and counts as written; None: nothing."""
        self.nbytes = 0
        self._fill = fill
        self._places: dict[int, tuple[Any, int]] = {}
        self._data, self._written = np.zeros((waves, LANES, 0), np.uint8), np.zeros((waves, LANES, 0), bool)

    def allocate(self, op: Any, nbytes: int, waves: I64, mask: Bools | None) -> int:
        """The address of what the operation `op` allocates, which then holds nothing in the active lanes."""
        if id(op) not in self._places:
            self._places[id(op)] = op, self.nbytes
            more = -(-nbytes // 16) * 16
            self.nbytes += more
            room = ((0, 0), (0, 0), (0, more))
            self._data, self._written = np.pad(self._data, room), np.pad(self._written, room)
        place = self._places[id(op)][1]
        rows = np.ix_(waves, np.arange(LANES), np.arange(place, place + nbytes))
        fresh = np.True_ if mask is None else mask[..., None]
        if self._fill is None:
            self._written[rows] &= ~fresh
        else:
            self._written[rows] = True
            self._data[rows] = np.where(fresh, _pattern(self._fill, nbytes), self._data[rows])
        return place

    def load(self, waves: I64, address: I64, size: int) -> tuple[Bytes, Bools]:
        """`size` bytes at each lane's address, and whether all of them were ever written.

        Raises:
            OutOfBounds: for the first address that is not wholly inside.
        """
        at = self._at(waves, address, size, "load")
        return self._data[at], np.asarray(self._written[at].all(-1))

    def store(self, waves: I64, address: I64, values: Bytes, use: Bools | None) -> None:
        """Store `values: [..., size]` at each lane's address, where `use` holds (None: everywhere).

        Raises:
            OutOfBounds: for the first address that is not wholly inside.
        """
        at = np.broadcast_arrays(*self._at(waves, address, values.shape[-1], "store"))
        chosen = np.ones(at[0].shape[:2], bool) if use is None else use
        places = tuple(index[chosen] for index in at)
        self._data[places], self._written[places] = np.broadcast_to(values, at[0].shape)[chosen], True

    def _at(self, waves: I64, address: I64, size: int, what: str) -> tuple[I64, I64, I64]:
        bad = (address < 0) | (address > self.nbytes - size)
        if bad.any():
            index = tuple(int(i) for i in np.argwhere(bad)[0])
            held = f"private memory + {int(address[index])} (it has {self.nbytes} bytes)"
            raise OutOfBounds(index, f"{what} of {size} bytes at {held}")
        return waves[:, None, None], np.arange(LANES)[None, :, None], address[..., None] + np.arange(size)
