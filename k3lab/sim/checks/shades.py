"""Poison on its way from where it arises to where it shows: a branch, an address, a store.

LLVM leaves some results undefined (`semantics.poison` says which). That alone is no error: a vector is built from
poison, and a shift too far may be computed and not selected. It is one when an active lane branches on such a value,
stores it, or uses it in an address, so every value that may be poison has a *shadow* that goes where it goes.

What that costs: when a kernel is decoded it is settled which values can be poison at all, element by element, so that
chains of inserts that fill a vector are clean; only the others have a shadow, and it is None while all is well. Between
blocks shadows are kept by SSA value, wave and lane, so that merging and splitting of waves need not know of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from k3lab.geometry import LANES
from k3lab.lowering.ir import Block, Op
from k3lab.sim.decode import access
from k3lab.sim.semantics.poison import Check, never_poison, poison_check
from k3lab.sim.semantics.spread import STOPS, UNDEFINED, Shadow, ignored, joined, leaf_map, leaves, spread

if TYPE_CHECKING:
    from k3lab.sim.decode.program import Edge
    from k3lab.sim.schedule.cohort import Cohort
    from k3lab.sim.step import Step

Bools = NDArray[np.bool_]
Holes = frozenset[int]  # leaves of a value that are poison in every lane
Names = dict[str, Any]


class Suspects:
    """Which values of a kernel may be poison.

    Attributes:
        holes: values whose leaves are known to be poison or not; all others are in neither, or in
        maybe: values for which only the run can tell.
    """

    def __init__(self, blocks: Sequence[Block], constants: Mapping[int, Any]) -> None:
        self._constants = constants
        self._defining = {value: op for block in blocks for op in block.ops for value in op.results}
        self.holes: dict[int, Holes] = {}
        self.maybe: set[int] = set()
        self._sources: dict[int, tuple[str, Check] | None] = {}
        args = {block.label: block.args for block in blocks}
        before = None
        while before != (before := (len(self.maybe), sum(map(len, self.holes.values())))):
            for block in blocks:
                for op in block.ops:
                    self._settle(op)
                for label, passed in block.ops[-1].successors:
                    pairs = zip(args[label], passed, strict=True)
                    self.maybe |= {arg for (arg, _), source in pairs if self.may_be(source)}

    def may_be(self, value: int) -> bool:
        """Whether any of the value may be poison in any lane."""
        return value in self.maybe or value in self.holes

    def source(self, op: Op) -> tuple[str, Check] | None:
        """How `op` may make poison of defined operands."""
        if not op.results:
            return None
        if op.results[0] not in self._sources:
            safe = never_poison(op, self._constants, self._defining)
            self._sources[op.results[0]] = None if safe else poison_check(op)
        return self._sources[op.results[0]]

    def _settle(self, op: Op) -> None:
        if not op.results or op.name in STOPS or access.lookup(op.name) is not None:
            return
        result = op.results[0]
        if op.name in UNDEFINED:
            self.holes[result] = frozenset(range(leaves(op.result_types[0])))
            return
        moved = leaf_map(op, self._constants)
        reaching = [x for i, x in enumerate(op.operands) if i not in ignored(op)]
        if self.source(op) is not None or (moved is None and any(map(self.may_be, reaching))):
            self._suspect(result)
        elif moved is not None:
            from_maybe = {self._defined_by(op, source) for source in moved} & self.maybe
            if from_maybe:
                self._suspect(result)
            elif result not in self.maybe and (holes := self._moved_holes(op, moved)):
                self.holes[result] = holes

    def _suspect(self, value: int) -> None:
        self.maybe.add(value)
        self.holes.pop(value, None)

    @staticmethod
    def _defined_by(op: Op, source: tuple[int, int] | None) -> int:
        return -1 if source is None else op.operands[source[0]]

    def _moved_holes(self, op: Op, moved: Sequence[tuple[int, int] | None]) -> Holes:
        return frozenset(
            leaf
            for leaf, source in enumerate(moved)
            if source is None or source[1] in self.holes.get(op.operands[source[0]], ())
        )

    # -- lines of a block's function ---------------------------------------------------------------------------------

    def before(self, given: Iterable[int]) -> str:
        """Python that gets the shadows of the values a block is given."""
        return "; ".join(f"p{v} = step.shades.of(step, {v}) if step.shades else None" for v in given if v in self.maybe)

    def at(self, number: int, op: Op, name: Callable[[int], str], names: Names) -> tuple[str, str]:
        """Python to run before and after an operation: to refuse poison where it shows, and to follow it."""
        operands = [self._name(value, names) for value in op.operands]
        some = [shadow for shadow in operands if shadow != "None"]
        if access.lookup(op.name) is not None:
            return (f"step.refuse({number}, {', '.join(some)})" if some else ""), ""
        if not op.results or op.results[0] not in self.maybe:
            return "", ""
        names[f"q{number}"] = self._following(op)
        target, values = f"p{op.results[0]}", ", ".join(map(name, op.operands))
        call = f"q{number}(step, ({values},), ({', '.join(operands)},))"
        if self.source(op) is None and not any(shadow.startswith("h") for shadow in some):
            call = f"({' or '.join(some)}) and {call}"
        return "", f"{target} = {call}"

    def after(self, needed: Iterable[int], given: Iterable[int], passed: Iterable[int], names: Names) -> str:
        """Python that leaves the shadows of the values a block hands on."""
        made = [v for v in needed if v in self.maybe and v not in given]
        made += [v for v in passed if v in self.holes]
        if not made:
            return ""
        shadows = {v: self._name(v, names) for v in made}
        some = " or ".join(("step.shades", *shadows.values()))
        return f"({some}) and step.shades.put(step, {{{', '.join(f'{v}: {s}' for v, s in shadows.items())}}})"

    def _name(self, value: int, names: Names) -> str:
        """The variable that holds a value's shadow; `None` if it has none."""
        if value in self.maybe:
            return f"p{value}"
        if value not in self.holes:
            return "None"
        op = self._defining[value]
        lanes = np.zeros((1, 1, leaves(op.result_types[0])), np.bool_)
        lanes[..., list(self.holes[value])] = True
        names[f"h{value}"] = Shadow(lanes, f"{op.name} at {op.loc}")
        return f"h{value}"

    def _following(self, op: Op) -> Callable[..., Shadow | None]:
        """A function of (step, operands' values, their shadows) that gives the result's shadow."""
        follow, source = spread(op, self._constants), self.source(op)
        skipped = ignored(op)

        def spreading(step: Step, values: Sequence[Any], shadows: Sequence[Shadow | None]) -> Shadow | None:
            if skipped:
                shadows = [None if i in skipped else shadow for i, shadow in enumerate(shadows)]
            return follow(step, values, shadows) if any(shadow is not None for shadow in shadows) else None

        if source is None:
            return spreading
        message, check = source
        why = f"{message}, at {op.loc}"

        def run(step: Step, values: Sequence[Any], shadows: Sequence[Shadow | None]) -> Shadow | None:
            bad = check(*values)
            fresh = _active(step, bad, why) if bad.any() else None
            return joined(fresh, spreading(step, values, shadows))

        return run


