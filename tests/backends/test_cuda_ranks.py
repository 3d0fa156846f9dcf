"""Ranks in processes of their own: real processes and shared memory, the kernels on this machine's processor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

import k3lab
from k3lab.backends.cuda import hostbuild
from k3lab.backends.cuda.ranks import launch as teams
from k3lab.backends.cuda.ranks import parcels, probes
from k3lab.backends.cuda.ranks.board import Board, MissingRanks
from k3lab.backends.cuda.ranks.clocks import Clocks, Offset
from k3lab.backends.cuda.ranks.plan import Plan
from k3lab.backends.cuda.ranks.team import Team
from k3lab.backends.cuda.ranks.worker import Worker
from k3lab.errors import BadInput, InternalFault
from k3lab.kernels import peers
from k3lab.kernels.host import Buffers
from tests.kernels.harness import differences, mini_case
from tests.kernels.k2a_cases import TINY, VARIANTS

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")
fibers = pytest.mark.skipif(not hostbuild.compiler(), reason="needs a C++ compiler")

WAIT = 1 << 30
"""Microseconds that a bounded wait takes where none shall be given up."""


def k2a_case(**options):
    """A small case of K2a."""
    return k3lab.make_case("k2a", geometry=TINY, tokens=2, nblocks=1, **options)


def buffers_of(case: k3lab.Case, plan: Plan, wait: int = WAIT) -> list[Buffers]:
    """Every rank's buffers for epoch 1, what ranks that do not run send among them."""
    ranks = [Buffers.of(case.declaration, case.key, tensors) for tensors in case.ranks]
    peers.join(ranks)
    for buffers in ranks:
        buffers.numbers["wait_ticks"] = wait
    if not plan.whole:
        peers.fill_others(ranks, plan.live, k3lab.run(case.launch, case).ranks)
    return ranks


def wrong(ranks: list[Buffers], plan: Plan, twin: k3lab.Run) -> list[str]:
    exposed = peers.exposed(ranks, plan.live)
    assert all(exposed[rank] for rank in plan.live)
    return [line for rank, values in enumerate(exposed) for line in differences(values, twin.ranks[rank])]


@fibers
class TestLaunches:
    @pytest.fixture(autouse=True)
    def _on_the_host(self, monkeypatch):
        monkeypatch.setattr(teams, "ENGINE", "host")

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_k2a_on_two_ranks(self, variant):
        case = k2a_case(ranks=2, dumps=True, **VARIANTS[variant])
        plan = Plan(2, (0, 1), 2)
        back, said = teams.launched(buffers_of(case, plan), plan)
        assert wrong(back, plan, k3lab.run("k2a", case)) == [] and said == {}

    @pytest.mark.parametrize("variant", ["one-sentinel", "two-tagged"])
    def test_k2a_on_four_ranks_two_a_process(self, variant):
        case = k2a_case(ranks=4, **VARIANTS[variant])
        plan = Plan(4, (0, 1, 2, 3), 2)
        back, _ = teams.launched(buffers_of(case, plan), plan)
        assert wrong(back, plan, k3lab.run("k2a", case)) == []

    @pytest.mark.parametrize("launch", ["k2a", "m1a"])
    def test_two_of_eight_live(self, launch):
        m1a = launch == "m1a"
        case = mini_case("m1a", tokens=2, nblocks=1, ranks=8) if m1a else k2a_case(ranks=8, shots="two")
        plan = Plan(8, (0, 1), 2)
        back, _ = teams.launched(buffers_of(case, plan), plan)
        assert wrong(back, plan, k3lab.run(launch, case)) == []

    def test_m1a_on_two_ranks(self):
        case = mini_case("m1a", tokens=2, nblocks=1, ranks=2)
        plan = Plan(2, (0, 1), 2)
        back, _ = teams.launched(buffers_of(case, plan), plan)
        assert wrong(back, plan, k3lab.run("m1a", case)) == []


