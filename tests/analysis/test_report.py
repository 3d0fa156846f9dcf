from __future__ import annotations

import copy
import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import k3lab
from k3lab.analysis.report import (
    Budget,
    BudgetRow,
    Difference,
    PointRow,
    Report,
    SpreadRow,
    TensorRow,
    Verdict,
    points_csv,
    schema,
)
from k3lab.errors import BadInput
from k3lab.launches import LAUNCHES
from k3lab.stats import ULP_EDGES, Figures

FILES = {"report.html", "report.json", "points.csv"}


def test_a_report_prints_as_one_line(report: Report):
    line = "Report(k1, twin kernel order against twin torch order, 8 of 8 bounds held)"
    assert repr(report) == str(report) == line


def test_another_budget(report: Report):
    bare = report.with_budget(None)
    assert bare.budget is None and bare.with_budget(report.budget) == report


@pytest.mark.parametrize("launch", LAUNCHES)
def test_every_exposed_tensor_says_what_it_is(launch: str):
    declared = LAUNCHES[launch]
    parts = (*declared.regions, *declared.rows, *declared.locals)
    assert all(part.about for part in parts)
    assert all(declared.about_of(name) for name in declared.exposed)
    assert declared.about_of("nothing") == ""


def test_ranks_that_have_their_own_are_counted():
    case = k3lab.make_case("m1a", geometry="mini", ranks=2)
    run = k3lab.run("m1a", case)
    report = k3lab.compare(run, run)
    ranks = {row.name: row.ranks for row in (*report.points, *report.tensors)}
    assert (ranks["m1a.mix.x"], ranks["m1a.proj.g"]) == (1, 2)
    assert (ranks["x"], ranks["gate_out"], ranks["kv_cache"], ranks["q_out"]) == (1, 2, 2, 1)
    for row in (*report.points, *report.tensors):
        count = row.own.count if isinstance(row, PointRow) else row.difference.count
        assert count == row.ranks * math.prod(row.shape), row.name
    assert report.ranks == 2 and repr(report).startswith("Report(m1a, 2 ranks, twin kernel order against")


def test_json_round_trip(report: Report):
    assert Report.from_json(report.to_json()) == report


def test_file_round_trip(report: Report, tmp_path: Path):
    page = report.save(tmp_path / "deep" / "k1")
    assert page == tmp_path / "deep" / "k1" / "report.html"
    assert {path.name for path in page.parent.iterdir()} == FILES
    assert Report.load(page.parent / "report.json") == report


def test_a_report_without_oracle_budget_and_spread_goes_round(report: Report):
    points = [replace(row, total=None, heat=None) for row in report.points]
    tensors = [replace(row, total=None) for row in report.tensors]
    roles = ("run", "reference")
    bare = replace(
        report,
        points=points,
        tensors=tensors,
        budget=None,
        spread=[],
        labels={role: report.labels[role] for role in roles},
        provenance={role: report.provenance[role] for role in roles},
    )
    assert Report.from_json(bare.to_json()) == bare


def test_a_report_of_a_probed_run_goes_round():
    case = k3lab.make_case("k1", geometry="mini")
    with k3lab.probe(ablate="k1.mix.x", swap={"k1.conv.out": "fp8"}, inject={"k1.gemv.proj": ((0, 5), +1)}):
        run = k3lab.run("k1", case)
    report = k3lab.compare(run, run)
    assert Report.from_json(report.to_json()) == report


def test_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(schema())


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if node.get("type") == "object":
            yield node
        for value in node.values():
            yield from _objects(value)
    elif isinstance(node, list):
        for value in node:
            yield from _objects(value)


def test_every_object_of_the_schema_is_closed():
    objects = list(_objects(schema()))
    assert len(objects) > 10
    for node in objects:
        assert "additionalProperties" in node and node["additionalProperties"] is not True, node


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("point", PointRow),
        ("tensor", TensorRow),
        ("figures", Figures),
        ("difference", Difference),
        ("verdict", Verdict),
        ("budget", Budget),
        ("spread", SpreadRow),
    ],
)
def test_the_schema_requires_every_field(name: str, kind: type):
    wanted = {field.name for field in fields(kind)}
    node = schema()["$defs"][name]
    assert set(node["required"]) == set(node["properties"]) == wanted


def test_the_schema_requires_every_field_at_the_top_and_in_budget_rows():
    assert set(schema()["required"]) == set(schema()["properties"]) == {field.name for field in fields(Report)}
    row = schema()["$defs"]["budget"]["properties"]["rows"]["items"]
    assert set(row["required"]) == set(row["properties"]) == {field.name for field in fields(BudgetRow)}
    histogram = schema()["$defs"]["figures"]["properties"]["ulp_histogram"]
    assert histogram["minItems"] == histogram["maxItems"] == len(ULP_EDGES) - 1


