"""Launch a lowered module: arguments as FlyDSL's host launcher takes them, buffers used in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from k3lab.errors import BadInput, expect
from k3lab.lowering.ir import HostLaunch, Module, Type
from k3lab.sim.engine import Engine, Xyz
from k3lab.sim.memory import GlobalMemory
from k3lab.sim.options import Options
from k3lab.sim.program import decode
from k3lab.sim.regions import RegionMap, SharedRegion
from k3lab.sim.semantics.values import held_as


def simulate(
    module: Module,
    *args: Any,
    names: Mapping[int, str] | None = None,
    options: Options | None = None,
    regions: Sequence[SharedRegion] = (),
) -> Engine:
    """Run every kernel launch of `module`'s host function, one after the other; returns the last one's engine.

    Args:
        args: the host function's arguments: numbers, or arrays (NumPy, or CPU tensors) whose address is passed and
            whose memory is used in place.
        names: what reports call the buffers, by argument number.
        regions: through what workgroups hand values over; the checks that `options` ask for go by them.

    Raises:
        BadInput: for arguments that do not fit.
        SimFault: when a check stops the simulation.
    """
    memory = GlobalMemory()
    held = [_mapped(memory, value, (names or {}).get(i, f"argument {i}")) for i, value in enumerate(args)]
    expect(len(module.launches) > 0, "module", "a host function that launches a kernel", "none")
    shared = RegionMap(regions, held, memory)
    for launch in module.launches:
        engine = _engine(module, launch, held, memory, options or Options(), shared)
        engine.run()
    return engine


def _mapped(memory: GlobalMemory, value: Any, name: str) -> Any:
    """A number as it is; an array as its address."""
    if hasattr(value, "detach"):
        value = value.detach().view(dtype=_byte_type(value)).numpy()
    if not isinstance(value, np.ndarray):
        return value
    if not value.flags.c_contiguous:
        raise BadInput(f"{name}: expected a contiguous array, got strides {value.strides}; pass its base.")
    return memory.add(name, value)


def _byte_type(tensor: Any) -> Any:
    import torch

    return torch.uint8


def _engine(
    module: Module,
    launch: HostLaunch,
    held: Sequence[Any],
    memory: GlobalMemory,
    options: Options,
    regions: RegionMap,
) -> Engine:
    program = decode(module, launch.kernel)
    params = program.kernel.params
    given = [_given(source, held) for source in launch.args]
    expect(len(given) >= len(params), f"kernel {launch.kernel}", f"{len(params)} arguments", len(given))
    args = {number: _held(value, kind) for (number, kind), value in zip(params, given, strict=False)}
    return Engine(program, memory, _xyz(launch.grid, held), _xyz(launch.block, held), args, options, regions)


def _given(source: tuple[str, Any], held: Sequence[Any]) -> Any:
    how, value = source
    if how == "const":
        return value
    expect(value < len(held), "launch", f"at least {value + 1} arguments", len(held))
    return held[value]


def _held(value: Any, kind: Type) -> Any:
    if kind.kind == "int" and isinstance(value, int):
        value = (value + (1 << (kind.bits - 1))) % (1 << kind.bits) - (1 << (kind.bits - 1))
    return np.array([[value]], held_as(kind)[0])


def _xyz(sizes: Sequence[Any], held: Sequence[Any]) -> Xyz:
    x, y, z = (int(size if isinstance(size, int) else _given(size, held)) for size in sizes)
    return x, y, z
