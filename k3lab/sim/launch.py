"""Launch a lowered module once, on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from k3lab.lowering.ir import Module
from k3lab.sim.chain import Launch, simulate_chain
from k3lab.sim.engine import Engine
from k3lab.sim.memory.buffers import Memory
from k3lab.sim.memory.regions import SharedRegion
from k3lab.sim.options import Options


def simulate(
    module: Module,
    *args: Any,
    names: Mapping[int, str] | None = None,
    options: Options | None = None,
    regions: Sequence[SharedRegion] = (),
    memory: Memory | None = None,
) -> Engine:
    """Run every kernel launch of `module`'s host function, one after the other; returns the engine at the end.

    Args:
        args: the host function's arguments: numbers, or arrays (NumPy, or CPU tensors) whose address is passed and
            whose memory is used in place.
        names: what reports call the buffers, by argument number.
        regions: through what workgroups hand values over; the checks that `options` ask for go by them.
        memory: arrays mapped before, whose addresses may stand in pointer tables.

    Raises:
        BadInput: for arguments that do not fit.
        SimFault: when a check stops the simulation.
    """
    launch = Launch(module, args, dict(names or {}))
    return simulate_chain([[launch]], memory=memory, options=options, regions=regions)
