"""One step: a cohort running one block, as operations see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from k3lab.geometry import LANES
from k3lab.sim.faults import Finding, SimFault, Where

if TYPE_CHECKING:
    from k3lab.hardware.mfma import MfmaModel
    from k3lab.lowering.ir import Op
    from k3lab.sim.clock.timer import Pace
    from k3lab.sim.engine import Engine
    from k3lab.sim.memory.spaces import PrivateMemory
    from k3lab.sim.schedule.cohort import Cohort
    from k3lab.sim.semantics.spread import Shadow

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
Index = tuple[int, ...]


class Step:
    """What operations of one block know of the waves that run it, and how they reach memory and reports.

    Attributes:
        n, mask: waves, and which of their lanes are active (None: all).
        workgroup, wave_in_block: [n, 1] int64; a workgroup's number is that of its slot in the fleet.
        grid, block_dim: the launch's sizes, in workgroups and in threads.
        block_xyz, thread_xyz: workgroup and thread numbers in x, y, z, within the launch.
        strict: whether operations report what hardware does silently.
        at: number of the operation that runs, in its block, whose label is `block`.
        watch: what sees every access to global memory; None when no option asks for it.
        meter: what is shown every access to any memory, to measure it; None when no option asks for it.
        pace: the modelled time of the waves; only a modelled clock sets it.
        shades: where values are poison that outlive their block; `follows_poison`: whether anybody asks.
    """

    pace: Pace

    def __init__(self, engine: Engine, cohort: Cohort, ops: tuple[Op, ...], block: str = "") -> None:
        self.engine = engine
        self.n = cohort.n
        self.mask = cohort.mask
        self.waves = cohort.waves
        self.ops = ops
        self.block = block
        self.at = 0
        self.strict = engine.options.strict
        self.globals = engine.globals
        self.watch = engine.watch
        self.meter = engine.meter
        self.lds = engine.lds
        image = engine.linked.images[engine.linked.numbers[cohort.block]]
        self.grid, self.block_dim = image.grid, image.block
        self.shades = engine.shades[engine.linked.numbers[cohort.block]]
        self.follows_poison = engine.options.poison != "off"
        self.workgroup = (cohort.waves // engine.waves_per_group)[:, None]
        self.wave_in_block = (cohort.waves % engine.waves_per_group)[:, None]

    @property
    def private(self) -> PrivateMemory:
        """The waves' private memory."""
        return self.engine.private

    @property
    def mfma(self) -> MfmaModel:
        return self.engine.mfma

    @property
    def block_xyz(self) -> tuple[NDArray[np.int32], ...]:
        """Workgroup numbers in x, y, z, [n, 1] each."""
        return _unflatten(self.engine.fleet.workgroup[self.workgroup], self.grid)

    @property
    def thread_xyz(self) -> tuple[NDArray[np.int32], ...]:
        """Thread numbers in x, y, z, [n, 64] each."""
        return _unflatten(self.wave_in_block * LANES + np.arange(LANES), self.block_dim)

    @property
    def ticks(self) -> I64:
        """The clock s_memrealtime reads, [n or 1, 1]; without a modelled one it moves only when nothing else can."""
        return self.engine.timer.read(self)

    def point(self, number: int) -> None:
        """Come to operation `number`, at which the modelled clock settles the waves' time."""
        self.engine.timer.point(self, number)

    def safe(self, address: I64) -> I64:
        """`address` with inactive lanes' garbage replaced by an active lane's."""
        if self.mask is None or address.shape == (1, 1):
            return address
        full = np.broadcast_to(address, (self.n, LANES))
        first = full[np.arange(self.n), self.mask.argmax(1)][:, None]
        return np.where(self.mask, full, first)

    def spread(self, value: NDArray[Any]) -> NDArray[Any]:
        """A value for every lane of every wave, [n, 64] or [n, 64, elements]."""
        return np.broadcast_to(value, (self.n, LANES, *value.shape[2:]))

    def active(self) -> Iterator[tuple[int, int]]:
        """(wave, lane) of every active lane, in order."""
        here = np.ones((self.n, LANES), bool) if self.mask is None else self.mask
        for row, lane in np.argwhere(here):
            yield int(row), int(lane)

    def chosen(
        self, address: I64, data: NDArray[np.uint8], only: Bools | None
    ) -> tuple[Any, I64, NDArray[np.uint8]] | None:
        """The stores to make: (which lanes, their addresses, their bytes); None when no lane stores."""
        shape = np.broadcast_shapes(address.shape, data.shape[:-1])
        if self.mask is not None:
            shape = (self.n, LANES)
        elif shape[0] == 1 and only is not None:
            shape = np.broadcast_shapes(shape, only.shape)
        address = np.broadcast_to(address, shape)
        data = np.broadcast_to(data, (*shape, data.shape[-1]))
        use = self.mask
        if only is not None:
            use = np.broadcast_to(only, shape) if use is None else use & only
        if use is None:
            return None, address, data
        return (use, address[use], data[use]) if use.any() else None

    def back(self, use: Bools | None, index: Index) -> Index:
        """The (wave, lane) of the store at `index` of those `chosen`."""
        return index if use is None else tuple(int(i) for i in np.argwhere(use)[index[0]])

    def watch_lds(self, what: str, offset: I64, size: int, use: Bools | None = None) -> None:
        """Let the race detector, if there is one, see LDS accesses; `use` says which lanes flat ones belong to."""
        races = self.engine.races
        if races is None:
            return
        wave, group = self.wave_in_block, self.workgroup
        if use is not None:
            wave, group = (np.broadcast_to(v, use.shape)[use] for v in (wave, group))
        elif self.mask is not None:
            here = np.broadcast_to(self.mask, np.broadcast_shapes(offset.shape, self.mask.shape))
            offset, wave, group = (np.broadcast_to(v, here.shape)[here] for v in (offset, wave, group))
            use = here
        note = races.load if what == "load" else races.store
        index = note(offset, size, wave, group)
        if index is not None:
            message = f"{what} of {size} bytes of LDS that another wave touches before the next barrier"
            self.found("race", message, self.back(use, index))

    def refuse(self, number: int, *shadows: Shadow | None) -> None:
        """Report poison that shows: operation `number` branches on it, stores it or has it in an address."""
        for shadow in shadows:
            if shadow is None or not self.follows_poison:
                continue
            lanes = np.asarray(shadow.lanes.any(axis=2))
            lanes = lanes if self.mask is None else lanes & self.mask
            self.at = number
            if lanes.any() and not self.knows("poison"):
                name = self.ops[number].name
                self.report("poison", f"{name} of what LLVM leaves undefined: {shadow.why}", lanes)

    def note(self, number: int, operands: tuple[Any, ...], result: Any) -> None:
        """Record an operation for the trace that looks at these waves."""
        trace = self.engine.options.trace
        assert trace is not None
        trace.record(self, self.ops[number], operands, result)

    def stored(self) -> None:
        """Memory has changed: spinning waves may look again."""
        self.engine.version += 1

    def count(self, what: str) -> None:
        """Count something that is allowed but worth knowing."""
        self.engine.counts[what] += 1

    def where(self, index: Index | None = None) -> Where:
        """The running operation's line, and the workgroup, wave and lane at `index` = (row, lane)."""
        loc = self.ops[self.at].loc if self.at < len(self.ops) else None
        if index is None:
            return Where(loc)
        row = index[0] if self.n > 1 else 0
        lane = index[1] if len(index) > 1 else 0
        return self.engine.fleet.where(loc, int(self.waves[row]), lane)

    def fault(self, kind: str, message: str, index: Index | None = None) -> SimFault:
        """An error that stops the simulation."""
        return SimFault(Finding(kind, message, self.where(index)))

    def found(self, kind: str, message: str, index: Index | None = None) -> None:
        """Report a finding: it stops the simulation or is kept, as the options say."""
        self.engine.report(Finding(kind, message, self.where(index)))

    def knows(self, kind: str) -> bool:
        """Whether a finding of that kind has been kept for the running operation's line."""
        loc = self.ops[self.at].loc
        return any(finding.kind == kind and finding.where.loc == loc for finding in self.engine.findings)

    def report(self, kind: str, message: str, lanes: Bools | None = None) -> None:
        """As `found`, for the first of `lanes`: how cross-lane operations report."""
        index = None if lanes is None or not lanes.any() else tuple(int(i) for i in np.argwhere(lanes)[0])
        self.found(kind, message, index)


def _unflatten(number: I64, sizes: tuple[int, int, int]) -> tuple[NDArray[np.int32], ...]:
    x, y, _ = sizes
    return tuple(part.astype(np.int32) for part in (number % x, number // x % y, number // (x * y)))
