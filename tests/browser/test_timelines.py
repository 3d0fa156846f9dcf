"""Timeline pages: filters, hover and keys, against what timeline.json holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from k3lab.analysis.timeline import Timeline, critical_path, load
from tests.browser.conftest import Shot, Visit

pytestmark = pytest.mark.browser

LEFT, RIGHT, TOP, BOTTOM = 92, 10, 8, 40  # pixels of the canvas around its rows, as the page's script has them


@pytest.fixture(scope="module")
def timeline(saved: Path) -> Timeline:
    return load(saved / "k1" / "timeline.json")


def counts(page) -> tuple[int, int, int, int]:
    """CTAs shown, CTAs, intervals shown, intervals."""
    found = re.fullmatch(r"Shown: (\d+) of (\d+) CTAs, (\d+) of (\d+) intervals\.", page.locator(".count").inner_text())
    return tuple(map(int, found.groups()))


@pytest.mark.parametrize("name", ("timeline.html", "report.html"))
def test_ctas_can_be_picked_by_number(saved: Path, visit: Visit, shot: Shot, timeline: Timeline, name: str):
    page = visit(saved / "k1" / name)
    held = timeline.intervals
    assert counts(page) == (48, 48, len(held), len(held))
    page.locator(".only").fill("0-3, 20")
    mine = int(((held["cta"] <= 3) | (held["cta"] == 20)).sum())
    assert counts(page) == (5, 48, mine, len(held)) and mine < len(held)
    page.locator("canvas[aria-label^=Timeline]").scroll_into_view_if_needed()
    shot(page, f"filtered-{name}")
    page.locator(".only").fill("few")
    assert page.locator(".count").inner_text() == "CTAs: expected numbers and ranges such as 0-15, 200."
    assert page.locator(".only").get_attribute("aria-invalid") == "true"
    page.locator(".only").fill("")
    assert counts(page)[0] == 48


def test_groups_of_ctas(saved: Path, visit: Visit, timeline: Timeline):
    page = visit(saved / "k1" / "timeline.html")
    page.locator(".which").select_option("first")
    assert counts(page)[0] == timeline.na
    page.locator(".which").select_option("rest")
    assert counts(page)[0] == 48 - timeline.na
    page.locator(".which").select_option("path")
    path = critical_path(timeline)
    assert counts(page)[0] == len(
        {part.cta for part in path} | {part.from_cta for part in path if part.kind == "hand-off"}
    )


def test_a_stage_can_be_left_out_by_key(saved: Path, visit: Visit, timeline: Timeline):
    page = visit(saved / "k1" / "timeline.html")
    rows = page.locator("tr[data-stage]:visible")
    before = rows.count()
    page.get_by_label("show stage conv").focus()
    page.keyboard.press("Space")
    conv = [number for number, point in enumerate(timeline.points) if point.stage == "conv"]
    kept = sum(point not in conv for point in timeline.intervals["point"])
    assert counts(page)[2] == kept < len(timeline.intervals)
    assert rows.count() < before and page.locator("tr[data-stage=conv]:visible").count() == 0
    page.keyboard.press("Space")
    assert rows.count() == before


def test_the_pointer_tells_the_interval(saved: Path, visit: Visit, timeline: Timeline):
    page = visit(saved / "k1" / "timeline.html")
    box = page.locator("canvas").bounding_box()
    page.locator(".only").fill("17-24")  # eight rows: the fourth is CTA 20
    longest = max(timeline.intervals[timeline.intervals["cta"] == 20], key=lambda row: row["end"] - row["start"])
    start, end, whole = (float(timeline.us(time)) for time in (longest["start"], longest["end"], timeline.end))
    x = box["x"] + LEFT + (start + end) / 2 / whole * (box["width"] - LEFT - RIGHT)
    page.mouse.move(x, box["y"] + TOP + 3.5 / 8 * (box["height"] - TOP - BOTTOM))
    said = page.locator(".tip").inner_text()
    point = timeline.points[longest["point"]]
    assert said.startswith(f"CTA 20 (gemv), stage {point.stage}, up to point {point.name}: {end - start:.3f} µs")


def test_arrow_keys_go_along_what_is_shown(saved: Path, visit: Visit):
    page = visit(saved / "k1" / "timeline.html")
    page.locator(".only").fill("3, 20")
    page.locator("canvas").focus()
    read = page.locator(".read")
    page.keyboard.press("ArrowRight")
    assert read.inner_text().startswith("CTA 3 (attention), stage slice")
    page.keyboard.press("ArrowDown")
    assert read.inner_text().startswith("CTA 20 (gemv)")
    page.keyboard.press("ArrowDown")
    assert read.inner_text().startswith("CTA 20 (gemv)")  # the last one shown
    page.keyboard.press("ArrowUp")
    assert read.inner_text().startswith("CTA 3 ")