def _active(step: Step, bad: Bools, why: str) -> Shadow | None:
    if not step.follows_poison:
        return None
    lanes = bad if bad.ndim == 3 else bad[..., None]
    if step.mask is not None:
        lanes = lanes & step.mask[..., None]
    return Shadow(lanes, why) if lanes.any() else None


class Shades(dict[int, tuple[Bools, str]]):
    """Shadows of values that outlive their block: by SSA value, [waves, 64, leaves] and a reason. Empty is well."""

    def __init__(self, waves: int) -> None:
        super().__init__()
        self._waves = waves

    def of(self, step: Step, value: int) -> Shadow | None:
        """The value's shadow in the waves of a step."""
        found = self.get(value)
        if found is None:
            return None
        lanes = found[0][step.waves]
        return Shadow(lanes, found[1]) if lanes.any() else None

    def forget(self, waves: slice) -> None:
        """Those waves begin anew."""
        for value in list(self):
            self[value][0][waves] = False
            if not self[value][0].any():
                del self[value]

    def put(self, step: Step | Cohort, shadows: Mapping[int, Shadow | None]) -> None:
        """Set the shadows of values in the active lanes of some waves."""
        for value, shadow in shadows.items():
            if shadow is None and value not in self:
                continue
            count = 1 if shadow is None else shadow.lanes.shape[2]
            held, why = self.get(value, (np.zeros((self._waves, LANES, count), np.bool_), ""))
            active = np.True_ if step.mask is None else step.mask[..., None]
            fresh = np.False_ if shadow is None else shadow.lanes
            held[step.waves] = np.where(active, fresh, held[step.waves])
            if held.any():
                self[value] = held, why if shadow is None else shadow.why
            else:
                del self[value]

    def follow(self, cohort: Cohort, edge: Edge) -> None:
        """Hand shadows on from what is passed along an edge to the block's arguments."""
        passed = {arg: self.get(source) for arg, source in edge.passed}
        self.put(cohort, {arg: got and Shadow(got[0][cohort.waves], got[1]) for arg, got in passed.items()})
