from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from k3lab.analysis.html import index, render, summary
from k3lab.analysis.make import make_report
from k3lab.analysis.report import Report
from k3lab.analysis.worst import worst_points
from k3lab.cases import make_case

VOID = {"meta", "img", "br", "link", "input", "hr"}
EVIL = "<script>alert('x')</script> & \"quotes\""


class Page(HTMLParser):
    """Collects tags and attributes, and checks that tags close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [(tag, name, value or "") for name, value in attrs if name in ("src", "href", "srcset", "style")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        where = self.open[-1] if self.open else ""
        {"script": self.scripts, "style": []}.get(where, self.texts).append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))


@pytest.fixture(scope="session")
def page(made) -> str:
    return render(made[0])


@pytest.fixture
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without the seconds that drawing takes."""
    monkeypatch.setattr("k3lab.analysis.charts.png", lambda figure: b"")


def test_the_page_needs_nothing_but_itself(page: str):
    parsed = Page(page)
    assert not {"link", "iframe", "object"} & set(parsed.tags)
    for tag, name, value in parsed.links:
        inside = value.startswith("#") if tag == "a" else name == "style" or value.startswith("data:image/png;base64,")
        assert inside, (tag, name, value[:80])
    assert not re.search(r"https?://|@import|url\(", page)


def test_charts_are_inside_with_a_text_alternative(page: str):
    images = re.findall(r'<img alt="([^"]+)" src="data:image/png;base64,([^"]+)"', page)
    assert len(images) == 4
    for alternative, data in images:
        assert len(alternative) > 20
        assert base64.b64decode(data).startswith(b"\x89PNG")


def test_every_row_of_the_report_is_there(report: Report, page: str):
    for row in (*report.points, *report.tensors, *report.verdicts):
        assert f"<code>{row.name}</code>" in page
    for name in ("core_out", "conv_state", "rstate", "prefix", "x"):
        assert f"<b><code>{name}</code></b>" in page


def test_a_stranger_finds_answer_glossary_and_provenance(report: Report, page: str):
    text = Page(page).text
    order = (
        "All 8 roundings are correctly rounded.",
        "The three worst rounding points",
        "end to end",
        "Words used here",
    )
    parts = ("Stage by stage: the error", "Shares need not add", "Every tensor the launch exposes", "Provenance: what")
    places = [text.index(part) for part in (*order, *parts)]
    assert places == sorted(places)
    for word in (
        "rounding point",
        "ulp",
        "own error",
        "built-up error",
        "oracle",
        "kernel order",
        "SNR",
        "share",
        "bf16",
    ):
        assert re.search(rf"<dt>[^<]*{word}[^<]*</dt>", page), word
    assert "reported, not judged" in text
    assert "This is the uncertainty until a gfx950 has run it: nobody has run these on the hardware yet." in text
    assert report.provenance["run"]["case"]["hash"] in text
    for fact in ("versions.torch", "case.key.geometry.hidden", "case.seed", "device"):
        assert f"<dt>{fact}</dt>" in page


def test_numbers_are_written_for_people(page: str):
    text = Page(page).text.partition("First value that differs")[0]  # there, all digits count
    assert not re.findall(r"\d\.\d{7,}", text)
    assert not re.findall(r"\d(?:\.\d+)?e[-+]\d+", text)


@pytest.mark.usefixtures("no_charts")
def test_text_is_escaped(report: Report):
    point = replace(report.points[0], about=EVIL, name=EVIL)
    tensor = replace(report.tensors[0], name=EVIL)
    evil = replace(
        report,
        about=EVIL,
        published=EVIL,
        points=[point, *report.points[1:]],
        tensors=[tensor, *report.tensors[1:]],
        spread=[],
    )
    for text, scripts in ((render(evil), 2), (summary(evil), 0), (index({"k1": evil}), 0)):
        assert "<script>alert" not in text and text.count("</script>") == scripts  # the heat map's data and code
        assert "&lt;script&gt;" in text
        Page(text)
    held = json.loads(Page(render(evil)).scripts[0])
    assert [strip["name"] for strip in held["strips"]] == [row.name for row in evil.points]


