"""Half-layers: K1 then K2a, M1a then a decode attention then K2a, on twins and in the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import k3lab
from k3lab.analysis.attention import decode_attention
from k3lab.analysis.chain import BACKENDS, hand_over
from k3lab.backends.half_layer import HalfLayerMemory
from k3lab.backends.sim import Options
from k3lab.cases.case import Case
from k3lab.cases.fill_m1a import CONTEXT
from k3lab.cli import cli
from k3lab.cli.chain import BACKENDS as CHOICES
from k3lab.cli.chain import KINDS as KIND_CHOICES
from k3lab.errors import BackendUnavailable, BadInput, InternalFault
from k3lab.geometry import HEAD_DIM
from k3lab.launches.chain import HALF_LAYERS, KDA, MLA
from k3lab.layout import step_tag
from tests.kernels.k2a_cases import TINY

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

KINDS = tuple(HALF_LAYERS)
ALL = {"races": True, "global_races": True, "guards": True, "scopes": True}


@cache
def _made(kind: str, options: tuple[tuple[str, Any], ...]) -> tuple[k3lab.ChainCase, k3lab.ChainRun]:
    case = k3lab.make_chain(kind, **{"geometry": TINY, "nblocks": 1, **dict(options)})
    return case, k3lab.run_chain(kind, case)


def made(kind: str, **options: Any) -> tuple[k3lab.ChainCase, k3lab.ChainRun]:
    """A case of two ranks at the size of `TINY`, and its twins; both made once."""
    return _made(kind, tuple(sorted(options.items())))


def check(kind: str, sim: Options | None = None, **options: Any) -> None:
    """The kernels are the twins in everything that these expose, and were handed the same."""
    case, twin = made(kind, **options)
    run = k3lab.run_chain(kind, case, backend="sim", dumps=True, sim=sim)
    for launch in case.declaration.launches:
        kernels, twins = run.ranks(launch.name), twin.ranks(launch.name)
        assert len(kernels) == len(twins) == case.key.ranks
        armed = {"AR"} if case.key.sentinel and launch.name == "k2a" else set()
        assert all(set(mine) == set(theirs) - armed for mine, theirs in zip(kernels, twins, strict=True))
    assert run.differing(twin) == {} and len(run.differences(twin)) >= 22
    assert run.last.case.hash == twin.last.case.hash != case.last.hash


# Kernels against twins.


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("kda", {}),
        ("kda", {"sentinel": True, "shots": "two"}),
        ("kda", {"write_idx": 1, "delta": False}),
        ("mla", {}),
        ("mla", {"sentinel": True, "qlen": 2}),
        ("mla", {"gather": False, "shots": "two"}),
        ("mla", {"values": "specials"}),  # NaNs of several bit patterns are handed over
    ],
    ids=str,
)
def test_the_simulated_half_layer_is_its_twins(kind, options):
    check(kind, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("kda", {"tokens": 12}),
        ("kda", {"tokens": 12, "sentinel": True}),
        ("mla", {"tokens": 9}),
        ("mla", {"tokens": 9, "gather": False, "sentinel": True}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "sim",
    [ALL, {"schedule": "random", "memory": "relaxed", "seed": 3}, {"schedule": "adversarial", "seed": 1}],
    ids=str,
)
def test_under_every_schedule_with_every_detector(kind, options, sim):
    check(kind, Options(**sim), **options)


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_at_full_size_on_eight_ranks(kind):
    case = k3lab.make_chain(kind)
    run, twin = (k3lab.run_chain(kind, case, backend=backend) for backend in ("sim", "twin"))
    assert case.key.ranks == 8 and len(run.ranks("k2a")) == 8
    assert run.differing(twin) == {} and len(run.differences(twin)) >= 15


def test_a_rank_by_itself():
    check("kda", ranks=1)


# What the launches share.


@pytest.mark.parametrize("kind", KINDS)
def test_launches_share_memory_and_epoch(kind):
    case = made(kind)[0]
    memory = HalfLayerMemory(case)
    memory.begin(case, epoch=7)
    for first, last in zip(memory.first, memory.last, strict=True):
        same = {
            hand.target: last.tensors[hand.target].data_ptr() == first.tensors[hand.source].data_ptr()
            for hand in case.declaration.handed
            if hand.source in first.tensors
        }
        assert same == {"prefix": True, "blocks": True, **({"core": True} if kind == "kda" else {})}
        assert last.tensors["scratch"].data_ptr() != first.tensors["scratch"].data_ptr()
        assert (first.tag, last.tag) == (step_tag(7, 0), step_tag(7, 1))
        assert last.tensors["epoch"] is first.tensors["epoch"]


@pytest.mark.parametrize("name", ["core", "prefix"])
def test_a_hand_over_that_is_cut_shows(monkeypatch, name):
    case, twin = made("kda")
    session = k3lab.ChainSession(case)
    for buffers in session.memory.last:
        buffers.tensors[name] = buffers.tensors[name].clone()
    differing = session.step().differing(twin)
    assert differing.keys() >= {("k2a", "prefix"), ("k2a", "x_out")}
    assert {launch for launch, _ in differing} == {"k2a"}


def test_the_prefix_is_seen_as_each_launch_left_it():
    run = k3lab.run_chain("kda", made("kda")[0], backend="sim")
    for first, last in zip(run.ranks("k1"), run.ranks("k2a"), strict=True):
        assert not torch.equal(first["prefix"], last["prefix"])


@pytest.mark.parametrize(("kind", "options"), [("kda", {"sentinel": True}), ("mla", {})], ids=str)
def test_steps_in_a_row_on_the_same_memory(kind, options):
    """New inputs each time, so that a word of an earlier step taken for this one's would show."""
    session = k3lab.ChainSession(made(kind, **options)[0], dumps=True)
    for seed in range(3):
        case, twin = made(kind, seed=seed, **options)
        run = session.step(case)
        assert run.differing(twin) == {}
        assert [run.first[0].provenance["build"][name] for name in ("epoch", "slot")] == [seed + 1, 0]
        assert [run.last.provenance["build"][name] for name in ("epoch", "slot")] == [seed + 1, 1]


