"""Stage stepper: launch, stage, token, CTA."""

from __future__ import annotations

from typing import Any

from k3lab.analysis.walk import Walk
from k3lab.errors import expect
from k3lab.ui.html import Html
from k3lab.ui.stages import SHOWN, ctas_of, pages, stage_view, stages_of
from k3lab.ui.widgets.control import Control, dropdown, slider

EVERY = -1
"""Of the CTA choice: all of them. A dropdown shows a choice whose value is None as nothing chosen."""


class StageStepper(Control):
    """One stage of a launch at a time, in its kernel, its twin and the oracle.

    Attributes:
        launch, stage: choices by name; `rank` by number.
        token: row of the step; `cta` the CTA whose share is shown, or -1 for all; `page` which part of the tables.
    """

    def __init__(self, *walks: Walk) -> None:
        """Begin at the first launch's first stage, all CTAs.

        Args:
            walks: one a launch.

        Raises:
            BadInput: without any walk.
        """
        expect(walks, "stage stepper", "at least one walk", "none")
        self.walks = {walk.launch.name: walk for walk in walks}
        self.launch = dropdown(list(self.walks), "launch", "whose stages to step through")
        self.stage = dropdown(stages_of(self.walk), "stage", "the stages in order")
        self.rank = dropdown(self._ranks(), "rank", "whose tensors")
        self.token = slider(self.walk.case.key.tokens - 1, "token", "row of the step")
        self.cta = dropdown(self._ctas(), "CTA", "show only what this CTA writes")
        self.page = slider(0, "page", f"{SHOWN} elements of each tensor a page; arrow keys turn")
        self._count_pages()
        super().__init__([self.launch, self.stage, self.rank, self.cta], [self.token, self.page])

    @property
    def walk(self) -> Walk:
        """The chosen launch's runs."""
        return self.walks[self.launch.value]

    @property
    def chosen(self) -> int | None:
        """The CTA whose share is shown; None: all."""
        return None if self.cta.value == EVERY else int(self.cta.value)

    def view(self) -> Html:
        first = self.page.value * SHOWN
        return stage_view(self.walk, self.stage.value, self.token.value, self.chosen, first, self.rank.value)

    def _ranks(self) -> list[int]:
        return list(range(len(self.walk.kernel.ranks)))

    def _ctas(self) -> list[tuple[str, int]]:
        """All, and each that writes something of the token in this stage."""
        found = ctas_of(self.walk, self.stage.value, self.token.value, self.rank.value)
        return [(f"all ({len(found)})" if found else "all", EVERY), *((str(cta), cta) for cta in found)]

    def _changed(self, change: Any) -> None:
        if self._held:
            return
        with self._holding():
            if change.owner is self.launch:
                self.token.value, self.token.max = 0, self.walk.case.key.tokens - 1
                self.stage.options, self.rank.options = stages_of(self.walk), self._ranks()
            if change.owner in (self.launch, self.stage, self.rank, self.token):
                kept, found = self.cta.value, self._ctas()
                self.cta.options = found
                self.cta.value = kept if kept in [cta for _, cta in found] else EVERY
            if change.owner is not self.page:
                self._count_pages()
        self.refresh()

    def _count_pages(self) -> None:
        """As many pages as the longest table takes, and the first of them."""
        self.page.value = 0
        self.page.max = pages(self.walk, self.stage.value, self.token.value, self.chosen, self.rank.value) - 1
