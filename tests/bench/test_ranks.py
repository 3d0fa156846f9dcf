"""Benchmarks over several GPUs: real processes that hand each other words, on this machine's processor."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner

import k3lab
from k3lab.backends.cuda import hostbuild
from k3lab.backends.cuda.ranks.plan import Plan as Spread
from k3lab.backends.cuda.ranks.worker import Worker
from k3lab.bench import make, ranks, ranks_tasks, result, table
from k3lab.bench.figure import bench_figure
from k3lab.bench.ranks import Crew, Ground, Plan, Work, run_bench
from k3lab.bench.result import OURS, TORCH_NCCL_GRAPH, Link, Result, Row
from k3lab.cli import cli
from k3lab.errors import BackendUnavailable, BadInput, InternalFault
from k3lab.geometry import Geometry
from k3lab.launches import get
from tests.bench.fakes import FakeClock
from tests.kernels.harness import mini_case
from tests.kernels.k2a_cases import TINY

fibers = pytest.mark.skipif(not hostbuild.compiler(), reason="needs a C++ compiler")
LINK = Link(1000, 1e9, 2e-6)


def plan(launch="k2a", geometry=TINY, **asked) -> Plan:
    given = {"nblocks": 1, "ranks": 2, "repeats": 3, **asked}
    return Plan(make.Plan((launch,), (2,), geometry, **given), 2, share=False)


def measured(launch, geometry, **asked) -> Result:
    return run_bench(plan(launch, geometry, **asked), FakeClock(), lambda what: None, "host")


@pytest.fixture(scope="module")
def found() -> Result:
    pytest.importorskip("flydsl", reason="needs flydsl to lower")
    return measured("k2a", TINY)


@fibers
class TestOnTheHost:
    def test_our_launch_is_checked_and_every_launch_of_the_row_counted(self, found):
        (each,) = found.tables
        ours = each.rows[0]
        assert ours.name.startswith(OURS) and ours.fine and set(ours.snr) >= {"x_out", "prefix"}, ours
        assert len(ours.seconds) == 3 and ours.mode == "stream" and "from one launch to the next" in ours.note
        assert (each.gpus, each.ranks, each.sets) == (2, 2, 1) and ours.knobs["blocks"] == TINY.blocks

    def test_the_library_does_the_hand_off_and_the_layer_and_the_rest_says_why_not(self, found):
        rows = {row.name: row for row in found.tables[0].rows[1:]}
        assert len(rows["part: GLOO all-reduce"].seconds) == len(rows["torch and GLOO"].seconds) == 3
        assert rows["part: GLOO all-reduce"].part and not rows["torch and GLOO"].part
        for name in ("torch and GLOO, graph", "torch and symmetric memory"):
            assert rows[name].samples is None and "needs" in rows[name].note and rows[name].mode == "none"

    def test_the_floor_is_memory_or_the_link_and_one_way(self, found):
        (each,) = found.tables
        memory, link = each.moved / found.bandwidth, each.link.bytes / each.link.bandwidth
        assert each.floor == pytest.approx(max(memory, link) + each.link.one_way) and each.link.one_way > 0
        assert each.link.bytes == 2 * TINY.hidden // 2 * 8

    def test_it_is_written_and_read_like_any_other(self, found):
        text = result.to_json(found)
        assert result.to_json(result.from_json(text)) == text
        shown = table.markdown(found)
        assert "2 ranks on 2 GPUs" in shown and "over the link at the" in shown
        assert [axes.get_title() for axes in bench_figure(found).axes] == ["k2a (attn_post), 2 GPUs"]

    @pytest.mark.slow
    def test_parts_and_ways_can_be_left_out(self):
        pytest.importorskip("flydsl", reason="needs flydsl to lower")
        (each,) = measured("k2a", TINY, without=("parts", "graph")).tables
        assert [row.name for row in each.rows[1:]] == ["torch and GLOO", "torch and symmetric memory"]

    def test_m1a_gathers(self):
        pytest.importorskip("flydsl", reason="needs flydsl to lower")
        (each,) = measured("m1a", Geometry.mini(), without=("graph",), repeats=1).tables
        ours, gather, layer = each.rows
        assert ours.fine, (ours.snr, ours.note)
        assert (gather.name, layer.name) == ("part: GLOO all-gather", "torch and GLOO")
        assert gather.samples and layer.samples, (gather.note, layer.note)


def put_in_turn(worker: Worker, count: int) -> list[int]:
    """How often each of two calls of a row was made, and how many times came back."""
    made = [0, 0]

    def put() -> None:
        made[0] += 1

    def before() -> None:
        made[1] += 1

    worker.settle = lambda: None  # nothing is loaded
    seconds, _ = ranks_tasks.row(worker, put, count, before)
    return [*made, len(seconds)]


class TestRows:
    def test_a_row_is_put_twice_and_its_first_tenth_not_counted(self):
        with Crew(2, "host") as crew:
            assert crew.team.ask(put_in_turn, 20) == [[44, 44, 20]] * 2

    def test_a_launch_takes_as_long_as_on_the_slower_gpu(self):
        assert ranks.longest([[1.0, 5.0, 2.0], [3.0, 4.0, 2.0]]) == [3.0, 5.0, 2.0]

    def test_a_library_that_hangs_ends_in_a_note_and_is_not_asked_again(self):
        class Hangs:
            asked = 0

            def ask(self, *args, **options):
                Hangs.asked += 1
                raise InternalFault("GPU 0: did not answer.")

        crew = Crew(2)
        crew.__class__ = type("Fake", (Crew,), {"team": Hangs()})
        for _ in range(2):
            (row,) = ranks.by_torch(crew, 5)
            assert row.note == "not measured: GPU 0: did not answer." and row.samples is None
        assert Hangs.asked == 1

    def test_a_team_that_ended_is_replaced(self):
        with Crew(2, "host") as crew:
            first = crew.team
            assert crew.team is first
            first.kill(1)
            first.processes[1].join(10)
            assert crew.team is not first


class TestBytes:
    @pytest.mark.parametrize(
        ("launch", "options", "live", "wanted"),
        [
            # Pairs of a word and a tag, 8 bytes: K2a's hold two partial sums, M1a's four bytes of a query head.
            ("k2a", {"ranks": 2}, (0, 1), 3 * 2048 // 2 * 8),
            ("k2a", {"ranks": 2, "sentinel": True}, (0, 1), 3 * 2048 // 2 * 4),
            # To each of two ranks on the other GPU half the columns' partials, in all ranks' shares, and sums.
            ("k2a", {"ranks": 4, "shots": "two"}, (0, 1, 2, 3), 2 * 2 * 3 * 2048 // 2 * 8 * 2 // 4),
            ("m1a", {"ranks": 2}, (0, 1), 3 * 2 * 576 // 4 * 8),
        ],
    )
    def test_words_over_the_link(self, launch, options, live, wanted):
        case = k3lab.make_case(launch, geometry=Geometry.mini(), tokens=3, nblocks=1, **options)
        assert Work(case, Spread(options["ranks"], live, 2)).remote_bytes == wanted

    def test_the_measured_runs_words(self):
        """As counted in the committed results: S = 4, 7168 columns, 12 heads of 576 bytes."""
        small = {name: mini_case(name, tokens=4, nblocks=1, ranks=2) for name in ("k2a", "m1a")}
        for name, size, wanted in (("k2a", Geometry.k3(2), 114688), ("m1a", Geometry.k3(), 55296)):
            key = get(name).key(size, tokens=4, nblocks=4, ranks=2)
            assert Work(replace(small[name], key=key), Spread(2, (0, 1), 2)).remote_bytes == wanted

    def test_the_floor_takes_the_longer_of_memory_and_link(self):
        ground = Ground(memory=1000.0, link=10.0, one_way=0.5)
        assert ground.floor(2000, 10) == 2.5 and ground.floor(2000, 50) == 5.5


class TestPlans:
    def test_sizes_follow_the_ranks_and_a_gpus_ranks_share_its_workgroups(self):
        asked = make.Plan(("k2a", "m1a"), (4,), Geometry.k3(), ranks=4)
        spread = Plan(asked, 2)
        k2a, m1a = spread.key("k2a", 4), spread.key("m1a", 4)
        assert (k2a.geometry.tp, k2a.geometry.blocks, k2a.ranks) == (4, 128, 4)
        assert (m1a.geometry.tp, m1a.geometry.blocks, m1a.ranks) == (8, 128, 4)
        assert replace(spread, share=False).key("k2a", 4).geometry.tp == 8

    @pytest.mark.parametrize(
        ("changes", "gpus", "said"),
        [
            ({"launches": ("k1",)}, 2, "launch over several GPUs: expected one of k2a, m1a, got 'k1'"),
            ({}, 1, "gpus: expected at least 2, got 1"),
            ({"ranks": 2}, 4, "gpus: expected 1 .. 2"),
            ({"tune": True}, 2, "tune: expected none over several GPUs"),
            ({"repeats": 0}, 2, "repeats"),
            ({"ranks": 3}, 2, "3"),
            ({"fields": {"depth": 3}}, 2, "field of a key"),
        ],
    )
    def test_plans_out_of_range_are_refused(self, changes, gpus, said):
        asked = make.Plan(**{"launches": ("k2a",), "tokens": (4,), "ranks": 2, **changes})
        with pytest.raises(BadInput) as refused:
            Plan(asked, gpus).check()
        assert said in str(refused.value)

    def test_ratios_are_to_torch_and_nccl_in_a_graph(self):
        rows = (Row("ours", "", "stream", (2e-6,), 1), Row(TORCH_NCCL_GRAPH, "", "graph", (4e-6,), 10))
        each = result.Table("k2a", "attn_post", 4, 2, {}, "", 1, 1e-6, 1, 1, 1.0, rows, gpus=2, link=LINK)
        assert each.to_graph(rows[0]) == 0.5 and each.to_floor(rows[0]) == 2.0

    def test_tables_of_one_and_of_several_gpus_stand_side_by_side(self):
        one = result.Table("k2a", "attn_post", 4, 1, {}, "", 1, 1e-6, 1, 1, 1.0, ())
        two = replace(one, gpus=2, ranks=2, link=LINK)
        older, newer = (Result("now", FakeClock().describe(), 1e9, (each,)) for each in (one, two))
        assert [each.gpus for each in result.joined(newer, older).tables] == [1, 2]


class TestCommand:
    def refused(self, code, *args):
        done = CliRunner().invoke(cli, ["bench", *map(str, args)], prog_name="k3lab")
        assert done.exit_code == code, done.output
        (sentence,) = done.stderr.splitlines()
        assert sentence.startswith("k3lab: ") and sentence.endswith(".")
        return sentence

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
    @pytest.mark.parametrize("launch", ["k2a", "m1a", "all"])
    def test_without_gpus_one_sentence_and_nothing_is_written(self, launch, tmp_path):
        assert "cuda" in self.refused(3, launch, "--gpus", 2, "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_too_few_gpus_are_counted(self, monkeypatch):
        monkeypatch.setattr("k3lab.backends.cuda.device.check_torch", lambda: None)
        monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
        with pytest.raises(BackendUnavailable, match="expected 2 GPUs in this host, got 1"):
            ranks.check_count(2)
        assert "expected 4 GPUs in this host, got 1" in self.refused(3, "k2a", "--gpus", 4)

    @pytest.mark.parametrize(
        ("args", "said"),
        [
            (("k1", "--gpus", 2), "launch over several GPUs"),
            (("k2a", "--gpus", 1), "gpus"),
            (("k2a", "--gpus", 4, "--ranks", 2), "gpus"),
            (("k2a", "--gpus", 2, "--gpu", 1), "--gpu"),
            (("k2a", "--gpus", 2, "--tune"), "tune"),
            (("k2a", "--ranks", 0), "ranks"),
        ],
    )
    def test_bad_input_ends_in_a_sentence(self, args, said):
        assert said in self.refused(2, *args)

    def test_builds_are_lowered_without_gpus(self, tmp_path):
        pytest.importorskip("flydsl", reason="needs flydsl to lower")
        args = ["bench", "all", "--gpus", "2", "--geometry", "mini", "--tokens", "2", "--nblocks", "1"]
        done = CliRunner().invoke(cli, [*args, "--lower", str(tmp_path)], prog_name="k3lab")
        assert done.exit_code == 0 and done.stdout.startswith("2 builds lowered"), done.output
        assert len(list(tmp_path.glob("*.mlir"))) == 2
