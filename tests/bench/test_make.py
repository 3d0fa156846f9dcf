"""Whole benchmarks with a clock that says what it is told: nothing here is a measurement."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest
import torch

from k3lab.backends.cuda import hostbuild
from k3lab.bench import make, result, subjects, table, tune
from k3lab.bench.baselines import fla
from k3lab.bench.check import values_of
from k3lab.bench.figure import bench_figure, caption, png
from k3lab.bench.make import Plan, run_bench
from k3lab.bench.result import OURS, TORCH_GRAPH, Result, Row
from k3lab.bench.subjects import BF16_DB, Kernel, Recurrence, Torch
from k3lab.bench.write import save
from k3lab.errors import BackendUnavailable, BadInput
from k3lab.geometry import Geometry
from tests.bench.fakes import FakeClock, FiberLauncher

MINI = {"geometry": Geometry.mini(), "nblocks": 1, "repeats": 1}
fibers = pytest.mark.skipif(not hostbuild.compiler(), reason="needs a C++ compiler")


@pytest.fixture
def quick(monkeypatch):
    """Few sets and launches."""
    monkeypatch.setattr("k3lab.bench.sets.LEAST_SETS", 2)
    monkeypatch.setattr("k3lab.bench.sets.LEAST_LAUNCHES", 2)
    monkeypatch.setattr("k3lab.bench.sets.L2_TIMES", 0)


def small(chosen=None, clock=None, **plan):
    return run_bench(Plan(**{**MINI, **plan}), clock or FakeClock((2e-6, 3e-6)), lambda what: None, chosen)


@pytest.fixture
def found(quick):
    """Torch's rows of two launches, and a kernel that is not to be had."""

    class Absent(Kernel):
        def row(self, job):
            raise BackendUnavailable("flydsl is not installed here.")

    chosen = [Absent(), Torch("graph"), Torch("eager")]
    return small(chosen, launches=("k1", "k2a"), tokens=(1, 2))


def test_tables_hold_every_subject_in_order(found):
    assert [(t.launch, t.tokens) for t in found.tables] == [("k1", 1), ("k1", 2), ("k2a", 1), ("k2a", 2)]
    for each in found.tables:
        assert [row.name for row in each.rows] == ["ours, fast build", TORCH_GRAPH, "torch, eager"]
        ours, graph, eager = each.rows
        assert ours.samples is None and ours.note == "flydsl is not installed here." and ours.mode == "none"
        assert graph.mode == "graph" and eager.mode == "stream" and graph.fine and eager.fine
        assert each.to_graph(graph) == 1.0 and each.to_graph(eager) == pytest.approx(1.5)
        assert each.to_floor(graph) == pytest.approx(2e-6 / (each.moved / found.bandwidth))
        assert each.to_floor(ours) is None


def test_it_goes_through_json_and_back(found):
    text = result.to_json(found)
    assert result.to_json(result.from_json(text)) == text
    again = result.from_json(text)
    assert again.tables[0].rows[1].median == found.tables[0].rows[1].median


def test_json_that_is_none_of_ours_is_refused(found):
    data = json.loads(result.to_json(found))
    for change in ({"version": 2}, {"bandwidth": "fast"}, {"more": 1}):
        with pytest.raises(BadInput, match="version 1 benchmark"):
            result.from_json(json.dumps({**data, **change}))
    del data["tables"][0]["rows"][0]["fine"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, result.schema())


def test_files_are_written_and_say_what_measured(found, tmp_path):
    paths = save(found, tmp_path)
    assert [path.name for path in paths] == ["bench.json", "bench.md", "bench.png"]
    assert result.load(paths[0]).device["name"] == "fake"
    text = paths[1].read_text()
    assert "nothing was measured" in text and "flydsl is not installed here." in text
    assert text.count("| floor |") == 4 and "x floor" in text
    assert paths[2].read_bytes().startswith(b"\x89PNG")


