"""The controls, driven through their traits as a front end would."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("ipywidgets", reason="needs ipywidgets, of the notebooks extra")

from IPython.core.interactiveshell import InteractiveShell

import k3lab
from k3lab.analysis.walk import Walk
from k3lab.ui import widgets
from k3lab.ui.formats import block_view, number_view
from k3lab.ui.html import joined
from k3lab.ui.lanes import lane_view
from k3lab.ui.probes import probe_view
from k3lab.ui.stages import ctas_of, stage_view
from k3lab.ui.timelines import timeline_view
from tests.analysis.timeline.made import chain
from tests.ui.lane_trace import half_wave


def test_format_explorer():
    control = widgets.FormatExplorer(values="1, 7")
    assert "0x3dcd" in control.shown.value  # filled before anything is displayed
    control.number.value = "2.5"
    assert control.shown.value == str(joined(number_view(2.5), block_view([1, 7], "even")))
    control.rule.value = "floor"
    assert control.shown.value == str(joined(number_view(2.5), block_view([1, 7], "floor")))
    control.number.value = "<script>alert(1)</script>"
    assert "<script" not in control.shown.value and "&lt;script&gt;" in control.shown.value
    assert "expected one such as 0.1" in control.shown.value
    control.number.value = "0.1"
    assert "0x3dcd" in control.shown.value


def test_lane_stepper():
    trace = half_wave()
    control = widgets.LaneStepper(trace)
    shown = lambda: control.shown.value  # noqa: E731
    assert shown() == str(lane_view(trace, 0))
    control.forward.click()
    control.forward.click()
    assert control.step.value == 2 and shown() == str(lane_view(trace, 2))
    control.back.click()
    assert shown() == str(lane_view(trace, 1))
    [add], [store] = trace.named("llvm.add"), trace.named("llvm.store")
    control.target.value = "llvm.add"
    assert control.step.value == 1  # naming a target does not go there
    control.run.click()
    assert control.step.value == add.number and "operand 1: %1" in control.what.options
    control.what.value = "operand 1: %1"
    assert shown() == str(lane_view(trace, add.number, "operand 1: %1"))
    control.run.click()
    assert control.step.value == add.number and "expected a source line" in shown()
    control.step.value = store.number
    assert control.what.value in control.what.options and shown() == str(
        lane_view(trace, store.number, control.what.value)
    )
    control.step.value = 0
    control.back.click()
    assert control.step.value == 0
    control.go(10**6)
    assert control.step.value == len(trace) - 1


def test_probe_panel():
    case = k3lab.make_case("k1", geometry="mini", tokens=2, qlen=2, nblocks=1, seed=0)
    control = widgets.ProbePanel(case)
    probed = control.probed
    assert list(control.points) == list(probed.points) == control.on
    assert "left out: none" in control.shown.value
    control.points["k1.mix.x"].value = False
    assert "k1.mix.x" not in control.on and control.shown.value == str(probe_view(probed, control.on))
    oracle = k3lab.run("k1", case, backend="oracle")
    with k3lab.probe(ablate="k1.mix.x"):
        run = k3lab.run("k1", case, order="torch")
    error = run["x"].double() - oracle["x"]
    # The same sum of squares in another order: 4096 terms, 2^-53 each.
    assert probed.errors(control.on)["x"].rms == pytest.approx(float(error.square().mean().sqrt()), rel=4096 * 2**-53)
    seen = len(probed.seen)
    control.none.click()
    assert control.on == [] and len(probed.seen) == seen + 1
    control.all.click()
    assert control.on == list(probed.points) and "left out: none" in control.shown.value


def test_stage_stepper(walk):
    control = widgets.StageStepper(walk)
    assert control.shown.value == str(stage_view(walk, "slice", 0))
    control.stage.value = "norm"
    control.token.value = 3
    assert control.shown.value == str(stage_view(walk, "norm", 3))
    ctas = ctas_of(walk, "norm", 3)
    assert [cta for _, cta in control.cta.options] == [-1, *ctas] and control.page.max == 31
    control.cta.value = ctas[2]
    assert control.page.max == 1
    control.page.value = 1
    assert control.shown.value == str(stage_view(walk, "norm", 3, ctas[2], first=8))
    control.stage.value = "gate"  # another CTA has the token
    assert control.cta.label == "all (1)" and control.shown.value == str(stage_view(walk, "gate", 3))


def test_stage_stepper_over_launches(walk):
    other = k3lab.make_case("k2a", geometry="mini", tokens=2, nblocks=1, ranks=2, seed=1)
    control = widgets.StageStepper(walk, Walk(other))
    control.token.value = 3
    control.launch.value = "k2a"
    assert control.stage.value == "o" and control.token.max == 1 and "k2a.o" in control.shown.value
    control.rank.value = 1
    assert control.shown.value == str(stage_view(control.walk, "o", rank=1)) and "rank 1" in control.shown.value
    control.launch.value = "k1"
    assert control.shown.value == str(stage_view(walk, "slice", 0))


def test_timeline_browser():
    timeline = chain()
    control = widgets.TimelineBrowser(timeline)
    figures = lambda: control.shown.value  # noqa: E731
    assert figures() == str(timeline_view(timeline))
    control.picture.value = "waits"
    control.cta.value = 3
    assert figures() == str(timeline_view(timeline, "waits", 0, 3)) and "CTA 3 (gemv)" in figures()


@pytest.fixture
def outputs(monkeypatch):
    """What is displayed, as a front end is told: (update or not, display id, content by kind)."""
    told = []
    publish = lambda data, metadata=None, *, transient=None, update=False, **how: told.append(  # noqa: E731
        (update, (transient or {}).get("display_id"), data)
    )
    shell = InteractiveShell.instance()
    monkeypatch.setattr(shell.display_pub, "publish", publish)
    yield told
    InteractiveShell.clear_instance()


def test_widgets_and_view_are_two_outputs(outputs):
    """The view is an output like any other: a page made of the notebook has it, with widgets or without."""
    control = widgets.FormatExplorer()
    control.number.value = "0.5"
    assert outputs == []  # nothing is shown before it is displayed
    control._ipython_display_()
    (_, nothing, buttons), (update, name, view) = outputs
    assert buttons["application/vnd.jupyter.widget-view+json"]["model_id"] == control.box.model_id
    assert "need a running notebook" in buttons["text/html"] and buttons["text/plain"] == "FormatExplorer"
    assert nothing is None and name and not update and view["text/html"] == control.shown.value
    assert len(view["text/plain"]) < 20  # not the view's HTML once more

    control.number.value = "2.5"
    assert outputs[2][:2] == (True, name) and outputs[2][2]["text/html"] == str(control.view())
    widgets.FormatExplorer()._ipython_display_()
    assert outputs[-1][1] != name and len(outputs) == 5  # controls do not write into each other's view


def test_every_control_says_what_it_does():
    """Each can be reached by keyboard, and names itself to a screen reader."""
    for control in (widgets.FormatExplorer(), widgets.LaneStepper(half_wave()), widgets.TimelineBrowser(chain())):
        for row in control.box.children:
            for widget in row.children:
                assert widget.description and widget.tooltip and not widget.disabled


def test_nothing_but_the_controls_needs_ipywidgets():
    parts = "formats, formulas, lanes, owners, probes, stages, style, timelines"
    code = (
        f"import sys, k3lab.cli; from k3lab.ui import {parts}; assert not {{'ipywidgets', 'flydsl'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
