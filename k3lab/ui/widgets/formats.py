"""Format explorer: a number's neighbours, and a block under a shared scale."""

from __future__ import annotations

from k3lab.formats import mx
from k3lab.ui.formats import block_view, number_view, parse_block, parse_number
from k3lab.ui.html import Html, joined
from k3lab.ui.widgets.control import Control, dropdown, text

EXAMPLE = "0.11, -0.75, 2.6, 0.02, 7.1, -1.3"


class FormatExplorer(Control):
    """Type a number, or a block of numbers.

    Attributes:
        number, values: what was typed; `rule` the block's scale rule.
    """

    def __init__(self, number: str = "0.1", values: str = EXAMPLE, rule: str = "even") -> None:
        self.number = text(number, "number", "a number: 0.1, -3e-5, 0x1.8p-3, inf, nan")
        self.values = text(values, "block", "1 to 32 numbers, separated by commas", width="40em")
        self.rule = dropdown(list(mx.RULES), "scale rule", "how the block's scale follows from its amax", value=rule)
        super().__init__([self.number], [self.values, self.rule])

    def view(self) -> Html:
        number, values = parse_number(self.number.value), parse_block(self.values.value)
        return joined(number_view(number), block_view(values, self.rule.value))
