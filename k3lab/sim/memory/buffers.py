"""The arrays that a simulation works on, in place, and the addresses kernels know them by."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from k3lab.errors import BadInput, expect
from k3lab.sim.memory.spaces import GlobalMemory

I64 = NDArray[np.int64]
Named = tuple[str, Any]


class Memory:
    """Arrays by simulated address; all devices of a simulation see the same ones.

    An array is mapped once: whoever passes it again, or a part of it, means the same address. So a caller who fills
    pointer tables adds the arrays first and passes the tables like any other array.
    """

    def __init__(self) -> None:
        self.globals = GlobalMemory()
        self._places: list[tuple[int, int, int]] = []  # (first host byte, one past the last, address), in order

    def add(self, name: str, array: Any) -> int:
        """Map `array` (NumPy, or a CPU tensor; contiguous), called `name` in reports, and return its address.

        Raises:
            BadInput: for an array that is not contiguous, or overlaps one that is mapped without lying inside it.
        """
        data = as_bytes(name, array)
        start, end = _extent(data)
        if data.size == 0:
            return self.globals.add(name, data)
        following = bisect_right(self._places, (start, 2**64, 0))
        if following and start < (place := self._places[following - 1])[1]:
            expect(end <= place[1], name, "an array inside or outside of those mapped before", "one that overlaps")
            return place[2] + start - place[0]
        clear = following == len(self._places) or end <= self._places[following][0]
        expect(clear, name, "an array inside or outside of those mapped before", "one that overlaps")
        address = self.globals.add(name, data)
        insort(self._places, (start, end, address))
        return address

    def add_all(self, arrays: Sequence[Named]) -> list[int]:
        """Map several (name, array), in any order of parts and wholes; returns their addresses."""
        held = [as_bytes(name, array) for name, array in arrays]
        outer = list(range(len(held)))  # by array: the largest one it is a part of
        last = None
        for i in sorted(range(len(held)), key=lambda i: (_extent(held[i])[0], -held[i].size)):
            inside = last is not None and held[i].size and _extent(held[i])[1] <= _extent(held[last])[1]
            outer[i] = last = last if inside and last is not None else i
        addresses = []
        for i, (name, _) in enumerate(arrays):
            self.add(arrays[outer[i]][0], held[outer[i]])
            addresses.append(self.add(name, held[i]))
        return addresses

    def table(self, arrays: Iterable[Any]) -> I64:
        """The addresses of `arrays`, all added before, as a kernel's table of pointers."""
        return np.array([self.address(array) for array in arrays], np.int64)

    def address(self, array: Any) -> int:
        """The address of an array that is mapped, or of a part of one.

        Raises:
            BadInput: when it is not mapped.
        """
        start, end = _extent(as_bytes("array", array))
        for first, last, address in self._places:
            if first <= start < end <= last:
                return address + start - first
        raise BadInput("array: expected one that has been added, or a part of it, got another; add it first.")


def is_array(value: Any) -> bool:
    """Whether an argument is an array (NumPy, or a tensor) rather than a number."""
    return isinstance(value, np.ndarray) or hasattr(value, "detach")


def as_bytes(name: str, array: Any) -> NDArray[np.uint8]:
    """The array's memory, flat.

    Raises:
        BadInput: for an array that is not contiguous.
    """
    if hasattr(array, "detach"):
        array = array.detach().view(dtype=_byte_type()).numpy()
    if not array.flags.c_contiguous:
        raise BadInput(f"{name}: expected a contiguous array, got strides {array.strides}; pass its base.")
    data: NDArray[np.uint8] = array.reshape(-1).view(np.uint8)
    return data


def _byte_type() -> Any:
    import torch

    return torch.uint8


def _extent(data: NDArray[np.uint8]) -> tuple[int, int]:
    start = int(data.__array_interface__["data"][0])
    return start, start + data.size
