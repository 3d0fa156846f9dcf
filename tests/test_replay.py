"""A recorded call runs again on any backend; equal outputs pass, others do not, and the report says where."""

import json
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import k3lab
from k3lab.analysis.report import AS_RECORDED
from k3lab.cases import Case, make_case
from k3lab.cases.make import stored
from k3lab.cases.recording import Recorded, load_recorded, outputs_of, record
from k3lab.cases.sample import write_checkpoint
from k3lab.cli import cli
from k3lab.errors import BadInput

needs_flydsl = pytest.mark.skipif(find_spec("flydsl") is None, reason="needs flydsl to lower its kernels")
CASES = {
    "k1": {"tokens": 4, "qlen": 2, "nblocks": 2},
    "m1a": {"tokens": 3, "nblocks": 1},
    "k2a": {"tokens": 3, "nblocks": 1, "ranks": 2},
}


def recorded(case: Case, path: Path, order: str = "kernel") -> Path:
    """The twin's call: what it changes in place is put where a kernel would put it."""
    run = k3lab.run(case.launch, case, order=order)
    inputs = [{name: tensor.clone() for name, tensor in rank.items()} for rank in case.ranks]
    key = {field.name: getattr(case.key, field.name) for field in fields(case.key)}
    with record(path, case.launch, inputs if len(inputs) > 1 else inputs[0], made_by="a twin", **key) as call:
        for rank, (values, tensors) in enumerate(zip(run.ranks, inputs, strict=True)):
            for name in set(outputs_of(run.launch, case.key)) & set(tensors):
                tensors[name].copy_(stored(run.launch.input(name), values[name].numpy()))
            made = {each.name: stored(each, values[each.name].numpy()) for each in run.launch.made_for(case.key)}
            call.returned(rank, **made)
    return path


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("calls")
    cases = {launch: make_case(launch, geometry="mini", **options) for launch, options in CASES.items()}
    return {launch: recorded(case, folder / launch) for launch, case in cases.items()}


def changed(call: Recorded, name: str, rank: int = 0) -> Recorded:
    """The call with one bit of the last element of an output changed."""
    outputs = [dict(tensors) for tensors in call.outputs]
    tensor = outputs[rank][name].clone()
    tensor.view(torch.uint8).flatten()[-tensor.element_size()] ^= 1
    outputs[rank][name] = tensor
    return replace(call, outputs=outputs)


def judged(report: k3lab.Report) -> dict[str, bool]:
    return {verdict.name: verdict.passed for verdict in report.verdicts if verdict.bound == AS_RECORDED}


@pytest.mark.parametrize("launch", CASES)
def test_the_twin_replays_the_twin(launch, calls):
    call = load_recorded(calls[launch])
    report = k3lab.replay(calls[launch])
    assert report.passed and judged(report) == dict.fromkeys(outputs_of(call.case.declaration, call.case.key), True)
    assert report.labels["reference"] == "recorded, a twin"


@needs_flydsl
@pytest.mark.parametrize("launch", CASES)
def test_the_kernel_in_the_simulator_replays_the_twin(launch, calls):
    report = k3lab.replay(calls[launch], backend="sim")
    assert report.passed and report.labels["run"].startswith("kernel in the simulator")


@pytest.mark.parametrize("launch", CASES)
def test_one_bit_of_one_output_is_found(launch, calls):
    call = load_recorded(calls[launch])
    for name in outputs_of(call.case.declaration, call.case.key):
        report = k3lab.replay(changed(call, name))
        assert not report.passed and [n for n, passed in judged(report).items() if not passed] == [name]
        row = next(row for row in report.tensors if row.name == name)
        assert row.difference.differ == 1
        assert row.difference.first["index"] == [size - 1 for size in row.shape]


def test_one_bit_of_another_rank_is_found(calls):
    """The ranks of a twin share one x_out; what each of them recorded counts by itself."""
    report = k3lab.replay(changed(load_recorded(calls["k2a"]), "x_out", rank=1))
    assert judged(report) == {"prefix": True, "x_out": False}
    assert next(row for row in report.tensors if row.name == "x_out").difference.first["rank"] == 1


# ---- a looser bound


