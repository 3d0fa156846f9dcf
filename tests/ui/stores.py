"""Which workgroup stored each byte of memory, as a simulation went."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch

from k3lab.backends import Run
from k3lab.kernels.host import STORAGE
from k3lab.layout import PAIR_BYTES, VALUES_A_WORD, place_locals
from k3lab.sim.record.trace import Trace

NOBODY = -1


@dataclass
class Stores(Trace):
    """A trace that keeps no steps, but of every wave of a rank who stored what.

    Attributes:
        owners: by buffer name, for each byte the number of the workgroup that stored it last, or -1.
    """

    owners: dict[str, np.ndarray] = field(default_factory=dict)

    def pick(self, code: Any, step: Any) -> Any:
        self._runs.setdefault(id(code), (code, code.noted()))
        return self._runs[id(code)][1]

    def record(self, step: Any, op: Any, operands: tuple[Any, ...], result: Any) -> None:
        if op.name == "llvm.store":
            address = operands[1]
        elif op.name.startswith("rocdl.raw.ptr.buffer.store"):
            _, resource, voffset, soffset = operands[:4]
            address = resource[0] + ((voffset.astype(np.int64) + soffset) & 0xFFFFFFFF)
        else:
            return
        fleet, slot = step.engine.fleet, step.workgroup
        mine = (fleet.device[slot] == self.rank) & (np.True_ if step.mask is None else step.mask)
        address, mine, group = np.broadcast_arrays(address, mine, fleet.workgroup[slot])
        self._keep(step.engine.globals.buffers, address[mine], group[mine], op.operand_types[0].nbytes)

    def _keep(self, buffers: Any, addresses: np.ndarray, groups: np.ndarray, nbytes: int) -> None:
        for buffer in buffers:
            name, _, whose = buffer.name.partition(" of rank ")
            if whose and int(whose.split(",")[0]) != self.rank:
                continue
            here = (addresses >= buffer.base) & (addresses < buffer.base + len(buffer.data))
            if here.any():
                owners = self.owners.setdefault(name, np.full(len(buffer.data), NOBODY))
                for byte in range(nbytes):
                    owners[addresses[here] - buffer.base + byte] = groups[here]

    def of(self, run: Run, name: str) -> torch.Tensor | None:
        """[shape of the tensor] who stored each of its elements; None for what lies in peer buffers."""
        launch, key = run.launch, run.key
        shape = run.ranks[self.rank][name].shape
        for region, place in ((r, p) for r in launch.regions for p in launch.scratch(key) if r.name == p.name == name):
            held = self._at("scratch", place)[::PAIR_BYTES].reshape(place.shape)
            return torch.from_numpy(np.repeat(held, VALUES_A_WORD[region.word], axis=-1)).reshape(shape)
        locals_ = place_locals(launch.locals_for(key), key.sizes)
        for buffer, places in (("scratch", launch.scratch(key)), ("locals", locals_)):
            for place in places:
                if place.name == name:
                    return torch.from_numpy(self._at(buffer, place)[:: place.itemsize].copy()).view(shape)
        found = self.owners.get(name)
        if found is None:
            return None
        inputs = run.case.ranks[self.rank]
        if name in inputs:
            flat = torch.from_numpy(found[:: inputs[name].itemsize].copy())
            return flat.as_strided(inputs[name].shape, inputs[name].stride())
        made = next(made for made in launch.made_for(key) if made.name == name)
        itemsize = STORAGE.get(made.dtype, torch.uint8).itemsize
        return torch.from_numpy(found[::itemsize].copy()).view(shape)

    def _at(self, buffer: str, place: Any) -> np.ndarray:
        nbytes = prod(place.shape) * place.itemsize
        return self.owners[buffer][place.offset : place.offset + nbytes]
