"""Launches of one build in a row, each on its own inputs: a step, as a model's layers make one, put in one CUDA graph.

A hand-off's tag is made of the epoch, which lies in device memory, and of the launch's slot in the step, which is an
argument. A graph keeps arguments as they were captured, so the launches of a graph are told apart by their slots, and
its replays by the epoch: whoever replays counts it on first (`Step.advance`), in the stream's order. No tag comes back
before 2^22 replays. All launches share one scratch, as a model's layers do; so the graph is a chain.
"""

from __future__ import annotations

from dataclasses import replace

from k3lab.backends.cuda.device import Launcher
from k3lab.errors import expect
from k3lab.geometry import TAG_SLOTS
from k3lab.kernels.host import Buffers, copied


class Step:
    """`launches` launches of one build, on `sets` copies of its inputs in turn.

    Attributes:
        sets: by set and rank, buffers that share all but the input tensors, which they have copies of; set 0's are the
            launcher's own.
    """

    def __init__(self, launcher: Launcher, sets: int, launches: int) -> None:
        """Copy the inputs on the device.

        Raises:
            BadInput: for no sets, or more launches than slots.
        """
        expect(sets >= 1, "sets", "at least 1", sets)
        expect(1 <= launches <= TAG_SLOTS, "launches of a step", f"1 .. {TAG_SLOTS} (the slots of a step)", launches)
        self.launcher = launcher
        more = [[_with_own_inputs(held) for held in launcher.live] for _ in range(sets - 1)]
        self.sets = [launcher.live, *more]
        self._given = [
            [_numbered(held, number, launches) for held in self.sets[number % sets]] for number in range(launches)
        ]

    @property
    def launches(self) -> int:
        return len(self._given)

    def put(self, number: int) -> None:
        """Put launch `number` on the current stream, which may be one that a graph is captured from."""
        kept = self.launcher.live
        self.launcher.live = self._given[number]
        try:
            self.launcher.launch()
        finally:
            self.launcher.live = kept

    def advance(self) -> None:
        """Count the epoch on: before each replay, and before launches are put again."""
        self.launcher.advance()


def _with_own_inputs(held: Buffers) -> Buffers:
    """The same buffers with copies of the launch's inputs, in their strides."""
    names = {decl.name for decl in held.launch.inputs} & held.tensors.keys()
    own = {name: copied(held.tensors[name], str(held.tensors[name].device)) for name in names}
    return replace(held, tensors={**held.tensors, **own})


def _numbered(held: Buffers, number: int, launches: int) -> Buffers:
    """The same memory, for launch `number` of a step: its slot, and its turn with the peer buffer's halves."""
    turn = {"uses": launches, "use": number} if "uses" in held.numbers else {}
    return replace(held, numbers={**held.numbers, "slot": number, **turn})