def test_a_block_write_layer_restarts_the_prefix():
    case, twin = made("kda", write_idx=1, delta=False)
    assert case.key.reset and (case.first[0].key.nblocks, case.key.nblocks) == (1, 2)
    prefix = case.first[0].tensors["prefix"]
    assert torch.equal(twin.last.case.tensors["blocks"][:, 1], prefix)
    assert not torch.equal(case.last.tensors["blocks"][:, 1], prefix)
    assert torch.equal(twin.last["prefix"], twin.last["delta"])


# Twins and oracle.


def _bf16(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.bfloat16)


def _k2a_by_hand(prefix: torch.Tensor, blocks: torch.Tensor, cores: list[torch.Tensor]) -> k3lab.Run:
    own = k3lab.make_case("k2a", geometry=TINY, nblocks=1, ranks=2, seed=1)
    tensors = {**own.tensors, "prefix": _bf16(prefix), "blocks": blocks}
    ranks = [{"core": _bf16(core), "w_o": rank["w_o"]} for core, rank in zip(cores, own.per_rank, strict=True)]
    return k3lab.run("k2a", Case("k2a", own.key, tensors, per_rank=ranks))


def _same(left: k3lab.Run, right: k3lab.Run) -> bool:
    pairs: list[tuple[Mapping[str, torch.Tensor], ...]] = list(zip(left.ranks, right.ranks, strict=True))
    return all(set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a) for a, b in pairs)


def test_a_kda_layer_is_its_launches_run_by_hand():
    case, twin = made("kda")
    assert case.first[0].hash == k3lab.make_case("k1", geometry=TINY, nblocks=1).hash
    runs = [k3lab.run("k1", each) for each in case.first]
    last = _k2a_by_hand(runs[0]["prefix"], case.first[0].tensors["blocks"], [run["core_out"] for run in runs])
    assert all(_same(mine, theirs) for mine, theirs in zip(runs, twin.first, strict=True)) and _same(last, twin.last)
    assert not torch.equal(runs[0]["core_out"], runs[1]["core_out"])


@pytest.mark.parametrize(("options", "slots"), [({}, None), ({"qlen": 2}, 4 + 2 * CONTEXT + 1)], ids=str)
def test_an_mla_layer_is_its_launches_run_by_hand(options, slots):
    case, twin = made("mla", **options)
    run = k3lab.run("m1a", case.first[0])
    assert case.first[0].hash == k3lab.make_case("m1a", geometry=TINY, nblocks=1, ranks=2, slots=slots).hash
    cores = decode_attention(run, *options.values())
    last = _k2a_by_hand(run["prefix"], case.first[0].tensors["blocks"], cores)
    assert _same(run, twin.first[0]) and _same(last, twin.last)