def _set(*path: Any, to: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        data[path[-1]] = to

    return change


def _drop(*path: Any) -> Callable[[Any], None]:
    def change(data: Any) -> None:
        for step in path[:-1]:
            data = data[step]
        del data[path[-1]]

    return change


MUTATIONS = {
    "another version": _set("version", to=2),
    "a field more": _set("extra", to=1),
    "no launch": _drop("launch"),
    "no points": _drop("points"),
    "a point more": _set("points", 0, "extra", to=1),
    "a point without own error": _set("points", 0, "own", to=None),
    "rms as text": _set("points", 0, "own", "rms", to="0.1"),
    "negative rms": _set("points", 0, "own", "rms", to=-0.1),
    "a share above 1": _set("points", 0, "own", "exact_share", to=1.5),
    "a fractional count": _set("points", 0, "own", "count", to=1.5),
    "a histogram too short": _set("points", 0, "own", "ulp_histogram", to=[1, 2]),
    "a heat map of text": _set("points", 0, "heat", to=[["hot"]]),
    "an unknown kind": _set("tensors", 0, "kind", to="thing"),
    "no rank": _set("tensors", 0, "ranks", to=0),
    "no difference": _drop("tensors", 0, "difference"),
    "a first difference with more": _set("tensors", 0, "difference", "first", to={"index": [0], "got": "1"}),
    "a verdict without outcome": _drop("verdicts", 0, "passed"),
    "a budget row without share": _drop("budget", "rows", 0, "share"),
    "budget of text": _set("budget", "all_on", "x", to="much"),
    "a hash cut short": _set("provenance", "run", "case", "hash", to="abc"),
    "no reference": _drop("provenance", "reference"),
    "a geometry more": _set("provenance", "run", "case", "key", "geometry", "extra", to=1),
    "a date in words": _set("created", to="yesterday"),
    "spread without a model": _drop("spread", 0, "model"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_schema_refuses(report: Report, name: str):
    data = copy.deepcopy(report.to_dict())
    MUTATIONS[name](data)
    with pytest.raises(BadInput, match="expected a version 1 report, got a misfit at"):
        Report.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "hello", '{"version": 1}'])
def test_text_that_is_no_report_is_refused_in_a_sentence(text: str):
    with pytest.raises(BadInput, match="expected") as caught:
        Report.from_json(text)
    assert str(caught.value).endswith(".")


def test_files_that_cannot_be_read(tmp_path: Path):
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing.json", tmp_path, tmp_path / "binary.json"):
        with pytest.raises(BadInput, match="expected a readable JSON file"):
            Report.load(path)


def test_a_full_disk_leaves_nothing_half_written(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("k3lab.analysis.charts.png", lambda figure: b"")
    report.save(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    write = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        write(self, data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(BadInput, match="no space left on the disk"):
        replace(report, about="another").save(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_diff_of_equal_reports_is_empty(report: Report):
    assert report.diff(replace(report, created="2020-01-01T00:00:00+00:00")) == []


def test_diff_names_row_figure_and_both_values(report: Report):
    row = report.points[1]
    changed = replace(row, own=replace(row.own, rms=2 * row.own.rms))
    newer = replace(report, points=[report.points[0], changed, *report.points[2:]])
    (change,) = newer.diff(report)
    assert (change.row, change.figure) == (row.name, "own.rms")
    assert (change.old, change.new) == (row.own.rms, 2 * row.own.rms)


def test_diff_shows_rows_that_came_and_went(report: Report):
    fewer = replace(report, points=report.points[1:])
    gone = [change for change in fewer.diff(report) if change.figure == "format"]
    assert [(change.row, change.new) for change in gone] == [(report.points[0].name, None)]
    came = [change for change in report.diff(fewer) if change.figure == "format"]
    assert [(change.row, change.old) for change in came] == [(report.points[0].name, None)]


def test_diff_covers_the_budget(report: Report):
    assert report.budget is not None
    first, *rest = report.budget.rows
    newer = replace(report, budget=replace(report.budget, rows=[replace(first, only=first.only + 1), *rest]))
    assert [(c.row, c.figure) for c in newer.diff(report)] == [(f"{first.point} -> {first.tensor}", "budget.only")]


def test_csv_has_a_line_a_point(report: Report):
    lines = list(csv.DictReader(io.StringIO(points_csv(report))))
    assert [line["point"] for line in lines] == [row.name for row in report.points]
    for line, row in zip(lines, report.points, strict=True):
        assert row.total is not None
        assert float(line["own_rms"]) == row.own.rms
        assert float(line["total_mean"]) == row.total.mean
        assert line["own_snr_db"] == ("" if row.own.snr_db is None else repr(row.own.snr_db))


def test_the_promised_number_of_steps_is_taken(made: tuple[Report, list[str], int]):
    _, steps, promised = made
    assert len(steps) == promised
    assert len(set(steps)) == promised


def test_reaches_and_repeated(report: Report):
    budget = report.budget
    assert budget is not None
    rows = {(row.point, row.tensor): row for row in budget.rows}
    assert not budget.reaches(rows["k1.norm.core", "x"])
    assert not budget.reaches(rows["hw.rsq", "x"]) and rows["hw.rsq", "x"].only != budget.none_on["x"]
    assert budget.reaches(rows["k1.mix.x", "x"])
    # conv.state keeps what gemv.proj rounded: without either of them, the other still rounds.
    assert budget.repeated(rows["k1.gemv.proj", "conv_state"]) and budget.repeated(rows["k1.conv.state", "conv_state"])
    assert not budget.repeated(rows["k1.mix.x", "x"])
    assert [row for row in budget.largest("x") if row.point.startswith("hw.")] == []