@pytest.mark.usefixtures("no_charts")
def test_pages_of_less(report: Report):
    points = [replace(row, total=None, heat=None) for row in report.points]
    tensors = [replace(row, total=None) for row in report.tensors]
    roles = {role: report.provenance[role] for role in ("run", "reference")}
    bare = replace(report, points=points, tensors=tensors, budget=None, spread=[], provenance=roles)
    for text in (render(bare), summary(bare), index({"k1": bare})):
        Page(text)
    assert "<h2>Error budget</h2>" not in render(bare)
    assert "What the matrix instruction could change" not in render(bare)


@pytest.mark.usefixtures("no_charts")
def test_a_failed_bound_is_at_the_top(report: Report):
    failed = replace(
        report, verdicts=[replace(report.verdicts[0], passed=False, measured="0.7 ulp"), *report.verdicts[1:]]
    )
    text = render(failed)
    assert 'class="answer failed"' in text
    assert (
        text.index("1 of 8 roundings is not correctly rounded.")
        < text.index("missed: own error at most half an ulp")
        < text.index("Words used here")
    )
    assert "measured 0.7 ulp" in text


def test_every_tensor_says_what_it_is(report: Report, page: str):
    text = Page(page).text
    for row in report.tensors:
        assert row.about and row.about in text, row.name


@pytest.mark.usefixtures("no_charts")
def test_tensors_of_several_ranks_say_so(report: Report):
    several = replace(report, tensors=[replace(report.tensors[0], ranks=8), *report.tensors[1:]])
    assert "8 ranks × 4 × 2048" in Page(render(several)).text
    assert "ranks ×" not in Page(render(report)).text


@pytest.mark.usefixtures("no_charts")
def test_changes_since_an_older_report(report: Report):
    row = report.points[0]
    older = replace(report, points=[replace(row, own=replace(row.own, max_ulp=0.25)), *report.points[1:]])
    text = Page(render(report, older)).text
    assert "Changes since the older report" in text and "own.max_ulp" in text
    assert text.index("1 of 8 rounding points changed") < text.index("The three worst rounding points")
    same = Page(render(report, report)).text
    assert "Every figure is the same." in same and "Nothing changed since the report made" in same
    assert "Changes since" not in Page(render(report)).text


@pytest.mark.usefixtures("no_charts")
def test_a_kernel_run_is_judged_against_its_twin(report: Report):
    run = {**report.provenance["run"], "backend": "sim", "order": "sim"}
    reference = {**report.provenance["reference"], "order": "kernel"}
    labels = {**report.labels, "run": "sim, cpu", "reference": "twin, kernel order, cpu"}
    text = render(replace(report, labels=labels, provenance={**report.provenance, "run": run, "reference": reference}))
    assert "What ordering alone does" not in text
    assert "Difference from twin, kernel order, cpu" in text


def test_index_links_each_report(report: Report):
    page = Page(index({"k1": report, "m1a": replace(report, launch="m1a")}))
    assert [value for tag, _, value in page.links if tag == "a"] == ["k1/report.html", "m1a/report.html"]
    assert "All 8 roundings are correctly rounded." in page.text and "SNR" in page.text
    assert all(f"{point.name} {point.built_up}" in page.text for point in worst_points(report))


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 8])
def test_a_full_size_page_can_be_sent_by_mail(ranks: int):
    """Under 3 MB, the most that the project allows; M1a has the most rounding points."""
    case = make_case("m1a", ranks=ranks)
    made = make_report("m1a", case, budget=ranks == 1, spread=False)
    assert len(render(made, made).encode()) < 3_000_000


def test_summary_is_short_and_notebooks_use_it(report: Report):
    assert report._repr_html_() == summary(report)
    assert len(summary(report)) < 4000
    Page(summary(report))
