"""Some of a launch's ranks live, beside words of the others that the twin says they send; no GPU needed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import k3lab
from k3lab.analysis.compare import compare, label
from k3lab.analysis.timeline.make import run_timeline
from k3lab.backends import session
from k3lab.backends.cuda import device, hostbuild
from k3lab.backends.cuda.emit import runtime, translate
from k3lab.backends.cuda.memory import OF_SYSTEM
from k3lab.backends.cuda.ranks import launch as teams
from k3lab.backends.cuda.ranks.plan import Plan
from k3lab.backends.cuda.residency import Limits, check_shape
from k3lab.cli import cli, options
from k3lab.errors import BackendUnavailable, BadInput
from k3lab.kernels import peers
from k3lab.kernels.host import Buffers
from k3lab.kernels.lowered import lowered
from k3lab.kernels.peers import region_words
from k3lab.words import SENTINEL
from tests.kernels.harness import differences, mini_case
from tests.kernels.k2a_cases import TINY, VARIANTS

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

fibers = pytest.mark.skipif(not hostbuild.compiler(), reason="needs a C++ compiler")
K2A: dict[str, Any] = {"tokens": 3, "nblocks": 1, "ranks": 8, "values": "outliers"}
M1A: dict[str, Any] = {"tokens": 2, "nblocks": 1, "ranks": 8, "values": "outliers"}


@pytest.fixture
def fiber_device(monkeypatch):
    """A device that is this processor, that counts 8 workgroups for each where more than two ranks run: not all fit."""
    limits = Limits("fibers", "sm_90", 132, 2048, 65536, 233472, 232448)

    def load(module, blocks, ranks, index, fast=False, attention=0):
        source = translate(module, fast)
        check_shape(limits, source, blocks * ranks * (1 if ranks <= 2 else 8))
        return device.Loaded(source, None, blocks, 64, 0)

    def launched(ranks, where, plan):
        hostbuild.launched(ranks, live=plan.live)
        return list(ranks)

    monkeypatch.setattr(device, "check_torch", lambda: None)
    monkeypatch.setattr(device, "limits", lambda index: limits)
    monkeypatch.setattr(device, "version", lambda: "13.0")
    monkeypatch.setattr(device, "load", load)
    monkeypatch.setattr(device, "launched", launched)
    monkeypatch.setattr(session, "device_name", lambda where: "fibers")


def case_of(launch: str, **options: Any) -> k3lab.Case:
    return mini_case(launch, **{**(K2A if launch == "k2a" else M1A), **options})


def wrong(run: k3lab.Run, twin: k3lab.Run) -> list[str]:
    return [line for rank, values in enumerate(run.ranks) for line in differences(values, twin.ranks[rank])]


@fibers
@pytest.mark.usefixtures("fiber_device")
class TestOneOfEight:
    @pytest.mark.parametrize("variant", VARIANTS)
    def test_k2a_equals_the_twin(self, variant):
        case = case_of("k2a", **VARIANTS[variant])
        run, twin = k3lab.run("k2a", case, backend="cuda", dumps=True), k3lab.run("k2a", case)
        absent = {"AR"} if case.key.sentinel else set()
        assert run.live == (0,) and set(twin.values) - set(run.values) == absent
        assert wrong(run, twin) == []
        sent = [rank for rank, values in enumerate(run.ranks) if "AR" in values]
        assert sent == ([] if case.key.sentinel else list(range(8)))

    def test_m1a_equals_the_twin(self):
        case = case_of("m1a")
        run, twin = k3lab.run("m1a", case, backend="cuda", dumps=True), k3lab.run("m1a", case)
        assert run.live == (0,) and set(run.values) == set(twin.values) and wrong(run, twin) == []
        assert all(list(values) == ["QG"] for values in run.ranks[1:])

    def test_a_later_rank_and_steps_in_a_row(self):
        case = case_of("k2a", shots="two")
        session_ = k3lab.Session(case, "cuda", live=[5, 2])
        for seed in range(3):
            other = case_of("k2a", shots="two", seed=seed)
            run = session_.step(other)
            assert run.live == (2, 5) and run.values is run.ranks[2] and wrong(run, k3lab.run("k2a", other)) == []

    @pytest.mark.parametrize("launch", ["k2a", "m1a"])
    def test_every_stage_alone(self, launch):
        case = case_of(launch, **({"shots": "two"} if launch == "k2a" else {}))
        twin = k3lab.run(launch, case)
        for stage in case.declaration.stages:
            run = k3lab.run_stage(f"{launch}.{stage.name}", case, backend="cuda")
            assert run.values and wrong(run, twin) == [], stage.name

    def test_what_is_said(self):
        case = case_of("k2a")
        run = k3lab.run("k2a", case, backend="cuda")
        said = run.provenance["ranks"]
        assert said["live"] == [0] and said["of"] == 8 and "twin" in said["others"]
        assert said["because"].startswith("cuda: expected room for all 3072 workgroups of attn_post at once, got 528")
        assert "live rank 0 of 8" in label(run) and "live=[0] of 8" in repr(run)
        report = compare(run, k3lab.run("k2a", case))
        assert report.passed and {row.name for row in report.tensors} == set(run.values)

    def test_a_timeline_has_the_live_ranks_alone(self):
        made = run_timeline("k2a", case_of("k2a"), backend="cuda", live=[0])
        assert made.ranks == 1 and made.end > made.begin

    def test_a_word_of_the_twin_that_is_wrong_shows(self, monkeypatch):
        case, made = case_of("k2a", shots="one"), session.twin_values

        def spoiled(case, mfma):
            values = [dict(rank) for rank in made(case, mfma)]
            values[3]["partial"] = values[3]["partial"] + 1
            return values

        monkeypatch.setattr(session, "twin_values", spoiled)
        assert wrong(k3lab.run("k2a", case, backend="cuda", dumps=True), k3lab.run("k2a", case))


@fibers
@pytest.mark.usefixtures("fiber_device")
def test_where_all_ranks_fit_all_run():
    case = mini_case("m1a", tokens=2, nblocks=1, ranks=1)
    run = k3lab.run("m1a", case, backend="cuda")
    assert run.live is None and "ranks" not in run.provenance


@fibers
@pytest.mark.usefixtures("fiber_device")
def test_a_process_for_each_gpu(monkeypatch):
    monkeypatch.setattr(teams, "ENGINE", "host")
    case = k3lab.make_case("k2a", geometry=TINY, tokens=2, nblocks=1, ranks=2)
    run = k3lab.run("k2a", case, backend="cuda", gpus=2)
    assert run.live is None and wrong(run, k3lab.run("k2a", case)) == []
    assert run.provenance["ranks"] == {"of": 2, "live": [0, 1], "gpus": 2} and label(run).endswith("2 GPUs")


@pytest.mark.usefixtures("fiber_device")
class TestRefusals:
    def test_ranks_that_are_asked_for_must_fit(self):
        with pytest.raises(BackendUnavailable, match="expected room for all"):
            k3lab.run("k2a", case_of("k2a"), backend="cuda", live=[0, 1, 2])

    @pytest.mark.parametrize("live", [[], [8], [-1], [1, 1]])
    def test_ranks_that_there_are_not(self, live):
        with pytest.raises(BadInput, match=r"live: expected ranks of 0 \.\. 7, each once, got"):
            k3lab.run("k2a", case_of("k2a"), backend="cuda", live=live)

    @pytest.mark.parametrize("options", [{"live": [0]}, {"build": "fast"}, {"gpus": 2}])
    @pytest.mark.parametrize("backend", ["twin", "sim"])
    def test_options_of_cuda_beside_another_backend(self, backend, options):
        with pytest.raises(BadInput, match=f"{next(iter(options))}: expected backend='cuda' beside it"):
            k3lab.run("k2a", case_of("k2a"), backend=backend, **options)

    def test_an_unknown_build(self):
        with pytest.raises(BadInput, match="build: expected one of exact, fast, got 'quick'"):
            k3lab.run("k2a", case_of("k2a"), backend="cuda", build="quick")

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"gpus": 9}, r"gpus: expected 1 \.\. 8"),
            ({"gpus": 2, "live": [0, 2]}, "a rank on each of 2 GPUs, got .* none on GPU"),
            ({"gpus": 2, "device": "cuda:1"}, "'cuda' beside 2 GPUs"),
        ],
    )
    def test_gpus_that_make_no_sense(self, options, says):
        with pytest.raises(BadInput, match=says):
            k3lab.run("k2a", case_of("k2a"), backend="cuda", **options)


class TestWords:
    """What others send, put by views on any device, is what the whole fill puts."""

    @pytest.mark.parametrize("variant", [*VARIANTS, "gathered"])
    def test_only_others_words_are_put(self, variant):
        launch = "k2a" if variant in VARIANTS else "m1a"
        case = case_of(launch, **VARIANTS.get(variant, {}))
        ranks = [Buffers.of(case.declaration, case.key, tensors) for tensors in case.ranks]
        peers.join(ranks)
        twin = k3lab.run(launch, case)
        peers.fill_others(ranks, [2], twin.ranks)
        name = "AR" if launch == "k2a" else "QG"
        words, tags = region_words(ranks[2], name)
        own = words[2] if not getattr(case.key, "two_shot", False) else words[2, :, : words.shape[-1] // 8]
        assert (own == (SENTINEL if case.key.sentinel else 0)).all()
        there = tags == ranks[2].tag if tags is not None else words != SENTINEL
        share = 7 / 8 if not getattr(case.key, "two_shot", False) else 2 * 7 / 64
        assert there.mean() == pytest.approx(share)

    def test_the_plan_spreads_ranks_over_gpus(self):
        plan = Plan(8, (0, 1, 6), 2)
        assert plan.on(0) == (0, 2, 4, 6) and plan.live_on(0) == (0, 6) and plan.live_on(1) == (1,)
        assert plan.most_live == 2 and not plan.whole and plan.text == "ranks 0, 1, 6 of 8 live, 2 GPUs"
        assert replace(plan, live=tuple(range(8)), gpus=1).text == ""

    def test_a_launcher_puts_them_anew_for_each_epoch(self):
        case = case_of("k2a", shots="one")
        ranks = [Buffers.of(case.declaration, case.key, tensors) for tensors in case.ranks]
        peers.join(ranks)
        twin = k3lab.run("k2a", case)
        made = object.__new__(device.Launcher)
        made.ranks, made.epoch = ranks[:1], 1
        made.sent = peers.sent_by_others(case.declaration, case.key, [0], twin.ranks)[:1]
        held = ranks[0].tensors["peer_buffer"].clone()
        for epoch in (2, 3):
            made.advance()
            words, tags = region_words(ranks[0], "AR")
            assert tags is not None and (tags[1:] == ranks[0].tag).all() and not tags[0].any() and words[1:].any()
            assert int(ranks[0].tensors["epoch"][0]) == epoch
        assert not torch.equal(held, ranks[0].tensors["peer_buffer"])


class TestScopes:
    @pytest.mark.parametrize("variant", [*VARIANTS, "gathered"])
    def test_every_access_to_a_peer_buffer_is_translated_for_the_whole_system(self, variant):
        """The simulator's scope check holds the kernel to policy 17 there; here that the translation keeps it."""
        launch = "k2a" if variant in VARIANTS else "m1a"
        case = case_of(launch, **VARIANTS.get(variant, {}))
        module = lowered(case.declaration, case.key)
        wanted = [op for kernel in module.kernels.values() for op in kernel.ops() if op.attrs.get("aux") == OF_SYSTEM]
        assert wanted and len(
            re.findall(rf"k3_buffer_(?:load|store)<[^;]*, {OF_SYSTEM}>", translate(module).body)
        ) == len(wanted)

    def test_those_accesses_are_relaxed_ones_of_system_scope(self):
        text = runtime("device.cuh")
        for kind in ("ld", "st"):
            assert f"{kind}.relaxed.sys.global.u32" in text and f"{kind}.relaxed.sys.global.u64" in text
        assert (
            all(f"K3_SCOPED(17, {size}, k3_ld_sys, k3_st_sys)" in text for size in (4, 8))
            and 'K3_TWICE(17, "sys")' in text
        )


