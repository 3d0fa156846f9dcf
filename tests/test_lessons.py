"""Every lesson's input gives its right value here, and the mistake's value is another one."""

from __future__ import annotations

import numpy as np
import pytest

from k3lab.analysis.lessons import LESSONS, all_reduce_rounding, beta_of_a_half, residual_drift


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.name)
def test_the_right_value(lesson):
    np.testing.assert_array_equal(lesson.got(), lesson.want)


@pytest.mark.parametrize("lesson", [lesson for lesson in LESSONS if lesson.wrong is not None], ids=lambda x: x.name)
def test_the_mistake_gives_another_value(lesson):
    assert not np.array_equal(np.array(lesson.wrong, float), np.array(lesson.want, float), equal_nan=True)


def test_the_mistakes_are_one_probe_away():
    assert beta_of_a_half({"k1.gates.beta": "bf16"}) == 0.62109375
    assert all_reduce_rounding(ablate="k2a.reduce.delta") == 1.0078125


def test_truncation_drifts_one_way_and_nearest_does_not():
    assert residual_drift("zero") < -10
    assert abs(residual_drift("nearest")) < 0.5
