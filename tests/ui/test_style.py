"""One look: figures made after `use()` have the palette's colours, and it can be taken back."""

from __future__ import annotations

import matplotlib.pyplot as plt

from k3lab.analysis.palette import STAGES
from k3lab.ui import style


def test_lines_take_the_palettes_colours_in_order():
    plain = plt.rcParams.copy()
    try:
        style.use()
        figure, axes = plt.subplots()
        assert [axes.plot([0, 1])[0].get_color() for _ in STAGES] == list(STAGES)
        assert all(
            plt.rcParams[name] == value or list(plt.rcParams[name]) == list(value) for name, value in style.LOOK.items()
        )
        assert figure.get_constrained_layout() and axes.title.get_fontweight() == "bold"
        plt.close(figure)
    finally:
        plt.rcParams.update(plain)
    assert plt.rcParams["figure.dpi"] == plain["figure.dpi"]
