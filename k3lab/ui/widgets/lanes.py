"""Lane stepper: forward, back and run to, over what one wave of a simulation ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from k3lab.errors import BadInput, expect
from k3lab.ui.html import Html, problem
from k3lab.ui.lanes import lane_view, run_to, values_of
from k3lab.ui.widgets.control import Control, button, dropdown, slider, text

if TYPE_CHECKING:
    from k3lab.sim.record.trace import Trace


class LaneStepper(Control):
    """One step of a trace at a time.

    Attributes:
        step: number of the step; `what` which of its values is shown.
        back, forward: buttons to the step before and after.
        target, run: where to run to, and the button that does.
    """

    def __init__(self, trace: Trace) -> None:
        """Begin at the trace's first step.

        Raises:
            BadInput: for an empty trace.
        """
        expect(len(trace), "trace", "at least one recorded step", "an empty one", "choose another wave or source lines")
        self.trace = trace
        self.step = slider(len(trace) - 1, "step", "number of the step; arrow keys go one step")
        self.what = dropdown(list(values_of(trace.steps[0])), "value", "the result, or an operand")
        self.back, self.forward = button("◀ back", "the step before"), button("forward ▶", "the step after")
        self.target = text("", "run to", "a source line (52, kernel.py:52), a value (%7) or an operation (llvm.f*)")
        self.run = button("run ▶▶", "the next step that fits")
        self.back.on_click(lambda _: self.go(self.step.value - 1))
        self.forward.on_click(lambda _: self.go(self.step.value + 1))
        self.run.on_click(lambda _: self.run_on())
        self.target.placeholder = "52, kernel.py:52, %7 or llvm.f*"
        super().__init__([self.back, self.forward, self.step, self.what], [self.target, self.run])

    def go(self, step: int) -> None:
        """Show a step; past an end, the last one there is."""
        self.step.value = min(max(step, 0), len(self.trace) - 1)

    def run_on(self) -> None:
        """Show the next step that the target names; where there is none, say so."""
        try:
            self.go(run_to(self.trace, self.step.value, self.target.value))
        except BadInput as error:
            self.shown.value = f"{problem(error)}{self.view()}"

    def view(self) -> Html:
        return lane_view(self.trace, self.step.value, self.what.value or "")

    def _changed(self, change: Any) -> None:
        if self._held or change.owner is self.target:  # a target changes nothing until it is run to
            return
        if change.owner is self.step:
            self._offer(list(values_of(self.trace.steps[self.step.value])))
        self.refresh()

    def _offer(self, values: list[str]) -> None:
        """The step's own values to choose from; the kind of value that was shown stays chosen."""
        place = self.what.options.index(self.what.value) if self.what.value else 0
        kept = self.what.value if self.what.value in values else values[min(place, len(values) - 1)] if values else None
        with self._holding():
            self.what.options = values
            self.what.value = kept
