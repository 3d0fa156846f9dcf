from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3lab.bench.samples import Samples, quantile
from k3lab.errors import BadInput

SECONDS = st.lists(st.floats(1e-7, 1e-2), min_size=1, max_size=40)


@given(SECONDS, st.floats(0, 1))
def test_a_quantile_is_numpys(values, share):
    assert quantile(values, share) == pytest.approx(float(np.quantile(values, share)), rel=1e-12)


@given(SECONDS)
def test_the_median_is_the_standard_librarys(values):
    samples = Samples(tuple(values), 3)
    assert samples.median == pytest.approx(statistics.median(values), rel=1e-12)
    assert min(values) <= samples.low <= samples.median <= samples.high <= max(values)


def test_one_slow_repetition_does_not_move_the_median():
    assert Samples((1.0, 1.0, 1.0, 1.0, 100.0), 1).median == 1.0


@pytest.mark.parametrize("wrong", [lambda: Samples((), 1), lambda: Samples((1.0,), 0), lambda: quantile([1.0], 1.5)])
def test_nothing_to_say_is_refused(wrong):
    with pytest.raises(BadInput):
        wrong()