def test_the_markdown_table_is_one(found):
    rows = [line for line in table.markdown(found).splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {len(table.HEADS) + 1}


def test_the_figure_has_a_panel_a_launch_and_a_line_a_subject(found):
    figure = bench_figure(found)
    assert [axes.get_title() for axes in figure.axes] == ["k1 (kda_pre)", "k2a (attn_post)"]
    labels = [label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]]
    assert set(labels) == {"floor", TORCH_GRAPH, "torch, eager"}
    assert "fake" in caption(found) and png(figure)


def test_tables_of_two_runs_are_said_to_have_the_bandwidths_of_both(found):
    first, second, *_ = found.tables
    newer = replace(found, tables=[replace(first, moved=4_000_000, floor=1e-6)])
    both = result.joined(newer, replace(found, tables=[replace(second, moved=4_000_000, floor=8e-7)]))
    for held, said in ((newer, "4.00 TB/s"), (both, "4.00 .. 5.00 TB/s")):
        assert f" {said}" in caption(held) and f" {said}" in table.heading(held)


def test_values_are_copies(quick):
    """What a row says of its outputs is of its first launch, whatever launches follow."""
    case = make.case_of(Plan(("k1",), (1,), Geometry.mini(), 1), "k1", 1)
    held = {"core_out": torch.zeros(1, case.key.geometry.proj).bfloat16(), **case.tensors}
    values = values_of(case, held)
    before = values["rstate"].clone()
    held["rstate"].add_(1.0)
    assert torch.equal(values["rstate"], before)


def test_a_row_that_is_wrong_is_flagged_and_fails_ours_only(found):
    wrong = Row(f"{OURS}, fast build", "", snr={"core_out": 12.0}, fine=False)
    assert table.snr_text(wrong) == "12.0 (too low)"
    assert table.snr_text(replace(wrong, snr={"core_out": -999.0})) == "differs (too low)"
    assert table.snr_text(replace(wrong, snr={"core_out": None}, fine=True)) == "exact"
    one = found.tables[0]
    assert found.fine and not replace(found, tables=(replace(one, rows=(wrong,)),)).fine
    assert replace(found, tables=(replace(one, rows=(replace(wrong, name=TORCH_GRAPH),)),)).fine


@fibers
@pytest.mark.parametrize("launch", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("k1", "m1a")), "k2a"])
def test_our_kernel_is_launched_checked_and_counted(launch, quick, monkeypatch):
    pytest.importorskip("flydsl", reason="needs flydsl to lower")
    monkeypatch.setattr(subjects, "Launcher", FiberLauncher)
    clock = FakeClock()
    (found,) = small([Kernel()], clock, launches=(launch,), tokens=(2,)).tables
    (row,) = found.rows
    assert row.fine, row.snr
    assert row.mode == "graph" and clock.made == [("graph", 2, 1)]
    assert row.knobs["token_tile"] == 2 and row.kernel["registers"] == 64 and row.weights > 0


@fibers
def test_where_no_graph_can_be_captured_launches_are_queued_and_it_is_said(quick, monkeypatch):
    pytest.importorskip("flydsl", reason="needs flydsl to lower")
    monkeypatch.setattr(subjects, "Launcher", FiberLauncher)
    clock = FakeClock(graphs=False)
    (found,) = small([Kernel()], clock, launches=("k2a",), tokens=(2,)).tables
    (row,) = found.rows
    assert row.mode == "stream" and clock.made == [("queued", 2, 1)]
    assert row.note.startswith("not captured in a graph (no capture here)")


