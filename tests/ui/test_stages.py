"""The stage stepper's view says what the runs hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k3lab.analysis.walk import Walk
from k3lab.errors import BadInput
from k3lab.launches import LAUNCHES
from k3lab.ui.formulas import FORMULAS, formula
from k3lab.ui.stages import SHOWN, ctas_of, pages, part, stage_view, stages_of, written


def test_values_of_all_three_runs(walk):
    found = part(walk, "core_out", token=3, first=5)
    assert found.count == found.equal == 256 and found.format == "bf16" and len(found.elements) == SHOWN
    one = found.elements[0]
    assert one.index == (3, 5)
    assert (one.twin, one.kernel, one.oracle) == tuple(
        float(run["core_out"][3, 5]) for run in (walk.twin, walk.kernel, walk.oracle)
    )
    error = (walk.kernel["core_out"][3].double() - walk.oracle["core_out"][3]).abs()
    assert found.worst.index == (3, int(error.argmax()))


def test_a_ctas_share(walk):
    ctas = ctas_of(walk, "norm", 3)
    assert len(ctas) == 16
    shares = [part(walk, "core_out", 3, cta) for cta in ctas]
    assert [share.count for share in shares] == [16] * 16
    assert pages(walk, "norm", 3) == 32 and pages(walk, "norm", 3, ctas[0]) == 2
    assert part(walk, "core_out", 3, cta=999).worst is None
    assert "Nothing of this token is written here" in str(stage_view(walk, "norm", 3, cta=999))


def test_a_changed_bit_is_seen(walk):
    core = walk.kernel["core_out"].clone()
    core[3, 5] = -core[3, 5]
    other = Walk.__new__(Walk)
    other.__dict__ |= {**vars(walk), "kernel": replace(walk.kernel, ranks=[{**walk.kernel.values, "core_out": core}])}
    found = part(other, "core_out", 3)
    assert (found.equal, found.count) == (255, 256)
    assert [one.equal for one in found.elements].index(False) == 5
    text = str(stage_view(other, "norm", 3))
    assert "255 of 256 elements are the twin" in text and text.count("same bits") == SHOWN - 1


@pytest.mark.parametrize("stage", [stage.name for stage in LAUNCHES["k1"].stages])
def test_every_stage_can_be_shown(walk, stage):
    text = str(stage_view(walk, stage, token=1))
    for name in written(walk, stage):
        assert f"<b>{name}</b>" in text
    assert str(formula(walk.launch.stage(stage))) in text
    assert "def kda_norm(" in text if stage == "norm" else True


def test_every_stage_of_every_launch_has_its_mathematics():
    folders = {stage.folder for launch in LAUNCHES.values() for stage in launch.stages}
    assert folders == set(FORMULAS)


def test_what_the_case_does_not_have_is_refused(walk):
    assert stages_of(walk)[0] == "slice"
    for wrong, why in (({"stage": "mixx"}, "stage"), ({"token": 4}, "token"), ({"rank": 1}, "rank")):
        with pytest.raises(BadInput, match=why):
            stage_view(walk, **{"stage": "mix", **wrong})
