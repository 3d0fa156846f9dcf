"""Launches on several devices in one simulation, each device's one after the other, devices at the same time.

A device's next launch starts when all waves of the one before have left. A device may be launches ahead of another one
as far as what they hand each other allows. Memory keeps what it holds from launch to launch, and so does LDS, where a
read of what this launch has not written counts as uninitialised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from k3lab.errors import BadInput, expect
from k3lab.lowering.ir import HostLaunch, Module, Type
from k3lab.sim.decode.link import Image, Xyz, link
from k3lab.sim.decode.program import Program, decode
from k3lab.sim.engine import Engine
from k3lab.sim.memory.buffers import Memory, Named, is_array
from k3lab.sim.memory.regions import RegionMap, SharedRegion
from k3lab.sim.options import Options
from k3lab.sim.schedule.fleet import Dispatch, Fleet
from k3lab.sim.semantics.values import held_as


@dataclass(frozen=True)
class Launch:
    """A call of a module's host function, which may launch several kernels.

    Attributes:
        args: numbers (addresses too), or arrays (NumPy, or CPU tensors) whose address is passed and whose memory is
            used in place.
        names: what reports call the arrays, by argument number; `argument 2` if they are not told otherwise.
    """

    module: Module
    args: Sequence[Any]
    names: dict[int, str] | None = None


def simulate_chain(
    ranks: Sequence[Sequence[Launch]],
    *,
    memory: Memory | None = None,
    options: Options | None = None,
    regions: Sequence[SharedRegion] = (),
    ended: Callable[[int, int], None] | None = None,
) -> Engine:
    """Run what every rank launches; returns the engine as it stands at the end.

    Args:
        ranks: launches of each rank, in order.
        memory: arrays mapped before, whose addresses may stand in pointer tables; others are mapped as they come.
        regions: through what workgroups and ranks hand values over; the checks that `options` ask for go by them.
        ended: called with a rank and the number of its kernel that has ended, before its next one starts: what that
            kernel left in memory of its rank's own is all there, and nothing else.

    Raises:
        BadInput: for arguments or regions that do not fit.
        SimFault: when a check stops the simulation, nothing can go on, or on Ctrl-C; it carries the engine.
    """
    memory, options = memory or Memory(), options or Options()
    held = _addresses(ranks, memory)
    builder = _Builder()
    queues = [
        [dispatch for launch, args in zip(rank, given, strict=True) for dispatch in builder.dispatches(launch, args)]
        for rank, given in zip(ranks, held, strict=True)
    ]
    shared = RegionMap(regions, [given[0] if given else () for given in held], memory.globals)
    fleet = Fleet(queues, options.resident, ended)
    engine = Engine(link(builder.images), memory.globals, fleet, options, shared)
    engine.run()
    return engine


def _addresses(ranks: Sequence[Sequence[Launch]], memory: Memory) -> list[list[list[Any]]]:
    """Every launch's arguments with arrays replaced by their addresses."""
    arrays: list[Named] = []
    for rank, launches in enumerate(ranks):
        for number, launch in enumerate(launches):
            for i, value in enumerate(launch.args):
                if is_array(value):
                    place = (f"rank {rank} " if len(ranks) > 1 else "") + (
                        f"launch {number} " if len(launches) > 1 else ""
                    )
                    arrays.append(((launch.names or {}).get(i, f"{place}argument {i}"), value))
    mapped = iter(memory.add_all(arrays))
    return [
        [[next(mapped) if is_array(value) else value for value in launch.args] for launch in launches]
        for launches in ranks
    ]


class _Builder:
    """Decodes each kernel once, however often it is launched, and keeps arguments that are equal as one array."""

    def __init__(self) -> None:
        self.images: list[Image] = []
        self._numbers: dict[tuple[int, str, Xyz, Xyz], int] = {}
        self._programs: dict[tuple[int, str], Program] = {}
        self._held: dict[tuple[Any, str], Any] = {}

    def dispatches(self, launch: Launch, held: Sequence[Any]) -> list[Dispatch]:
        """The kernel launches of a call with its arguments as addresses."""
        module = launch.module
        expect(len(module.launches) > 0, "module", "a host function that launches a kernel", "none")
        return [self._dispatch(module, host, held) for host in module.launches]

    def _dispatch(self, module: Module, host: HostLaunch, held: Sequence[Any]) -> Dispatch:
        number = self._image(module, host.kernel, _xyz(host.grid, held), _xyz(host.block, held))
        params = self.images[number].program.kernel.params
        given = [_given(source, held) for source in host.args]
        expect(len(given) >= len(params), f"kernel {host.kernel}", f"{len(params)} arguments", len(given))
        args = {name: self._value(value, kind) for (name, kind), value in zip(params, given, strict=False)}
        return Dispatch(self.images[number], number, args)

    def _image(self, module: Module, kernel: str, grid: Xyz, block: Xyz) -> int:
        key = (id(module), kernel, grid, block)
        if key not in self._numbers:
            if key[:2] not in self._programs:
                self._programs[key[:2]] = decode(module, kernel)
            self._numbers[key] = len(self.images)
            self.images.append(Image(self._programs[key[:2]], grid, block))
        return self._numbers[key]

    def _value(self, value: Any, kind: Type) -> Any:
        """[1, 1] the value; the same array for the same value, so that devices' waves share it."""
        if kind.kind == "int" and isinstance(value, int):
            value = (value + (1 << (kind.bits - 1))) % (1 << kind.bits) - (1 << (kind.bits - 1))
        array = np.array([[value]], held_as(kind)[0])
        return self._held.setdefault((array.tobytes(), array.dtype.str), array)


def _given(source: tuple[str, Any], held: Sequence[Any]) -> Any:
    how, value = source
    if how == "const":
        return value
    expect(value < len(held), "launch", f"at least {value + 1} arguments", len(held))
    return held[value]


def _xyz(sizes: Sequence[Any], held: Sequence[Any]) -> Xyz:
    given = [size if isinstance(size, int) else _given(size, held) for size in sizes]
    if not all(isinstance(size, int | np.integer) for size in given):
        raise BadInput(f"launch: expected numbers as sizes, got {given}.")
    x, y, z = map(int, given)
    return x, y, z