def test_a_search_chooses_the_build_that_is_timed(quick, monkeypatch, tmp_path):
    monkeypatch.setenv("K3LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(tune, "available", lambda launch, key: True)
    monkeypatch.setattr(make, "median_of", lambda job, key: 1e-6 * key.geometry.blocks)
    (found,) = small([Torch("graph")], launches=("m1a",), tokens=(1,), tune=True).tables
    assert found.tuning and found.tuning.knobs["blocks"] == 48 == found.key["geometry"]["blocks"]
    made = Result("now", FakeClock().describe(), 1e9, (found,))
    assert result.from_json(result.to_json(made)).tables[0].tuning.tried[0].median
    assert "Knobs chosen (measured in this run): blocks 48" in table.markdown(made)


def test_a_compiler_that_fails_ends_in_its_row(quick, monkeypatch):
    def fails(*args, **options):
        raise RuntimeError("no triton\nand more")

    monkeypatch.setattr("torch.compile", lambda *a, **o: fails)
    (found,) = small([Torch("compiled")], launches=("k2a",), tokens=(1,)).tables
    assert found.rows[0].note == "torch.compile max-autotune, graph: RuntimeError: no triton"


def test_the_public_kernel_of_a_part_is_used_only_where_it_is_installed(quick, monkeypatch):
    monkeypatch.setattr(fla, "import_module", _absent)
    (found,) = small([Recurrence(False), Recurrence(True)], launches=("k1",), tokens=(2,)).tables
    torch_part, public = found.rows
    assert torch_part.fine and torch_part.part and found.to_floor(torch_part) is None
    assert "not installed" in public.note and public.samples is None


def test_the_public_kernel_is_held_against_the_same_part(quick, monkeypatch):
    """In its place: the part from its own formula, token by token, on states of k x v."""
    monkeypatch.setattr(fla, "kernel", lambda: _naive)
    (found,) = small([Recurrence(True)], launches=("k1",), tokens=(4,)).tables
    assert found.rows[0].fine, found.rows[0].snr
    monkeypatch.setattr(fla, "kernel", lambda: lambda **given: _naive(**{**given, "beta": given["beta"] * 0.9}))
    (found,) = small([Recurrence(True)], launches=("k1",), tokens=(4,)).tables
    assert found.rows[0].fine is False


def test_the_bound_of_one_bf16_rounding():
    assert pytest.approx(52.93, abs=0.01) == BF16_DB


def test_plans_out_of_range_are_refused_before_anything_runs():
    for plan in ({"launches": ()}, {"tokens": (0,)}, {"repeats": 0}, {"fields": {"depth": 3}}, {"ranks": 3}):
        with pytest.raises(BadInput):
            small([], FakeClock(), **{"launches": ("k2a",), "tokens": (1,), **plan})
    with pytest.raises(BadInput, match="ranks of m1a"):
        small([], launches=("m1a",), tokens=(2,), fields={"ranks": 2})


def test_subjects_can_be_left_out():
    everything = [subject.name for subject in subjects.subjects("k1")]
    assert len(everything) == 8 and len(subjects.subjects("m1a")) == 6
    left = [subject.name for subject in subjects.subjects("k1", ("exact", "compile", "eager", "parts"))]
    assert left == ["ours, fast build", TORCH_GRAPH]


def _absent(name):
    raise ImportError(f"No module named {name!r}")


def _naive(q, k, v, g, beta, initial_state, output_final_state, use_qk_l2norm_in_kernel):
    """The gated delta rule from its formula, in float64: q, k, v [B, T, H, 128]; a state [B, H, 128 k, 128 v]."""
    assert output_final_state and use_qk_l2norm_in_kernel
    q, k, v, g, beta, s = (x.double() for x in (q, k, v, g, beta, initial_state))
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    q, o = q / 128**0.5, v.clone()
    for j in range(q.shape[1]):
        s = s * g[:, j, :, :, None].exp()
        u = beta[:, j, :, None] * (v[:, j] - (k[:, j, :, :, None] * s).sum(-2))
        s = s + k[:, j, :, :, None] * u[:, :, None]
        o[:, j] = (q[:, j, :, :, None] * s).sum(-2)
    return o.bfloat16(), s
