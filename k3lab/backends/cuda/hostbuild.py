"""The same translation on this machine's processor, to check it without a GPU: a vehicle for tests, not a backend.

Every thread is a fiber; warps, waves and workgroups meet as they do on a GPU, one thread runs at a time. So this says
whether the translation computes what the kernel does, and nothing about concurrency or time.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from k3lab.backends.cuda.arguments import blocks_of, packed
from k3lab.backends.cuda.emit import Source, runtime, translate
from k3lab.backends.cuda.fast.alignment import check_aligned
from k3lab.errors import BackendUnavailable, InternalFault
from k3lab.kernels.host import Buffers
from k3lab.kernels.lowered import lowered
from k3lab.lowering import store
from k3lab.lowering.ir import Module

COMPILERS = ("g++", "clang++")
FLAGS = (
    "-std=c++17",
    "-O1",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fPIC",
    "-shared",
    "-w",
    "-U_FORTIFY_SOURCE",
)
LONG_JUMPS = ("-U_FORTIFY_SOURCE",)
"""Its longjmp goes up a stack only, where fibers jump to another."""
ENTRY = "static void k3_kernel(const K3Launch& launch)"
STACK = 1 << 18
MOST_TURNS = 400_000_000
WHY = {
    1: "no thread can go on",
    2: "threads still run at the limit of turns",
    3: "no memory for the threads' stacks",
    4: "a race",
}


def compiler() -> str:
    """The C++ compiler to use; empty where there is none."""
    return next((found for name in COMPILERS if (found := shutil.which(name))), "")


def run(module: Module, *args: Any, turns: int = MOST_TURNS, races: bool = False) -> None:
    """Launch `module` once. Arguments are numbers, or CPU tensors and arrays whose memory is used in place.

    Args:
        races: whether to look for accesses to LDS that nothing orders.

    Raises:
        BadInput: for operations that are not translated.
        BackendUnavailable: without a C++ compiler.
        InternalFault: when threads do not end, or for a race.
    """
    numbers = [_number(arg) for arg in args]
    launch(translate(module), blocks_of(module, numbers), [packed(module, numbers)], turns, races)


def launched(
    ranks: Sequence[Buffers],
    turns: int = MOST_TURNS,
    races: bool = False,
    live: Sequence[int] | None = None,
    table: Sequence[int] = (),
    fast: bool = False,
    others: bool = False,
) -> None:
    """One launch on ranks' buffers, in place.

    Args:
        live: places in `ranks` of those that run; all, if None.
        table: addresses of every rank's peer buffer, where some are another process's.
        fast: the fast build, with tensor cores and approximations that stand for a GPU's.
        others: whether other processes run ranks too, so that this one gives way while it waits for them.

    Raises:
        BadInput, BackendUnavailable, InternalFault: as `run`.
    """
    running = ranks if live is None else [ranks[place] for place in live]
    if "peers" in running[0].tensors:
        table = table or [buffers.tensors["peer_buffer"].data_ptr() for buffers in ranks]
        for buffers in running:
            buffers.tensors["peers"].copy_(torch.tensor(table, dtype=torch.int64))
    module = lowered(running[0].launch, running[0].key, running[0].stages)
    given = [buffers.bound(torch.Tensor.data_ptr) for buffers in running]
    words = [packed(module, args) for args in given]
    launch(translate(module, fast), blocks_of(module, given[0]), words, turns, races, others)


def _number(arg: Any) -> int:
    if isinstance(arg, torch.Tensor):
        return arg.data_ptr()
    return int(arg.ctypes.data) if hasattr(arg, "ctypes") else int(arg)


def launch(
    source: Source,
    blocks: int,
    ranks: Sequence[Sequence[int]],
    turns: int = MOST_TURNS,
    races: bool = False,
    others: bool = False,
) -> None:
    """Run a kernel's text on `blocks` workgroups a rank, given each rank's arguments as words.

    Raises:
        BadInput: for an address that is not aligned as the fast build takes it to be.
        BackendUnavailable, InternalFault: as `run`.
    """
    numbers = [word & (1 << 64) - 1 for rank in ranks for word in rank]
    check_aligned(source.name, source.aligned, numbers, source.parameters)
    library = build(source, len(ranks), races, others)

    class Launch(ctypes.Structure):
        """`K3Launch` of the run time."""

        _fields_ = (("blocks", ctypes.c_uint32), ("args", ctypes.c_uint64 * max(len(numbers), 1)))

    given = Launch(blocks, (ctypes.c_uint64 * max(len(numbers), 1))(*numbers))
    report = ctypes.create_string_buffer(200)
    found = library.k3_run(
        ctypes.byref(given), blocks * len(ranks), source.threads, ctypes.c_uint64(turns), report, len(report)
    )
    if found:
        said = report.value.decode()
        raise InternalFault(
            f"host build of {source.name}: expected all threads to end and no race, got {WHY[found]}: {said}."
        )


def build(source: Source, ranks: int = 1, races: bool = False, others: bool = False) -> ctypes.CDLL:
    """The compiled text for launches of `ranks` ranks at once.

    Raises:
        BackendUnavailable: without a C++ compiler.
    """
    defined = (f"K3_STACK {STACK}", *(["K3_RACES"] if races else []), *(["K3_OTHERS"] if others else []))
    end = (runtime("host_races.hpp") if races else "") + runtime("host_run.hpp")
    return _library(source.complete("host.hpp", ENTRY, ranks, defined) + end)


@cache
def _library(text: str) -> ctypes.CDLL:
    """The shared library made of `text`."""
    command = compiler()
    if not command:
        raise BackendUnavailable(f"host build: expected a C++ compiler ({' or '.join(COMPILERS)}) on PATH, got none.")
    made = store.cached(
        "cuda-host", [_version(command), " ".join((*FLAGS, *LONG_JUMPS)), text], lambda: _compiled(command, text)
    )
    with TemporaryDirectory() as folder:
        path = Path(folder, "kernel.so")
        path.write_bytes(made)
        return ctypes.CDLL(str(path))


@cache
def _version(command: str) -> str:
    return subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout


def _compiled(command: str, text: str) -> bytes:
    with TemporaryDirectory() as folder:
        source, target = Path(folder, "kernel.cpp"), Path(folder, "kernel.so")
        source.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [command, *FLAGS, *LONG_JUMPS, str(source), "-o", str(target)], capture_output=True, text=True
        )
        if done.returncode:
            raise InternalFault(f"host build: expected {command} to compile the translation, got: {done.stderr[:2000]}")
        return target.read_bytes()