@pytest.mark.parametrize("kind", KINDS)
def test_errors_add_up_over_the_launches(kind):
    case, twin = made(kind)
    oracle = k3lab.run_chain(kind, case, backend="oracle")
    errors = twin.errors(oracle)
    assert errors.keys() == {(each.name, name) for each in case.declaration.launches for name in each.end_tensors}
    assert all(0 < each.relative_rms < 0.2 for each in errors.values())
    # K2a's own error alone is smaller: the oracle here is handed what the twin was.
    own = k3lab.run("k2a", twin.last.case, backend="oracle")["prefix"]
    assert (twin.last["prefix"] - own).square().mean().sqrt() < errors["k2a", "prefix"].rms


def test_an_oracle_hands_over_unrounded_values():
    case, _ = made("kda")
    oracle = k3lab.run_chain("kda", case, backend="oracle")
    rounded = k3lab.run("k2a", oracle.last.case, backend="oracle")
    assert oracle.last["x_out"].dtype == torch.float64
    assert not torch.equal(oracle.last["x_out"], rounded["x_out"])


def test_a_probe_reaches_across_the_hand_over():
    """An unrounded core reaches K2a unrounded."""
    case, twin = made("kda")
    with k3lab.probe(ablate="k1.norm.core"):
        ablated = k3lab.run_chain("kda", case)
    assert set(ablated.differing(twin)) >= {("k1", "core_out"), ("k2a", "x_out")}
    rounded = k3lab.run("k2a", ablated.last.case)
    assert not torch.equal(rounded.ranks[0]["partial"], ablated.last.ranks[0]["partial"])


# Cases.


def test_ranks_share_what_a_models_ranks_share():
    first = made("kda")[0].first
    own = KDA.own(together=False)
    assert own == {"w_in", "w_fb", "conv_w", "conv_state", "a_log", "dt_bias", "rstate"}
    one, other = (case.tensors for case in first)
    assert all((one[name] is other[name]) == (name not in own) for name in one)
    f_a = slice(4 * TINY.proj, 4 * TINY.proj + HEAD_DIM)
    assert torch.equal(one["w_in"][f_a], other["w_in"][f_a])
    assert not torch.equal(one["w_in"][: f_a.start], other["w_in"][: f_a.start])
    alone = made("mla", gather=False, shots="two")[0].first
    one, other = (case.tensors for case in alone)
    assert {name for name in one if one[name] is not other[name]} == MLA.own(together=False)
    assert one["kv_cache"] is other["kv_cache"]


def test_a_case_is_its_options_and_seed():
    one, again, other = (k3lab.make_chain("mla", geometry=TINY, nblocks=1, seed=seed) for seed in (5, 5, 6))
    assert one.hash == again.hash != other.hash
    assert one.last.tensors["ares_nw"].ne(one.first[0].tensors["ares_nw"]).any()  # each seam has weights of its own


def test_a_run_never_changes_its_case():
    case = k3lab.make_chain("kda", geometry=TINY, nblocks=1, seed=9)
    before = [each._hash() for each in (*case.first, case.last)]
    k3lab.run_chain("kda", case, backend="sim")
    assert [each._hash() for each in (*case.first, case.last)] == before


def test_cases_that_do_not_fit_together_are_refused():
    case, other = made("kda")[0], made("kda", seed=1)[0]
    mixed = replace(case, first=(case.first[0], other.first[1]))
    with pytest.raises(BadInput, match=r"of rank 1: expected rank 0's, as all ranks share it"):
        k3lab.run_chain("kda", mixed)
    with pytest.raises(BadInput, match=r"ranks of k1: expected K2a's 2, got 1"):
        replace(case, first=case.first[:1]).check()
    with pytest.raises(BadInput, match=r"mla case: expected inputs of \['m1a', 'k2a'\]"):
        replace(case, kind="mla").check()
    longer = k3lab.make_chain("kda", geometry=TINY, nblocks=1, tokens=8)
    with pytest.raises(BadInput, match="tokens of k2a: expected 4, as k1 has, got 8"):
        replace(case, last=longer.last).check()


