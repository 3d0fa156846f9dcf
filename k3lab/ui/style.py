"""One look for every figure of the notebooks: the palette, grids, sizes. Call `use()` once, before the first figure."""

from __future__ import annotations

from typing import Any

from k3lab.analysis.palette import INK, STAGES

LOOK: dict[Any, Any] = {
    "axes.grid": True,
    "axes.titleweight": "bold",
    "axes.titlesize": 11,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "figure.constrained_layout.use": True,
    "figure.dpi": 90,
    "figure.figsize": (9, 3.2),
    "grid.alpha": 0.3,
    "legend.fontsize": 8,
    "text.color": INK,
}
"""Settings of matplotlib by name; lines without a colour of their own take the palette's, in order."""


def use() -> None:
    """Give every figure from here on the common look; `plt.rcdefaults()` takes it back."""
    import matplotlib.pyplot as plt
    from cycler import cycler

    plt.rcParams.update({**LOOK, "axes.prop_cycle": cycler(color=list(STAGES))})
