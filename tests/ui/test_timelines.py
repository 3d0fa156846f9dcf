"""The timeline browser's view, on a timeline put together by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k3lab.analysis.timeline.intervals import Clock
from k3lab.errors import BadInput
from k3lab.ui.timelines import PICTURES, cta_view, pictures_of, timeline_view
from tests.analysis.timeline.made import TICKS, chain

MICRO = Clock("us", 1e6, "modelled", "a model")


def test_a_ctas_time_and_waits():
    """CTA 3 waits from 1110 (ready) to 1500 (end) for the flag of CTA 1: 390; for that of CTA 0 not at all."""
    text = str(cta_view(chain(clock=MICRO), 0, 3))
    first = text[text.index("x_in_lds") :].split("</tr>")[0]
    assert "XRDY of CTA 1" in first and "CTA 0" not in first
    cells = [cell.split(">")[-1] for cell in first.split("</td>")]
    assert cells[2:6] == ["5.00", "520.00", "515.00", "390.00"]


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_has_a_caption(name):
    text = str(timeline_view(chain(), name, cta=1))
    assert text.count("<img") == 1 and PICTURES[name].says in text.replace("&#39;", "'")
    assert "modelled, not measured: a model" in text and "CTA 1 (attention)" in text


def test_without_waits_there_are_fewer_pictures():
    measured = replace(chain(clock=TICKS), waits=None, barriers=None)
    assert pictures_of(measured) == ["CTAs", "stages"]
    assert "not known" in str(cta_view(measured, 0, 2)) and "measured on a gfx950" in str(timeline_view(measured))
    with pytest.raises(BadInput, match="picture"):
        timeline_view(measured, "waits")


def test_what_it_does_not_have_is_refused():
    for wrong in ({"rank": 1}, {"cta": 4}, {"cta": -1}):
        with pytest.raises(BadInput):
            timeline_view(chain(), **wrong)