def steps(worker: Worker, count: int, seed: int) -> list[int]:
    """Launches in a row without a fence between them, each process at its own pace; epochs, and wrong words."""
    rng, wrong_words = np.random.default_rng([seed, worker.setup.me]), 0
    given = [{name: tensor.clone() for name, tensor in held.tensors.items()} for held in worker.running.live]
    outputs: list[dict[str, torch.Tensor]] = []
    for _ in range(count):
        for held, start in zip(worker.running.live, given, strict=True):
            held.tensors["prefix"].copy_(start["prefix"])
        time.sleep(rng.random() * 0.05)
        worker.running.launch()
        worker.settle()
        found = [{name: held.tensors[name].clone() for name in ("x_out", "prefix")} for held in worker.running.live]
        outputs = outputs or found
        wrong_words += sum(int((a[n] != b[n]).sum()) for a, b in zip(found, outputs, strict=True) for n in a)
        worker.advance()
    worker.fence()
    return [worker.running.epoch, wrong_words]


def endless(worker: Worker, count: int) -> None:
    """Launches until something is missing."""
    for _ in range(count):
        worker.running.launch()
        worker.settle()
        worker.advance()


def late(worker: Worker) -> None:
    if worker.setup.me:
        time.sleep(3600)
    worker.fence()


def refuses(worker: Worker) -> None:
    raise BadInput(f"seed: expected a number, got one of GPU {worker.setup.me}.")


def number(worker: Worker, factor: int) -> int:
    return worker.setup.me * factor


def ping(worker: Worker, rounds: int) -> list[list[int]]:
    words, addresses = worker.pings()
    worker.fence()
    me = worker.setup.me
    log = probes.ping(None, words.data_ptr(), addresses[1 - me], me == 0, rounds)
    worker.fence()
    return [[int(time_) for time_ in row] for row in log]


