"""Whether all workgroups of a launch fit a GPU at once: they wait for each other, so they must."""

from __future__ import annotations

from dataclasses import dataclass

from k3lab.backends.cuda.emit import Source
from k3lab.errors import BackendUnavailable

RESERVED = 1024
"""Bytes of shared memory that CUDA keeps for itself in every workgroup."""
REGISTER_UNIT = 256
"""Registers are given to a warp in multiples of that many."""
WARP = 32


@dataclass(frozen=True)
class Limits:
    """What a GPU has: multiprocessors, and of each its threads, registers and shared memory.

    Attributes:
        shared: bytes of a multiprocessor; `most_shared` is what one workgroup may take.
    """

    name: str
    arch: str
    units: int
    threads: int
    registers: int
    shared: int
    most_shared: int


def per_unit(limits: Limits, blocks: int) -> int:
    """Workgroups that a multiprocessor must hold for all to run at once."""
    return -(-blocks // limits.units)


def check_shape(limits: Limits, source: Source, blocks: int) -> None:
    """Whether threads and shared memory allow it, before anything is compiled.

    Raises:
        BackendUnavailable: with the numbers.
    """
    wanted = per_unit(limits, blocks)
    if source.shared > limits.most_shared:
        raise BackendUnavailable(
            f"cuda: expected at most {limits.most_shared} bytes of shared memory a workgroup on {limits.name}, got "
            f"{_shared(source)} of {source.name}; choose a smaller token_tile."
        )
    by_threads = limits.threads // source.threads
    by_shared = limits.shared // (source.shared + RESERVED)
    if min(by_threads, by_shared) < wanted:
        raise too_few(limits, source, blocks, min(by_threads, by_shared), most_registers(limits, source, wanted))


def most_registers(limits: Limits, source: Source, wanted: int) -> int:
    """Registers a thread may take where a multiprocessor holds `wanted` workgroups."""
    a_warp = limits.registers // (wanted * source.threads // WARP)
    return a_warp // REGISTER_UNIT * REGISTER_UNIT // WARP


def too_few(limits: Limits, source: Source, blocks: int, fit: int, registers: int) -> BackendUnavailable:
    """The refusal of a launch of which `fit` workgroups run on a multiprocessor at once."""
    return BackendUnavailable(
        f"cuda: expected room for all {blocks} workgroups of {source.name} at once, got {fit * limits.units}: {fit} on "
        f"each of {limits.units} multiprocessors of {limits.name} ({registers} registers a thread, {_shared(source)}, "
        f"{source.threads} threads); choose fewer blocks, fewer ranks or a smaller token_tile."
    )


def _shared(source: Source) -> str:
    return f"{source.shared} bytes of shared memory ({source.lds} of LDS, {source.shared - source.lds} of exchange)"
