"""Where a launch's time goes: CTA by CTA, stage by stage, and who waits for whom."""

from __future__ import annotations

from k3lab.analysis.timeline.intervals import Clock, Timeline, of_stamps
from k3lab.analysis.timeline.make import run_timeline, timeline_of
from k3lab.analysis.timeline.path import critical_path
from k3lab.analysis.timeline.store import load
from k3lab.analysis.timeline.waits import wait_matrix

__all__ = ["Clock", "Timeline", "critical_path", "load", "of_stamps", "run_timeline", "timeline_of", "wait_matrix"]