def gone(pids: list[int]) -> bool:
    """Whether no process of these numbers runs any more."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


@fibers
class TestSteps:
    @pytest.mark.parametrize("variant", ["one-tagged", "two-sentinel"])
    def test_many_steps_at_unequal_paces(self, variant):
        case = k2a_case(ranks=2, **VARIANTS[variant])
        plan = Plan(2, (0, 1), 2)
        ranks = buffers_of(case, plan)
        with Team(2, "host") as team:
            teams.load(team, ranks, plan)
            assert team.ask(steps, 6, 7) == [[7, 0], [7, 0]]
            back = teams.fetched(team, ranks, plan)
        assert {int(buffers.tensors["epoch"][0]) for buffers in back} == {7}

    def test_words_of_ranks_that_do_not_run_come_with_every_step(self):
        case = k2a_case(ranks=4, shots="two", sentinel=True)
        plan = Plan(4, (0, 1), 2)
        sent = peers.sent_by_others(case.declaration, case.key, plan.live, k3lab.run("k2a", case).ranks)
        with Team(2, "host") as team:
            teams.load(team, buffers_of(case, plan), plan, dict(enumerate(sent)))
            assert team.ask(steps, 4, 1) == [[5, 0], [5, 0]]


@fibers
class TestFailures:
    def test_a_rank_killed_in_a_step_is_named_and_ends_the_others(self):
        case = k2a_case(ranks=2, bounded=True)
        plan = Plan(2, (0, 1), 2)
        with Team(2, "host") as team:
            teams.load(team, buffers_of(case, plan, 3_000_000), plan)
            pids = team.alive
            team.begin(endless, 10_000)
            time.sleep(1.0)
            team.kill(1)
            with pytest.raises(InternalFault) as failed:
                team.wait(120)
        said = str(failed.value)
        assert "GPU 1: ended by signal SIGKILL." in said
        assert "gave up waiting for pair" in said and "of region AR" in said
        assert f"Missing: rank 1 (process {pids[1]} on GPU 1, which has ended, last at fence 1, epoch " in said
        assert gone(pids) and not team.folder.exists()

    def test_a_rank_that_does_not_come_to_the_fence_is_named(self):
        with Team(2, "host", patience=0.5) as team:
            team.grace = 1.0
            with pytest.raises(InternalFault, match=r"fence 1: expected all 2 ranks, got 1; missing: rank 1 \(process"):
                team.ask(late)
            assert gone(team.alive)

    def test_a_refusal_keeps_its_kind_and_its_sentence(self):
        with Team(2, "host") as team, pytest.raises(BadInput, match="seed: expected a number, got one of GPU 0"):
            team.ask(refuses)

    def test_processes_end_with_their_owner(self, tmp_path):
        script = tmp_path / "owner.py"
        script.write_text(
            "import time\n"
            "from k3lab.backends.cuda.ranks.team import Team\n"
            "from tests.backends.test_cuda_ranks import late, number\n"
            "if __name__ == '__main__':\n"
            "    team = Team(2, 'host')\n"
            "    team.ask(number, 1)\n"
            "    team.begin(late)\n"
            "    print(*team.alive, flush=True)\n"
            "    time.sleep(3600)\n"
        )
        root = str(Path(__file__).parents[2])
        owner = subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root}
        )
        assert owner.stdout
        pids = [int(word) for word in owner.stdout.readline().split()]
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert len(pids) == 2 and gone(pids)


class TestTasks:
    def test_every_process_answers_with_its_own(self):
        with Team(3, "host") as team:
            assert team.ask(number, 10) == [0, 10, 20]
            assert team.ask(number, 1, 2, 3, each=True) == [0, 2, 6]
            pids = team.alive
        assert len(pids) == 3 and gone(pids)

    @fibers
    def test_round_trips_go_through_shared_memory(self):
        with Team(2, "host") as team:
            asked, answered = team.ask(ping, 50)
        for log in (asked, answered):
            times = [time_ for row in log for time_ in row]
            assert len(log) == 50 and times == sorted(times) and times[0] > 0


class TestBoard:
    def test_a_fence_passes_when_all_have_come(self, tmp_path):
        boards = [Board(tmp_path / "board", [(0, 2), (1, 3)], me) for me in range(2)]
        boards[1].say("fence", 1)
        boards[0].fence(1.0)
        assert boards[0].read("fence") == [1, 1]

    def test_who_is_missing_is_said_with_where_it_was(self, tmp_path):
        boards = [Board(tmp_path / "board", [(0, 2), (1, 3)], me) for me in range(2)]
        boards[1].say("process", 4242)
        boards[1].say("epoch", 57)
        with pytest.raises(MissingRanks) as missing:
            boards[0].fence(0.01)
        assert missing.value.ranks == (1, 3) and str(missing.value) == (
            "fence 1: expected all 4 ranks, got 2; missing: ranks 1, 3 (process 4242 on GPU 1, which still runs, "
            "last at fence 0, epoch 57)."
        )

    def test_one_that_has_ended_is_not_waited_for(self, tmp_path):
        board = Board(tmp_path / "board", [(0,), (1,)], 0)
        board.say("gone", 1, 1)
        begun = time.monotonic()
        with pytest.raises(MissingRanks, match="which has ended"):
            board.fence(60.0)
        assert time.monotonic() - begun < 5


def logs(offset: int, ways: list[tuple[int, int]], step: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Both sides' logs of round trips that take `ways` ns there and back; the other clock is `offset` ahead."""
    asked, answered, now = [], [], 1_000_000
    for there, back in ways:
        seen = now + there
        times = (now, seen + back, seen + offset)
        coarse = [time_ // step * step for time_ in times]
        asked.append(coarse[:2])
        answered.append([coarse[2] - step, coarse[2]])
        now = seen + back + 37
    return torch.tensor(asked), torch.tensor(answered)


class TestClocks:
    @pytest.mark.parametrize("step", [1, 32, 1024])
    @pytest.mark.parametrize("offset", [0, 123_456_789, -98_765])
    def test_the_bounds_hold_the_truth(self, offset, step):
        rng = np.random.default_rng(1)
        ways = [(int(a), int(b)) for a, b in rng.integers(600, 3000, (200, 2))]
        found = Offset.of(*logs(offset, ways, step))
        assert abs(found.ns - offset) <= found.within <= 3000 + 2 * step
        assert found.one_way == pytest.approx(np.mean(ways), rel=0.02, abs=step)

    def test_a_lopsided_link_widens_the_bounds_and_no_more(self):
        found = Offset.of(*logs(1000, [(500, 5000)] * 50))
        assert abs(found.ns - 1000) <= found.within and 2750 <= found.within <= 2750 + found.step

    def test_a_round_without_an_answer_is_a_fault(self):
        asked, answered = logs(0, [(500, 500)] * 10)
        answered[9] = 0
        with pytest.raises(InternalFault, match="an answer in every one of 10 rounds, got 9"):
            Offset.of(asked, answered)

    def test_readings_that_contradict_each_other_are_a_fault(self):
        asked, answered = logs(0, [(500, 500)] * 10)
        answered[5:] += 100_000
        with pytest.raises(InternalFault, match="bounds of the offset that agree"):
            Offset.of(asked, answered)

    def test_stamps_come_on_one_clock_and_zero_stays(self):
        zero = Offset(0.0, 0.0, 0.0, 0)
        clocks = Clocks([zero, Offset(5000.0, 40.0, 900.0, 32)], [zero, Offset(5010.0, 60.0, 900.0, 32)])
        stamps = torch.tensor([[0, 15_005], [6_005, 0]])
        assert clocks.on_one_clock(1, stamps).tolist() == [[0, 10_000], [1_000, 0]]
        assert torch.equal(clocks.on_one_clock(0, stamps), stamps)
        said = clocks.described()["said"]
        assert clocks.within == 65.0 and "may be off by 65 ns" in said and "(5,005 ns from GPU 1's were taken)" in said


class TestParcels:
    def test_tensors_come_back_in_their_strides_and_bits(self, tmp_path):
        wide = torch.arange(60, dtype=torch.float32).reshape(6, 10)
        sent = {
            "gaps": wide[::2, 3:7],
            "turned": wide.to(torch.bfloat16).mT,
            "fp8": torch.tensor([1.5, -0.0]).to(torch.float8_e4m3fn),
            "none": torch.zeros(0, 3, dtype=torch.int64),
            "scalar": torch.tensor(7, dtype=torch.int32),
            "nan": torch.tensor([float("nan")]).view(torch.int32).add(5).view(torch.float32),
        }
        parcels.write(tmp_path / "file", {**sent, "same": sent["gaps"]}, {"eps": 1e-6})
        found, about = parcels.read(tmp_path / "file")
        assert about == {"eps": 1e-6} and list(found) == [*sent, "same"]
        for name, tensor in sent.items():
            got = found[name]
            assert (got.shape, got.stride(), got.dtype) == (tensor.shape, tensor.stride(), tensor.dtype), name
            bits, wanted = (each.reshape(-1).view(torch.uint8).tolist() for each in (got, tensor))
            assert bits == wanted, name

    def test_a_job_comes_back(self, tmp_path):
        case = k2a_case(ranks=4, shots="two", sentinel=True)
        plan = Plan(4, (0, 1), 2, True, "too large")
        ranks = buffers_of(case, plan)
        sent = peers.sent_by_others(case.declaration, case.key, plan.live, k3lab.run("k2a", case).ranks)
        mine = {rank: parcels.Parcel.of(ranks[rank]) for rank in plan.on(0)}
        parcels.Job(plan, mine, {rank: sent[rank] for rank in mine}).save(tmp_path / "job")
        job = parcels.Job.load(tmp_path / "job")
        assert job.plan == plan and list(job.ranks) == [0, 2] == list(job.sent)
        for rank, parcel in job.ranks.items():
            given, got = ranks[rank], parcel.buffers()
            assert (got.launch, got.key, got.stages, got.numbers) == (
                given.launch,
                given.key,
                given.stages,
                given.numbers,
            )
            assert {name: torch.equal(got.tensors[name], tensor) for name, tensor in given.tensors.items()} == (
                dict.fromkeys(given.tensors, True)
            )
            assert job.sent[rank] and len(job.sent[rank]) == len(sent[rank])
            for here, there in zip(job.sent[rank], sent[rank], strict=True):
                assert (here.place, here.source, here.part) == (there.place, there.source, there.part)
                assert torch.equal(here.words, there.words)

    def test_a_file_holds_nothing_to_execute(self, tmp_path):
        parcels.write(tmp_path / "file", {"a": torch.ones(2)}, None)
        with safe_open(tmp_path / "file", "pt") as file:
            assert list(file.keys()) == ["a"]
