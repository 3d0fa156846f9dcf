"""Controls for notebooks: each a thin one over a plain function of `k3lab.ui`, driven by its widgets' traits alone.

    from k3lab.ui import widgets
    widgets.FormatExplorer()
    widgets.StageStepper(walk)

Needs ipywidgets (`pip install "k3lab[notebooks]"`).
"""

from __future__ import annotations

from k3lab.ui.widgets.formats import FormatExplorer
from k3lab.ui.widgets.lanes import LaneStepper
from k3lab.ui.widgets.probes import ProbePanel
from k3lab.ui.widgets.stages import StageStepper
from k3lab.ui.widgets.timelines import TimelineBrowser

__all__ = ["FormatExplorer", "LaneStepper", "ProbePanel", "StageStepper", "TimelineBrowser"]