def test_ranks_whose_prefix_differs_are_a_fault():
    case, twin = made("kda")
    values = {**twin.first[1].values, "prefix": -twin.first[1]["prefix"]}
    runs = [twin.first[0], replace(twin.first[1], ranks=[values])]
    with pytest.raises(InternalFault, match="prefix of rank 1: expected the bits of rank 0's"):
        hand_over(case, runs, {})


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("moe", {}, "kind: expected one of kda, mla, got 'moe'"),
        ("kda", {"q_heads": 8}, "kda option: expected one of .*'sentinel'.*got 'q_heads'"),
        ("kda", {"gather": True}, "gather: expected none in a kda layer"),
        ("kda", {"tokens": 6}, "tokens: expected a multiple of qlen 4"),
        ("kda", {"nblocks": 8, "write_idx": 8}, "nblocks: expected 0 .. 8, got 9"),
        ("mla", {"qlen": 3}, "qlen: expected a divisor of the 4 tokens, got 3"),
        ("mla", {"qlen": 5}, r"qlen: expected 1 .. 4 \(the tokens\), got 5"),
        ("mla", {"qlen": 1, "slots": 100}, r"slots: expected at least 260 \(tokens, and 64 of context a request\)"),
        ("mla", {"ranks": 3}, "ranks: expected one of"),
    ],
)
def test_options_that_do_not_fit_are_refused(kind, options, says):
    with pytest.raises(BadInput, match=says):
        k3lab.make_chain(kind, geometry=TINY, **options)


def test_runs_that_cannot_be_are_refused():
    case, twin = made("kda")
    with pytest.raises(BadInput, match="case: expected inputs of a mla layer, got inputs of a kda layer"):
        k3lab.run_chain("mla", case)
    with pytest.raises(BackendUnavailable, match="expected one that runs a half-layer, .* got 'gfx950'"):
        k3lab.run_chain("kda", case, backend="gfx950")
    with pytest.raises(BadInput, match="sim: expected none beside a twin"):
        k3lab.run_chain("kda", case, sim=Options())
    with k3lab.probe(record="k1.*"), pytest.raises(BadInput, match="probe: expected none around a run on sim"):
        k3lab.run_chain("kda", case, backend="sim")
    with pytest.raises(BadInput, match="case: expected inputs of the session's kind, keys and qlen"):
        k3lab.ChainSession(case).step(made("kda", ranks=1)[0])
    with pytest.raises(BadInput, match="chain: expected a run of the same case"):
        twin.differences(made("kda", seed=1)[1])


# The command line.

SMALL = ("--geometry", "mini", "--tokens", "1", "--nblocks", "1")


def test_choices_of_the_command_are_what_there_is():
    assert tuple(HALF_LAYERS) == KIND_CHOICES and CHOICES == BACKENDS


def _chain(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["chain", *arguments], prog_name="k3lab")


@pytest.mark.parametrize(
    ("kind", "options", "steps"), [("kda", ("--qlen", "1", "--sentinel", "--steps", "2"), 2), ("mla", (), 1)]
)
def test_the_command_holds_kernels_against_twins(kind, options, steps):
    result = _chain("--kind", kind, "--backend", "sim", *SMALL, *options)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("kernel = twin, bit for bit") == steps and f"epoch {steps}" in result.stdout
    for name in (end for launch in HALF_LAYERS[kind].launches for end in launch.end_tensors):
        assert f" {name} " in result.stdout
    assert "wall time to simulate, measured on simulator on cpu" in result.stdout


def test_the_command_ends_in_1_where_a_kernel_differs(monkeypatch):
    monkeypatch.setattr(HalfLayerMemory, "put", lambda *_: None)  # K2a starts from a core of zeros
    result = _chain("--kind", "mla", "--backend", "sim", *SMALL)
    assert result.exit_code == 1, result.output
    assert "kernel differs from twin in" in result.stdout and "first on rank 0 at [0" in result.stdout


def test_the_command_on_twins_and_oracle():
    twin, oracle = (_chain("--kind", "mla", *SMALL, "--backend", backend) for backend in ("twin", "oracle"))
    assert twin.exit_code == oracle.exit_code == 0
    assert "rms error" in twin.stdout and "rms error" not in oracle.stdout and "differ" not in twin.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--kind moe", "--kind: expected one of kda, mla, got 'moe'"),
        ("--kind kda --steps 2", "--steps: expected 1 beside a backend that does not simulate, got 2"),
        ("--kind kda --steps 0 --backend sim", "--steps: expected at least 1, got 0"),
        ("--kind kda --schedule random", "--schedule: expected --backend sim beside it"),
        ("--kind kda --no-gather", "gather: expected none in a kda layer"),
        ("--kind kda --set reset=maybe", "reset: expected true or false, got 'maybe'"),
    ],
)
def test_the_command_refuses(arguments, says):
    result = _chain(*arguments.split())
    assert result.exit_code == 2 and says in result.stderr.splitlines()[-1]
    assert len(result.stderr.strip().splitlines()) <= 2
