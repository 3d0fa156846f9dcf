"""Error reports as a reader meets them: on a desk, on a phone, in the dark, on paper, without a script."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from tests.browser.conftest import DESKTOP, PHONE, Shot, Visit

pytestmark = pytest.mark.browser

SCHEMES = ("light", "dark")
PAGES = ("index.html", "k1/report.html", "k2a/report.html", "k1/timeline.html")
COMMITTED = sorted((Path(__file__).parents[2] / "data" / "results" / "cuda").glob("*.html"))
"""Full K3 size."""
LEAST_CONTRAST = 4.5
"""Of text against what is behind it: WCAG 2, level AA."""
PAPER = {"width": 703, "height": 1000}  # A4 without the style's margins of 12 mm: 186 mm at 96 dots an inch

OPEN_ALL = "() => document.querySelectorAll('details').forEach((part) => { part.open = true; })"
WIDER = "() => document.scrollingElement.scrollWidth - window.innerWidth"
POOR = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_a_phone(saved: Path, visit: Visit, shot: Shot, name: str, scheme: str):
    page = visit(saved / name, scheme, PHONE)
    page.evaluate(OPEN_ALL)
    assert page.evaluate(WIDER) <= 0
    shot(page, f"phone-{name.replace('/', '-')}-{scheme}")


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_pages_of_runs_on_gpus_are_fit_for_any_reader(visit: Visit, shot: Shot, path: Path, scheme: str):
    page = visit(path, scheme, PHONE)
    page.evaluate(OPEN_ALL)
    assert page.evaluate(WIDER) <= 0 and page.evaluate(POOR, LEAST_CONTRAST) == []
    shot(page, f"phone-{path.stem}-{scheme}")


def test_a_wide_page_is_seen(visit: Visit, tmp_path: Path):
    (tmp_path / "wide.html").write_text("<body style='margin: 0'><p style='width: 391px'>wide</p>")
    assert visit(tmp_path / "wide.html", size=PHONE).evaluate(WIDER) == 1


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", PAGES)
def test_text_stands_out_from_what_is_behind_it(saved: Path, visit: Visit, shot: Shot, name: str, scheme: str):
    page = visit(saved / name, scheme)
    page.evaluate(OPEN_ALL)
    assert page.evaluate(POOR, LEAST_CONTRAST) == []
    ground = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 25, 30)")
    shot(page, f"desk-{name.replace('/', '-')}-{scheme}", full_page=True)


def test_poor_contrast_is_seen(visit: Visit, tmp_path: Path):
    # #777777 on white has 4.478 : 1, #767676 has 4.542 : 1; the second is the palest grey that passes.
    text = "<body style='background: #fff'><p style='color: #777777'>pale</p><p style='color: #767676'>fine</p>"
    (tmp_path / "pale.html").write_text(text)
    ((contrast, said),) = visit(tmp_path / "pale.html").evaluate(POOR, LEAST_CONTRAST)
    assert said == "pale" and contrast == pytest.approx(4.478, abs=0.001)


def test_the_heat_map_tells_the_value_under_the_pointer(saved: Path, visit: Visit, shot: Shot):
    points = {row["name"]: row for row in json.loads((saved / "k1" / "report.json").read_text())["points"]}
    page = visit(saved / "k1" / "report.html")
    canvas = page.locator("canvas[data-point='k1.gemv.proj']")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    left, below = 30, 18  # pixels of the token numbers, and of the element numbers
    heat = points["k1.gemv.proj"]["heat"]
    tokens, blocks = len(heat), len(heat[0])
    for token, block in ((0, 0), (2, 10), (tokens - 1, blocks - 1)):
        x = box["x"] + left + (block + 0.5) * (box["width"] - left) / blocks
        page.mouse.move(x, box["y"] + (token + 0.5) * (box["height"] - below) / tokens)
        said = page.locator("#heat .tip").inner_text()
        assert said.startswith("k1.gemv.proj (bf16): ") and f"Token {token}, elements " in said
        shown = float(re.search(r": ([\d.]+) ulp", said)[1])
        assert shown == pytest.approx(heat[token][block], rel=0.005)  # three digits: at most half a unit of the third
        first, last = map(int, re.search(r"elements (\d+) to (\d+) of 1168", said).groups())
        assert (first, last + 1) == (round(1168 * block / blocks), round(1168 * (block + 1) / blocks))
    shot(page, "heat-hover")


def test_the_heat_map_is_read_out_by_key(saved: Path, visit: Visit):
    points = {row["name"]: row for row in json.loads((saved / "k1" / "report.json").read_text())["points"]}
    page = visit(saved / "k1" / "report.html")
    page.locator("canvas[data-point='k1.recur.o']").focus()
    read = page.locator("#heat .read")
    page.keyboard.press("ArrowRight")
    assert (
        read.inner_text().startswith("k1.recur.o (bf16): ") and "Token 0, elements [0, 0] to [0, " in read.inner_text()
    )
    page.keyboard.press("ArrowDown")
    assert "Token 1, elements [0, 0]" in read.inner_text()
    page.keyboard.press("m")
    largest = max(map(max, points["k1.recur.o"]["heat"]))
    assert f": {float(f'{largest:.3g}'):g} ulp" in read.inner_text()
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.dataset.point") == "k1.norm.core"


def test_without_a_script_pictures_stand_in(saved: Path, visit: Visit):
    for name, count in (("k1/report.html", 5), ("k1/timeline.html", 5)):
        page = visit(saved / name, java_script_enabled=False)
        pictures = page.locator("img")
        assert pictures.count() == count
        assert all(pictures.nth(place).is_visible() for place in range(count))
        assert page.locator(".live").first.is_hidden()


def test_a_report_prints(saved: Path, visit: Visit):
    page = visit(saved / "k1" / "report.html", "dark", PAPER)
    printed = page.pdf(format="A4", prefer_css_page_size=True)
    assert printed.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type /Page\b(?!s)", printed))
    assert 5 <= pages <= 20
    page.emulate_media(media="print")
    assert page.evaluate(WIDER) <= 0
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("nav").is_hidden() and page.locator(".live").first.is_hidden()
    assert page.locator(".still img").first.is_visible()
    folded = "parts => parts.filter((part) => !part.checkVisibility()).length"
    hidden = page.eval_on_selector_all("details:not([open]) > :not(summary)", folded)
    assert hidden == 0  # what is folded on a screen is there on paper


def test_links_of_the_index_lead_to_the_reports(saved: Path, visit: Visit):
    page = visit(saved / "index.html")
    for number, title in enumerate(("k1 (kda_pre)", "k2a, 2 ranks (")):
        page.goto((saved / "index.html").as_uri())
        page.locator("tbody a").nth(number).click()
        assert page.title().startswith(title) and page.locator("#summary").is_visible()
    page.goto((saved / "index.html").as_uri())
    row = page.locator("tbody tr").first.inner_text()
    assert "correctly rounded" in row and "k1.norm.core" in row


@pytest.mark.parametrize("size", (DESKTOP, PHONE), ids=("desk", "phone"))
def test_links_within_a_report_lead_to_its_parts(saved: Path, visit: Visit, size: dict[str, int]):
    page = visit(saved / "k1" / "report.html", size=size)
    targets = page.eval_on_selector_all("a[href^='#']", "links => links.map((link) => link.hash)")
    assert {"#stages", "#budget", "#time", "#tensors", "#provenance"} <= set(targets)
    assert page.evaluate("(all) => all.filter((one) => !document.querySelector(one))", targets) == []


def test_a_reader_sees_what_changed_first(saved: Path, visit: Visit):
    summary = visit(saved / "k2a" / "report.html").locator("#summary").inner_text()
    assert "case.seed 1 → 0" in summary
    assert 0 < summary.index("What changed") < summary.index("worst rounding points")
    assert not math.isnan(float(re.search(r"Results, by relative rms error: prefix ([\d.]+) →", summary)[1]))
