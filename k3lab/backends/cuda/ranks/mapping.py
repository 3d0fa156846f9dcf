"""Peer buffers that every process of a team can reach: a rank's lies on its own GPU, the others map it.

On GPUs through CUDA's memory handles between processes, so that a store goes over the link between the GPUs. On this
machine's processor, for tests, through files in memory.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Protocol

import torch

from k3lab.backends.cuda.compiler import binding, called
from k3lab.errors import BackendUnavailable

GRAIN = 2 << 20
"""Bytes that GPU memory is given out in: a smaller piece would be handed over with its neighbours."""


HANDLE = 64
"""Bytes of a handle: CU_IPC_HANDLE_SIZE."""


class Memory(Protocol):
    """Pieces of memory by name, made by one process and opened by others."""

    def make(self, name: str, nbytes: int) -> torch.Tensor:
        """A new piece of this process's, uint8 [nbytes], zero."""

    def open(self, name: str, nbytes: int) -> int:
        """The address of a piece of another process's, which may still have to make it."""

    def close(self) -> None:
        """Let go of every piece."""


class HostMemory:
    """Files in memory."""

    def __init__(self, folder: Path, store: Any) -> None:
        self.folder, self.store = folder, store
        self.held: dict[str, torch.Tensor] = {}

    def make(self, name: str, nbytes: int) -> torch.Tensor:
        """As `Memory.make`."""
        (self.folder / name).write_bytes(bytes(nbytes))
        made = self._mapped(name, nbytes)
        self.store.set(name, "made")
        return made

    def open(self, name: str, nbytes: int) -> int:
        """As `Memory.open`."""
        self.store.get(name)
        return self._mapped(name, nbytes).data_ptr()

    def _mapped(self, name: str, nbytes: int) -> torch.Tensor:
        self.held[name] = torch.from_file(str(self.folder / name), shared=True, size=nbytes, dtype=torch.uint8)
        return self.held[name]

    def close(self) -> None:
        """As `Memory.close`."""
        self.held.clear()


class _Piece:
    """Device memory as torch takes it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class GpuMemory:
    """Device memory of the current GPU; other processes' is mapped over the link, NVLink or PCIe."""

    def __init__(self, index: int, gpus: int, store: Any) -> None:
        """For GPU `index` of the first `gpus`, which must reach each other's memory.

        Raises:
            BackendUnavailable: naming a pair that does not.
        """
        self.index, self.store, self.driver = index, store, binding("driver")
        self.made: list[int] = []
        self.opened: list[int] = []
        torch.cuda.set_device(index)
        torch.cuda.synchronize()  # makes torch's context the current one
        for other in range(gpus):
            reaches = called(self.driver.cuDeviceCanAccessPeer(index, other), "cuDeviceCanAccessPeer")
            if other != index and not reaches:
                raise BackendUnavailable(f"cuda: expected GPU {index} to reach GPU {other}'s memory, but it cannot.")

    def make(self, name: str, nbytes: int) -> torch.Tensor:
        """As `Memory.make`."""
        address = int(called(self.driver.cuMemAlloc(-(-nbytes // GRAIN) * GRAIN), "cuMemAlloc"))
        self.made.append(address)
        held = torch.as_tensor(_Piece(address, nbytes), device=f"cuda:{self.index}")
        held.zero_()
        torch.cuda.synchronize()
        handle = called(self.driver.cuIpcGetMemHandle(address), "cuIpcGetMemHandle")
        self.store.set(name, ctypes.string_at(handle.getPtr(), HANDLE).hex())
        return held

    def open(self, name: str, nbytes: int) -> int:
        """As `Memory.open`."""
        handle = self.driver.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), bytes.fromhex(self.store.get(name).decode()), HANDLE)
        flags = self.driver.CUipcMem_flags.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
        address = int(called(self.driver.cuIpcOpenMemHandle(handle, int(flags)), "cuIpcOpenMemHandle"))
        self.opened.append(address)
        return address

    def close(self) -> None:
        """As `Memory.close`; pieces that others may still have open go with the process."""
        for address in self.opened:
            called(self.driver.cuIpcCloseMemHandle(address), "cuIpcCloseMemHandle")
        self.opened.clear()
