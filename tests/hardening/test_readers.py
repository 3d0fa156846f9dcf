"""Every file that k3lab reads, damaged: refused in a sentence that names the file, or read as something whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3lab.analysis import sentences
from k3lab.analysis.make import make_report
from k3lab.analysis.report import Report, SpreadRow
from k3lab.analysis.timeline import Timeline, store
from k3lab.analysis.timeline import load as load_timeline
from k3lab.analysis.timeline.traffic import Moved, Multiplied, Traffic
from k3lab.cases import load, make_case, save
from k3lab.cases import store as case_store
from k3lab.files import write_bytes, write_text
from k3lab.lowering import store as ir_store
from tests.analysis.timeline.made import chain
from tests.hardening.damage import damaged, spoilt
from tests.hardening.said import refused, taken

same_file = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
fewer = settings(same_file, max_examples=max(15, settings().max_examples // 4))
"""For files that take long to read, as these are checked against a schema or a hash."""
SMALL: dict[str, Any] = {"geometry": "mini", "tokens": 1, "qlen": 1, "nblocks": 0, "values": "constant"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("readers")


@pytest.fixture(scope="module")
def case_bytes(folder: Path) -> bytes:
    return save(make_case("k1", **SMALL), folder / "whole.safetensors").read_bytes()


@pytest.fixture(scope="module")
def report() -> Report:
    """Two rows of each kind: as much to damage as there is in a whole report, read in a fraction of the time."""
    made = make_report("k1", make_case("k1", **SMALL), budget=True, spread=False)
    assert made.budget is not None
    rows = {"points": made.points[:2], "tensors": made.tensors[:2], "verdicts": made.verdicts[:2]}
    spread = [SpreadRow("pairwise", "fused", "prefix", made.tensors[0].difference)]
    return replace(made, **rows, spread=spread, budget=replace(made.budget, rows=made.budget.rows[:2]))


@pytest.fixture(scope="module")
def timeline() -> Timeline:
    moved = Moved(0, "slice", "prefix", "load", 4096, 2048, 2048)
    return replace(chain(), traffic=Traffic((moved,), (Multiplied(0, "gemv", 100, None),)))


@pytest.fixture(scope="module")
def ir_text(folder: Path) -> str:
    """A lowered kernel of a few lines, in the form FlyDSL prints."""
    return (Path(__file__).parent / "kernel.mlir").read_text(encoding="utf-8")


# Cases.


@fewer
@given(data=st.data())
def test_a_damaged_case_is_refused_or_the_same(folder: Path, case_bytes: bytes, data: st.DataObject):
    path = write_bytes(folder / "case.safetensors", data.draw(damaged(case_bytes)))
    read = taken(lambda: load(path), "case.safetensors")
    assert read is None or read.hash == make_case("k1", **SMALL).hash


@fewer
@given(data=st.data())
def test_a_case_with_another_key_is_refused(folder: Path, case_bytes: bytes, data: st.DataObject):
    """The checksum fits: somebody wrote this file on purpose."""
    header = json.loads(case_bytes[8 : 8 + int.from_bytes(case_bytes[:8], "little")])["__metadata__"]
    name = data.draw(st.sampled_from(sorted(case_store.FIELDS - {"checksum", "k3lab_case"})))
    document = json.loads(header["key"]) if name == "key" else header[name]
    fields = {**header, name: data.draw(st.one_of(spoilt(document), st.just("[" * 100_000), st.text(max_size=20)))}
    fields["checksum"] = case_store._checksum(fields)
    path = folder / "other.safetensors"
    try:
        path.write_bytes(safetensors.torch.save(safetensors.torch.load(case_bytes), fields))
    except UnicodeEncodeError:
        return  # half a surrogate pair, which no file can hold
    read = taken(lambda: load(path), "other.safetensors")
    assert read is None or read.hash == header["hash"]


DTYPES = [getattr(torch, name) for name in ("uint8", "bool", "float8_e4m3fn", "float64", "complex64", "uint16")]


@fewer
@given(dtype=st.sampled_from(DTYPES), shape=st.lists(st.integers(0, 3), max_size=5), all_of_them=st.booleans())
def test_a_case_with_other_tensors_is_refused(
    folder: Path, case_bytes: bytes, dtype: torch.dtype, shape: list[int], all_of_them: bool
):
    tensors = safetensors.torch.load(case_bytes)
    header = json.loads(case_bytes[8 : 8 + int.from_bytes(case_bytes[:8], "little")])["__metadata__"]
    for name in tensors if all_of_them else ["prefix"]:
        tensors[name] = torch.zeros(shape, dtype=dtype)
    path = folder / "tensors.safetensors"
    path.write_bytes(safetensors.torch.save(tensors, header))
    with refused("tensors.safetensors"):
        load(path)


# Reports and timelines.


def used_report(path: Path, new: Report) -> None:
    """What `--against` makes of an older report."""
    old = Report.load(path)
    assert old.launch and isinstance(new.diff(old), list)
    assert sentences.case(old)


def used_timeline(path: Path, new: Timeline) -> None:
    """What `--against` makes of an older timeline."""
    old = load_timeline(path)
    if (old.launch, old.clock.kind) == (new.launch, new.clock.kind):
        assert isinstance(store.changes(old, new), list)
    assert old.begin <= old.end and old.title and old.intervals is not None


@fewer
@given(data=st.data())
def test_a_damaged_report_is_refused_or_whole(folder: Path, report: Report, data: st.DataObject):
    path = write_bytes(folder / "report.json", data.draw(damaged(report.to_json().encode())))
    taken(lambda: used_report(path, report), "report.json")


@fewer
@given(data=st.data())
def test_a_report_that_says_something_else_is_refused_or_whole(folder: Path, report: Report, data: st.DataObject):
    path = write_text(folder / "told.json", data.draw(spoilt(json.loads(report.to_json()))))
    taken(lambda: used_report(path, report), "told.json")


@fewer
@given(data=st.data())
def test_a_damaged_timeline_is_refused_or_whole(folder: Path, timeline: Timeline, data: st.DataObject):
    path = write_bytes(folder / "timeline.json", data.draw(damaged(store.to_json(timeline).encode())))
    taken(lambda: used_timeline(path, timeline), "timeline.json")


@fewer
@given(data=st.data())
def test_a_timeline_that_says_something_else_is_refused_or_whole(folder: Path, timeline: Timeline, data: st.DataObject):
    path = write_text(folder / "told.json", data.draw(spoilt(json.loads(store.to_json(timeline)))))
    taken(lambda: used_timeline(path, timeline), "told.json")


def test_what_is_whole_comes_back_as_it_was(folder: Path, report: Report, timeline: Timeline):
    assert Report.load(write_text(folder / "whole.json", report.to_json())) == report
    path = write_text(folder / "timeline.json", store.to_json(timeline))
    assert store.to_json(load_timeline(path)) == store.to_json(timeline)


def changed(document: Any, *path: Any, to: Any) -> str:
    """The text of a document with one value replaced."""
    made = json.loads(json.dumps(document))
    holder = made
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = to
    return json.dumps(made)


AT_ODDS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "a row of stamps too short": (("stamps", 0, 1), [1, 2]),
    "a rank of no CTAs": (("stamps", 0), []),
    "no rank": (("stamps",), []),
    "stamps beyond 64 bits": (("stamps", 0, 0, 0), 2**63),
    "a stamp before 0": (("stamps", 0, 0, 0), -5),
    "two points of one name": (("points", 1, "name"), "start"),
    "a point before none": (("points", 12, "before"), "nothing"),
    "a point before itself": (("points", 12, "before"), "conv_entered"),
    "a region that is not named": (("waits", "region", 0), 2),
    "a wait of no CTA": (("waits", "cta", 0), 4),
    "a wait for no CTA": (("waits", "from_cta", 0), -2),
    "a wave beyond 32 bits": (("waits", "wave", 0), 2**31),
    "a column too short": (("waits", "end"), [1.0]),
    "a barrier of no rank": (("barriers", "rank", 0), 1),
    "a clock that stands": (("clock", "rate"), 1e-300),
}


@pytest.mark.parametrize("what", AT_ODDS)
def test_a_timeline_at_odds_with_itself_is_refused(folder: Path, timeline: Timeline, what: str):
    path, to = AT_ODDS[what]
    text = changed(json.loads(store.to_json(timeline)), *path, to=to)
    with refused("odd.json"):
        load_timeline(write_text(folder / "odd.json", text))


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
@pytest.mark.parametrize("reader", [Report.load, load_timeline], ids=["report", "timeline"])
def test_numbers_that_json_does_not_have_are_refused(folder: Path, reader: Callable[[Path], Any], number: str):
    with refused("numbers.json", "in JSON"):
        reader(write_text(folder / "numbers.json", f'{{"version": {number}}}'))


# Lowered kernels, and what is cached of them.


def test_the_kernel_used_here_is_read(folder: Path, ir_text: str):
    path = write_text(folder / "whole.mlir", ir_text)
    read = ir_store.load(path)
    assert list(read.module.kernels) == ["constants"] and ir_store.load(ir_store.save(read, path)) == read


@same_file
@given(data=st.data(), sealed=st.booleans())
def test_a_damaged_kernel_is_refused_or_read(folder: Path, ir_text: str, data: st.DataObject, sealed: bool):
    whole = ir_text.encode()
    path = folder / "kernel.mlir"
    if sealed:
        whole = ir_store.save(ir_store.load(write_text(path, ir_text)), path).read_bytes()
    write_bytes(path, data.draw(damaged(whole)))
    taken(lambda: ir_store.load(path), "kernel.mlir")


@st.composite
def rewritten(draw: st.DrawFn, text: str) -> str:
    """The text with words of it in one another's place: closer to IR than flipped bits."""
    lines = text.splitlines()
    for _ in range(draw(st.integers(1, 3))):
        number = draw(st.integers(0, len(lines) - 1))
        words = lines[number].split(" ")
        place = draw(st.integers(0, len(words) - 1))
        other = draw(st.sampled_from(lines)).split(" ")
        words[place] = draw(st.sampled_from([*other, "%0", "%0:3", "^bb9", "0", '"', "({", "})", "<{", "}>", "[[[["]))
        lines[number] = " ".join(words)
    return "\n".join(lines)


@same_file
@given(data=st.data())
def test_a_rewritten_kernel_is_refused_or_read(folder: Path, ir_text: str, data: st.DataObject):
    path = write_text(folder / "kernel.mlir", data.draw(rewritten(ir_text)))
    taken(lambda: ir_store.load(path), "kernel.mlir")


@same_file
@given(data=st.data())
def test_what_was_damaged_in_the_cache_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: st.DataObject
):
    monkeypatch.setenv("K3LAB_CACHE", str(tmp_path))
    assert ir_store.cached("kind", ["key"], lambda: b"made\n\x00") == b"made\n\x00"
    (kept,) = (path for path in tmp_path.rglob("*") if path.is_file())
    good = kept.read_bytes()
    bad = data.draw(damaged(good).filter(lambda bad: bad != good))
    kept.write_bytes(bad)
    assert ir_store.cached("kind", ["key"], lambda: b"again") == b"again"
    assert ir_store.cached("kind", ["key"], lambda: b"never") == b"again"
    kept.unlink()


def test_no_home_is_no_cache(monkeypatch: pytest.MonkeyPatch):
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("K3LAB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert ir_store.cached("kind", ["key"], lambda: b"made") == b"made"