MINI = ("--geometry", "mini", "--tokens", "3", "--nblocks", "1", "--ranks", "8")


def called(*args: str) -> Any:
    return CliRunner().invoke(cli, [*args], prog_name="k3lab")


class TestCommands:
    def test_builds_are_those_there_are(self):
        assert set(options.BUILDS) == set(session.BUILDS)

    @fibers
    @pytest.mark.usefixtures("fiber_device")
    def test_a_run_says_which_rank_ran_and_why(self):
        made = called("run", "k2a", *MINI, "--backend", "cuda")
        assert made.exit_code == 0, made.output
        assert "live rank 0 of 8, rank 0 of 8" in made.stdout
        assert "not all ranks run: cuda: expected room for all 3072 workgroups of attn_post" in made.stdout

    @fibers
    @pytest.mark.usefixtures("fiber_device")
    def test_a_bisection_goes_through_the_stages_of_the_live_rank(self):
        made = called("bisect", "k2a", *MINI, "--backend", "cuda", "--live", "3")
        assert made.exit_code == 0 and "live rank 3 of 8" in made.stdout, made.output
        assert "5 stages, each equal to its twin bit for bit" in made.stdout

    @pytest.mark.parametrize("command", ["run", "report", "bisect", "timeline"])
    @pytest.mark.parametrize(
        ("given", "says"),
        [
            (("--live", "0"), "--live: expected --backend cuda beside it"),
            (("--gpus", "2", "--build", "fast"), "--build, --gpus: expected --backend cuda beside it"),
        ],
    )
    def test_options_of_cuda_beside_another_backend(self, command, given, says):
        made = called(command, "k2a", *MINI, "--backend", "sim", *given)
        assert made.exit_code == 2 and says in made.stderr, made.output

    @pytest.mark.parametrize("live", ["", "0,", "one", "0;1", "-1"])
    def test_a_list_of_ranks_that_is_none(self, live):
        made = called("run", "k2a", *MINI, "--backend", "cuda", "--live", live)
        assert made.exit_code == 2 and "--live: expected numbers of ranks with commas between" in made.stderr
