"""The page and the canvas: whole by themselves, honest about the clock, and what the pictures are made of."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from k3lab.analysis.timeline import canvas, critical_path, page, views
from k3lab.analysis.timeline.roofline import DEVICES
from k3lab.launches import K2A
from tests.analysis.test_html import EVIL, Page
from tests.analysis.timeline.made import TICKS, chain, stamps_of

MI355X = DEVICES["mi355x"]


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without the seconds that drawing takes."""
    monkeypatch.setattr(page, "png", lambda figure: b"")


def data_of(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" class="data">(.*?)</script>', text, re.S)[1])


def unpacked(text: str, kind: str) -> list:
    return np.frombuffer(base64.b64decode(text), kind).tolist()


def test_the_page_needs_nothing_but_itself(tmp_path):
    path = chain().save(tmp_path)
    text = path.read_text()
    parsed = Page(text)
    for tag, name, value in parsed.links:
        assert name == "style" or value.startswith("data:image/png;base64,"), (tag, name, value[:80])
    assert not re.search(r"https?://|@import|url\(", text)
    assert not {"link", "iframe", "object"} & set(parsed.tags)
    assert {file.name for file in tmp_path.iterdir()} == {
        *("timeline.html", "timeline.json", "trace.json", "intervals.csv", "waits.csv", "timeline.npz"),
        *("timeline.png", "stages.png", "path.png", "waits.png"),
    }


@pytest.mark.usefixtures("no_pictures")
def test_page_and_pictures_say_whose_clock_it_is(tmp_path):
    for made, said in (
        (chain(), "modelled, not measured: a model"),
        (replace(chain(clock=TICKS), waits=None, barriers=None), "measured on a gfx950"),
    ):
        assert said in Page(made.save(tmp_path).read_text()).text
        assert said in Page(canvas.fragment(made)).text
        for name, draw in page.pictures(made, MI355X).items():
            assert said in draw().get_suptitle(), name


@pytest.mark.usefixtures("no_pictures")
def test_a_page_says_which_of_many_launches_it_shows(tmp_path):
    made = replace(chain(clock=TICKS), waits=None, barriers=None)
    said = "The launch is the last of 32 in a graph."
    assert said not in Page(made.save(tmp_path).read_text()).text
    told = replace(made, provenance={"launches": "the last of 32 in a graph"})
    assert said in Page(told.save(tmp_path).read_text()).text


def test_the_canvas_draws_the_intervals_waits_and_path():
    made = chain()
    held = data_of(canvas.fragment(made))
    assert unpacked(held["bars"]["row"], "<i4") == made.intervals["cta"].tolist()
    assert unpacked(held["bars"]["end"], "<f4") == pytest.approx((made.intervals["end"] - 1000) * 1e-6)
    assert unpacked(held["waits"]["row"], "<i4") == [0, 2, 3]
    assert unpacked(held["waits"]["from"], "<i4") == [3, 1, 1]
    assert [part["row"] for part in held["path"]] == [part.cta for part in critical_path(made)]
    assert held["length"] == pytest.approx(860e-6) and held["kind"] == "modelled"


def test_rows_count_on_from_rank_to_rank():
    ranks = [[{"start": 1, "reduced": 5}, {"start": 1, "core_staged": 3}]] * 2
    made = replace(chain(clock=TICKS), points=K2A.stamp_points, stamps=np.stack(stamps_of(K2A, *ranks)), waits=None)
    held = data_of(canvas.fragment(made))
    assert unpacked(held["bars"]["row"], "<i4") == [0, 1, 2, 3] and held["path"] == []
    assert 'class="rank"' in canvas.fragment(made) and 'class="rank"' not in canvas.fragment(chain())


def test_the_groups_of_ctas_that_can_be_picked_have_names():
    text = canvas.fragment(chain())
    assert ">0 to 1: one a slice of the hidden row</option>" in text and ">2 to 3: the others</option>" in text
    assert "on the critical path</option>" in text
    assert "on the critical path</option>" not in canvas.fragment(
        replace(chain(clock=TICKS), waits=None, barriers=None)
    )


def test_a_still_picture_only_where_one_is_given():
    assert 'src="data:image/png;base64,QUJD"' in canvas.fragment(chain(), picture="QUJD")
    assert "<img" not in canvas.fragment(chain())


def test_two_canvases_do_not_meet_in_one_notebook():
    ids = [re.search(r'id="(k3tl\w+)"', chain()._repr_html_())[1] for _ in range(2)]
    assert ids[0] != ids[1]


@pytest.mark.usefixtures("no_pictures")
def test_text_is_escaped(tmp_path):
    evil = replace(chain(), published=EVIL, case=EVIL, regions=(EVIL, "</script>"))
    text = evil.save(tmp_path).read_text()
    assert "<script>alert" not in text
    assert text.count("</script>") == 3  # the data's, the code's, and that of the tables that follow the filter
    assert data_of(text)["regions"] == [EVIL, "</script>"]


@pytest.mark.usefixtures("no_pictures")
def test_the_page_lists_what_changed(tmp_path):
    text = Page(chain(slow=1000).save(tmp_path, against=chain()).read_text()).text
    assert "Changes since the older timeline" in text and "gemv waits for XRDY" in text
    assert "Every time is the same." in Page(chain().save(tmp_path, against=chain()).read_text()).text


@pytest.mark.parametrize("slow", [0, 10**9])
def test_the_longest_bar_leaves_room_for_its_text(slow: int):
    figure = views.stage_durations(chain(slow))
    drawn = FigureCanvasAgg(figure)
    drawn.draw()
    axes = figure.axes[0]
    ends = [text.get_window_extent(drawn.get_renderer()).x1 for text in axes.texts]
    assert len(ends) == len(axes.get_yticklabels()) and max(ends) <= axes.get_window_extent().x1


def test_a_picture_draws_what_the_timeline_holds():
    made = chain()
    bars, waits = views.all_ctas(made).axes[0].collections[:2]
    assert len(bars.get_paths()) == len(made.intervals) and len(waits.get_paths()) == 3
    steps = [label.get_text() for label in views.path_steps(made).axes[0].get_yticklabels()]
    assert steps[3:5] == ["XRDY: CTA 1 to CTA 3", "gemv: x_in_lds (CTA 3)"]