def test_another_order_differs_in_bits_and_little_else(tmp_path):
    case = make_case("k1", geometry="mini", tokens=8, qlen=4, nblocks=4)
    call = load_recorded(recorded(case, tmp_path / "call", order="torch"))
    assert not k3lab.replay(call).passed
    report = k3lab.replay(call, relative_rms=2**-8)
    # An element that rounds to the other side moves by one ulp, at most 2^-7 of it; while fewer than one in 4 do, the
    # rms difference is below half of that.
    assert report.passed and not judged(report)
    assert k3lab.replay(call, order="torch").passed


def test_a_relative_bound_counts_the_slots_that_are_written(calls):
    """Written states scaled by 1 + 1/64 are off by that share of themselves, and by less of all slots."""
    call = load_recorded(calls["k1"])
    outputs = dict(call.outputs[0])
    state, slot = outputs["rstate"].clone(), call.case.tensors["st_idx"]
    written = [int(number) for number in slot.flatten() if number > 0]
    state[written] *= 1 + 1 / 64
    off = replace(call, outputs=[{**outputs, "rstate": state}])
    assert k3lab.replay(off, relative_rms=1 / 63).passed and not k3lab.replay(off, relative_rms=1 / 66).passed


def test_what_is_not_finite_in_one_fails_any_bound(calls):
    call = load_recorded(calls["k2a"])
    outputs = [dict(tensors) for tensors in call.outputs]
    spoilt = outputs[1]["x_out"].clone()
    spoilt[0, 0] = torch.nan
    outputs[1]["x_out"] = spoilt
    report = k3lab.replay(replace(call, outputs=outputs), relative_rms=0.5)
    failed = [verdict for verdict in report.verdicts if not verdict.passed]
    assert [verdict.name for verdict in failed] == ["x_out"] and "1 not finite in one" in failed[0].measured


def test_a_recording_lends_its_activations_to_a_checkpoint(calls, tmp_path):
    folder = write_checkpoint(tmp_path / "model", (2,))
    call = load_recorded(calls["k1"]).case
    case = k3lab.case_from_checkpoint(folder, "k1", 2, activations=calls["k1"])
    assert case.key == call.key and torch.equal(case.tensors["prefix"], call.tensors["prefix"])
    assert not torch.equal(case.tensors["w_in"], call.tensors["w_in"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backend": "oracle"}, "backend: expected one of twin, sim, gfx950, cuda"),
        ({"relative_rms": 1.0}, "relative_rms: expected a number from 0 to below 1"),
        ({"relative_rms": float("nan")}, "relative_rms: expected a number from 0"),
        ({"order": "other"}, "order: expected"),
    ],
)
def test_wrong_options(options, says, calls):
    with pytest.raises(BadInput, match=says):
        k3lab.replay(calls["k2a"], **options)


# ---- the command


def call(*args: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args], prog_name="k3lab")


def test_the_command_ends_in_0_and_1_and_writes_a_report(calls, tmp_path, monkeypatch):
    monkeypatch.setattr("k3lab.analysis.charts.png", lambda figure: b"")
    good = call("replay", calls["k2a"], "--out", tmp_path / "out")
    assert good.exit_code == 0, good.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.html", "report.json", "points.csv"}
    report = k3lab.Report.load(tmp_path / "out" / "report.json")
    assert report.passed and report.provenance["reference"]["backend"] == "recorded"
    assert "a twin, recorded 2" in json.dumps(report.provenance["reference"])

    case = make_case("k1", geometry="mini", tokens=8, qlen=4, nblocks=4)
    other = recorded(case, tmp_path / "call", order="torch")
    bad = call("replay", other)
    assert bad.exit_code == 1 and "Failed:" in bad.output
    loose = call("replay", other, "--relative-rms", "0.004")
    assert loose.exit_code == 0, loose.output
    assert call("replay", other, "--order", "torch").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--backend", "oracle"], "--backend: expected one of"),
        (["--schedule", "random"], "--backend sim beside it"),
        (["--relative-rms", "2"], "relative_rms: expected a number"),
    ],
)
def test_the_command_refuses_in_a_sentence(arguments, says, calls):
    result = call("replay", calls["k1"], *arguments)
    assert result.exit_code == 2 and says in result.stderr and "Traceback" not in result.output


def test_the_command_on_a_file_that_is_no_recording(tmp_path):
    path = k3lab.save_case(make_case("k2a", geometry="mini", ranks=1), tmp_path / "case")
    assert "expected a recorded call" in call("replay", path).stderr
    assert "there is no such file" in call("replay", tmp_path / "none").stderr
