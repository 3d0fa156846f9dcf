"""Whatever a string in a report, a timeline or a run says, it stays text on every page that shows it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from typing import Any

import pytest

from k3lab.analysis import html
from k3lab.analysis.make import make_report
from k3lab.analysis.report import Report, SpreadRow
from k3lab.analysis.timeline import Timeline
from k3lab.analysis.timeline.page import contents
from k3lab.cases import make_case
from tests.analysis.timeline.made import chain

MARK = "zq7"
EVIL = f"<script>alert('{MARK}')</script>\"'&</script><img src=x onerror={MARK}>--><b {MARK}>"
ELSEWHERE = ("src", "href", "action", "formaction", "data", "srcset")


class Page(HTMLParser):
    """The elements of a page, and what is wrong with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.scripts: list[str] = []
        self.told = 0
        self._script = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements[tag] += 1
        self._script = tag == "script"
        if self._script:
            self.scripts.append("")
        for name, value in attrs:
            if MARK in name or name.startswith("on"):
                self.wrong.append(f"attribute {name} of {tag}")
            if name in ELSEWHERE and not (value or "").startswith(("#", "data:image/png;base64,")):
                self.wrong.append(f"{name}={value} of {tag}")
            if name == "style" and MARK in (value or ""):
                self.wrong.append(f"style {value}")
            self.told += MARK in (value or "")

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        self.told += data.count(MARK)
        if self._script:
            self.scripts[-1] += data


def poisoned(value: Any, keep: frozenset[str]) -> Any:
    """`value` with every string in it made evil, but for the fields and keys in `keep`."""
    if isinstance(value, str):
        return value + EVIL
    if isinstance(value, dict):
        return {name: inner if name in keep else poisoned(inner, keep) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(poisoned(inner, keep) for inner in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: poisoned(getattr(value, f.name), keep) for f in fields(value) if f.name not in keep}
        return replace(value, **changed)
    return value


# What a page computes with: names of formats, roles of points, and words that are chosen from a closed set.
OF_REPORTS = frozenset({"format", "created", "bound", "backend", "order", "kind", "key", "ulp_histogram", "budget"})
OF_TIMELINES = frozenset({"before", "role", "kind", "stamps", "waits", "barriers", "what"})


@pytest.fixture(scope="module")
def plain() -> Report:
    made = make_report("k1", make_case("k1", geometry="mini", tokens=1, qlen=1, nblocks=0, values="constant"))
    rows = {"points": made.points[:2], "tensors": made.tensors[:2], "verdicts": made.verdicts[:2]}
    spread = [SpreadRow("pairwise", "fused", row.name, row.difference) for row in made.tensors[:2]]
    return replace(made, **rows, spread=spread)


@pytest.fixture(autouse=True)
def no_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages without the seconds that drawing takes: pictures are of pixels."""
    monkeypatch.setattr("k3lab.analysis.charts.png", lambda figure: b"")
    monkeypatch.setattr("k3lab.analysis.timeline.page.png", lambda figure: b"")


def evil_budget(report: Report) -> Report:
    """Its rows' points and tensors, and the tensors of its totals, renamed together."""
    budget = report.budget
    assert budget is not None
    names = {f"{name}{EVIL}": name for name in budget.all_on}
    rows = [replace(row, point=f"{row.point}{EVIL}", tensor=f"{row.tensor}{EVIL}") for row in budget.rows]
    totals = {
        part: {evil: getattr(budget, part)[name] for evil, name in names.items()} for part in ("all_on", "none_on")
    }
    return replace(report, budget=replace(budget, rows=rows, **totals))


def assert_inert(text: str, like: str) -> None:
    """A page of evil strings has the elements of the plain one that is like it, and says them as text."""
    evil, plain = Page(text), Page(like)
    assert evil.wrong == [] and evil.told > 0
    for tag in ("script", "img", "b", "iframe", "object", "link", "svg"):
        assert evil.elements[tag] == plain.elements[tag], tag
    for script in evil.scripts:
        if script.lstrip().startswith("{"):
            json.loads(script)


def test_a_report_is_inert(plain: Report):
    evil = evil_budget(poisoned(plain, OF_REPORTS))
    assert EVIL in evil.points[0].name and EVIL in evil.tensors[0].about and EVIL in evil.launch
    assert_inert(html.render(evil), html.render(plain))


def test_a_report_beside_an_evil_older_one_is_inert(plain: Report):
    evil = evil_budget(poisoned(plain, OF_REPORTS))
    assert_inert(html.render(plain, against=evil), html.render(plain, against=plain.with_budget(None)))


def test_summary_and_index_are_inert(plain: Report):
    evil = evil_budget(poisoned(plain, OF_REPORTS))
    assert_inert(html.summary(evil), html.summary(plain))
    assert_inert(evil._repr_html_(), plain._repr_html_())
    index, like = html.index({"plain": evil}), html.index({"plain": plain})
    assert Page(index).elements == Page(like).elements and MARK in index
    assert [bad for bad in Page(index).wrong if MARK in bad] == []


def test_an_evil_folder_cannot_leave_its_link(plain: Report):
    page = Page(html.index({f"a{EVIL}": plain}))
    assert page.elements == Page(html.index({"a": plain})).elements
    assert not [bad for bad in page.wrong if bad.startswith("attribute")]
    assert not [bad for bad in page.wrong if "javascript:" in bad.lower()]


def test_a_timeline_is_inert():
    plain = chain()
    evil: Timeline = poisoned(plain, OF_TIMELINES)
    evil = replace(evil, points=tuple(replace(p, before=p.before and p.before + EVIL) for p in evil.points))
    assert EVIL in evil.regions[0] and EVIL in evil.points[0].name and EVIL in evil.clock.device
    pages = [contents(made)["timeline.html"] for made in (evil, plain)]
    assert_inert(str(pages[0]), str(pages[1]))
    assert_inert(evil._repr_html_(), plain._repr_html_())
    data = [script for script in Page(str(pages[0])).scripts if script.lstrip().startswith("{")]
    assert data and MARK in data[0] and "<" not in data[0]


def test_an_evil_timeline_in_a_report_is_inert(plain: Report):
    evil: Timeline = poisoned(chain(), OF_TIMELINES)
    evil = replace(evil, points=tuple(replace(p, before=p.before and p.before + EVIL) for p in evil.points))
    assert_inert(html.render(plain, timeline=evil), html.render(plain, timeline=chain()))


def test_a_self_test_is_inert():
    from k3lab.analysis.selftest import Row, SelfTest

    row = Row("k1", "tokens=4", "whole", False, "differs: x in 3 values", 1.0, report="k1-0/report.html")
    made = SelfTest("sim", "cpu", "2026-01-01T00:00:00+00:00", {"k3lab": "0"}, [row], {}, ["m1a"], ["a note"])
    evil_row = poisoned(row, frozenset({"report"}))
    evil = poisoned(replace(made, rows=[]), frozenset({"created", "backend", "reports"}))
    evil = replace(evil, rows=[evil_row])
    texts = [html.selftest(test.to_dict()) for test in (evil, made)]
    assert Page(texts[0]).elements == Page(texts[1]).elements and MARK in texts[0]
    assert not [bad for bad in Page(texts[0]).wrong if MARK in bad]


def test_the_test_sees_an_injection():
    page = Page(f'<p title="{EVIL}">{EVIL}</p>')
    assert page.wrong and page.elements["script"] and page.elements["img"] and page.elements["b"]
