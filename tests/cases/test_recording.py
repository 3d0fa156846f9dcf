"""A recorded call holds what the launch got and left, of states only the slots it used; it is bounded, whole or not."""

import os
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

import k3lab
from k3lab.cases import Case, load, make_case, save
from k3lab.cases.make import stored
from k3lab.cases.recording import _hash, load_recorded, outputs_of, record
from k3lab.errors import BadInput
from k3lab.launches.eager import lifted_tensor


def options_of(case: Case) -> dict:
    """The key as `record` takes it."""
    named = {field.name: getattr(case.key, field.name) for field in fields(case.key) if field.name != "geometry"}
    return {"geometry": case.key.geometry, **named}


def launched(case: Case, inputs: list[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """Do as a kernel does: change the inputs in place, and return by rank the outputs that are no inputs."""
    run = k3lab.run(case.launch, case)
    made = []
    for values, tensors in zip(run.ranks, inputs, strict=True):
        for name in outputs_of(run.launch, case.key):
            if name in tensors:
                as_stored = stored(run.launch.input(name), values[name].numpy())
                tensors[name].copy_(
                    as_stored.view(tensors[name].dtype) if as_stored.dtype == torch.uint8 else as_stored
                )
        made.append({each.name: stored(each, values[each.name].numpy()) for each in run.launch.made_for(case.key)})
    return made


def recorded(case: Case, path: Path, **more) -> Path:
    inputs = [{name: tensor.clone() for name, tensor in rank.items()} for rank in case.ranks]
    with record(path, case.launch, inputs if len(inputs) > 1 else inputs[0], **options_of(case), **more) as call:
        for rank, made in enumerate(launched(case, inputs)):
            call.returned(rank, **made)
    return path


CASES = {
    "k1": ("k1", {"tokens": 6, "qlen": 2, "nblocks": 2, "slots": 40}),
    "k1 that writes a block": ("k1", {"tokens": 2, "qlen": 1, "nblocks": 1, "write_idx": 3}),
    "m1a": ("m1a", {"tokens": 5, "slots": 400}),
    "m1a on ranks": ("m1a", {"ranks": 2, "slots": 400}),
    "k2a": ("k2a", {"ranks": 2}),
}


def made(name: str) -> Case:
    launch, options = CASES[name]
    return make_case(launch, geometry="mini", **options)


@pytest.mark.parametrize("name", CASES)
def test_what_is_recorded_is_what_ran(name, tmp_path):
    """The twin on the recorded inputs gives the recorded outputs, whatever the slots are called there."""
    case = made(name)
    held = load_recorded(recorded(case, tmp_path / "call.safetensors", made_by="a twin"))
    assert held.made_by == "a twin" and held.versions["torch"] == torch.__version__
    run = k3lab.run(case.launch, held.case)
    for rank, outputs in enumerate(held.outputs):
        assert set(outputs) == set(outputs_of(run.launch, case.key))
        for output, tensor in outputs.items():
            inputs = {decl.name for decl in run.launch.inputs}
            if output in inputs:
                wanted = lifted_tensor(run.launch, output, tensor, torch.float32)
                assert torch.equal(run.ranks[rank][output], wanted), output
            else:
                declared = next(each for each in run.launch.made_for(case.key) if each.name == output)
                assert torch.equal(stored(declared, run.ranks[rank][output].numpy()), tensor), output


def test_the_inputs_are_those_from_before_the_launch(tmp_path):
    case = made("k1")
    held = load_recorded(recorded(case, tmp_path / "call")).case
    for name in ("prefix", "delta", "w_in", "num_acc", "a_log"):
        assert torch.equal(held.tensors[name], case.tensors[name]), name
    assert torch.equal(held.tensors["blocks"], case.tensors["blocks"][:, :2])


def test_states_are_those_of_the_slots_that_are_used(tmp_path):
    case = made("k1")
    held = load_recorded(recorded(case, tmp_path / "call")).case
    old, new = case.tensors["st_idx"], held.tensors["st_idx"]
    assert ((old <= 0) == (new <= 0)).all() and (old[old <= 0] == new[new <= 0]).all() and (old <= 0).any()
    live = old > 0
    assert held.tensors["rstate"].shape[0] == int(live.sum()) + 1 < case.tensors["rstate"].shape[0] / 4
    for name in ("rstate", "conv_state"):
        assert torch.equal(held.tensors[name][0], case.tensors[name][0]), "slot 0, which null slots read"
        assert torch.equal(held.tensors[name][new[live]], case.tensors[name][old[live]])


@pytest.mark.parametrize("name", ["m1a", "m1a on ranks"])
def test_caches_are_those_blocks_that_are_written(name, tmp_path):
    case = made(name)
    held = load_recorded(recorded(case, tmp_path / "call")).case
    for before, after in zip(case.ranks, held.ranks, strict=True):
        live = before["slots"] >= 0
        assert ((after["slots"] >= 0) == live).all() and (after["slots"][~live] == -1).all() and (~live).any()
        blocks = len(set((before["slots"][live] // 16).tolist()))
        assert after["kv_cache"].shape[0] == blocks < before["kv_cache"].shape[0]
        old, new = (each["kv_cache"].flatten(0, 1) for each in (before, after))
        assert torch.equal(new[after["slots"][live]], old[before["slots"][live]])


def test_a_step_without_a_live_slot(tmp_path):
    case = made("m1a")
    nowhere = replace(case, tensors={**case.tensors, "slots": torch.full_like(case.tensors["slots"], -1)})
    held = load_recorded(recorded(nowhere, tmp_path / "call"))
    assert held.case.tensors["kv_cache"].shape[0] == 1 and (held.case.tensors["slots"] == -1).all()


def test_fp8_as_torch_has_it_and_strided_states(tmp_path):
    case = made("m1a")
    tensors = {name: tensor.clone() for name, tensor in case.tensors.items()}
    tensors["kv_cache"] = tensors["kv_cache"].view(torch.float8_e4m3fn)
    with record(tmp_path / "call", "m1a", tensors, **options_of(case)) as call:
        made_here = launched(case, [tensors])[0]
        call.returned(q_out=made_here["q_out"].view(torch.float8_e4m3fn), gate_out=made_here["gate_out"])
    plain = load_recorded(recorded(made("m1a"), tmp_path / "plain"))
    held = load_recorded(tmp_path / "call")
    assert held.case.hash == plain.case.hash
    assert all(torch.equal(held.outputs[0][name], plain.outputs[0][name]) for name in plain.outputs[0])

    case = made("k1")
    window = case.tensors["conv_state"]
    transposed = {name: tensor.clone() for name, tensor in case.tensors.items()}
    transposed["conv_state"] = window.mT.contiguous().mT
    with record(tmp_path / "strided", "k1", transposed, **options_of(case)) as call:
        call.returned(**launched(case, [transposed])[0])
    assert load_recorded(tmp_path / "strided").case.hash == load_recorded(recorded(case, tmp_path / "call")).case.hash


def test_a_recorded_call_is_a_case_like_any_other(tmp_path):
    path = recorded(made("k1"), tmp_path / "call")
    assert load(path).hash == load_recorded(path).case.hash
    assert k3lab.load_case(path).values == "recorded"


# ---- bounds


def test_the_limit_is_what_the_file_takes(tmp_path):
    for name in CASES:
        case, path = made(name), tmp_path / "call"
        held = load_recorded(recorded(case, path))
        tensors = [*held.case.stored.values(), *(t for rank in held.outputs for t in rank.values())]
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        shared = sum(  # counted on every rank, though the case keeps them once
            tensor.numel() * tensor.element_size() * (len(case.ranks) - 1)
            for tensor in (case.tensors.values() if len(case.ranks) > 1 else ())
        )
        path.unlink()
        recorded(case, path, limit=size + shared)
        path.unlink()
        with pytest.raises(BadInput, match=f"recording: expected at most {size + shared - 1} bytes"):
            recorded(case, path, limit=size + shared - 1)
        assert os.listdir(tmp_path) == []


def test_nothing_is_copied_before_the_limit_is_checked(monkeypatch):
    case = made("k1")
    monkeypatch.setattr(torch.Tensor, "clone", lambda *_, **__: pytest.fail("copied"))
    with pytest.raises(BadInput, match="limit"), record("nowhere", "k1", case.tensors, limit=10, **options_of(case)):
        pytest.fail("ran")


def test_a_launch_that_fails_leaves_no_file_and_keeps_the_old(tmp_path):
    case, path = made("k1"), tmp_path / "call"
    recorded(case, path)
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError), record(path, "k1", dict(case.tensors), **options_of(case)):
        raise ZeroDivisionError
    says = r"outputs of k1: expected call.returned\(\) of \['core_out'\], got none"
    with pytest.raises(BadInput, match=says), record(path, "k1", dict(case.tensors), **options_of(case)):
        pass
    assert os.listdir(tmp_path) == ["call"] and path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prefix": None}, "expected tensors"),
        ({"prefix": 3}, "prefix: expected a torch tensor, got int"),
        ({"nosuch": torch.zeros(1)}, "also nosuch"),
        ({"prefix": torch.zeros(6, 2048)}, "prefix: expected dtype torch.bfloat16"),
        ({"prefix": torch.zeros(5, 2048).bfloat16()}, "prefix: expected shape"),
        ({"num_acc": torch.zeros(3, dtype=torch.int32)}, "num_acc: expected accepted counts"),
        ({"st_idx": torch.full((3, 2), 99, dtype=torch.int32)}, "st_idx: expected slots below 40"),
        ({"st_idx": None}, "none called st_idx"),
    ],
)
def test_inputs_that_no_launch_would_take(change, says, tmp_path):
    case = made("k1")
    tensors = {name: tensor for name, tensor in {**case.tensors, **change}.items() if tensor is not None}
    with pytest.raises(BadInput, match=says), record(tmp_path / "call", "k1", tensors, **options_of(case)):
        pytest.fail("ran")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"core": torch.zeros(1)}, "output of k1: expected one of"),
        ({"core_out": torch.zeros(6, 256)}, "core_out: expected dtype torch.bfloat16"),
        ({"core_out": torch.zeros(6, 2).bfloat16()}, r"core_out: expected shape \[6, 256\]"),
        ({"core_out": 1.0}, "expected a torch tensor"),
        ({"rank": 1, "core_out": torch.zeros(6, 256).bfloat16()}, r"rank: expected 0 .. 0, got 1"),
    ],
)
def test_outputs_that_the_launch_does_not_return(given, says, tmp_path):
    case = made("k1")
    with (
        pytest.raises(BadInput, match=says),
        record(tmp_path / "c", "k1", dict(case.tensors), **options_of(case)) as call,
    ):
        call.returned(**given)
    assert os.listdir(tmp_path) == []


def test_what_a_key_needs(tmp_path):
    case = made("k2a")
    says = "at least tokens and nblocks, got none of nblocks"
    with pytest.raises(BadInput, match=says), record(tmp_path / "c", "k2a", {}, tokens=4):
        pass
    says = "inputs: expected 2 mappings of tensors, one a rank, got 1"
    with pytest.raises(BadInput, match=says), record(tmp_path / "c", "k2a", case.ranks[0], **options_of(case)):
        pass
    says = "expected a place to write to"
    with pytest.raises(BadInput, match=says), record("/proc/none/c", "k2a", case.ranks, **options_of(case)):
        pass


def test_a_file_that_is_no_recording_or_was_changed(tmp_path):
    path = k3lab.save_case(made("k1"), tmp_path / "case")
    with pytest.raises(BadInput, match="expected a recorded call, got a case without recorded outputs"):
        load_recorded(path)
    data = bytearray(recorded(made("k1"), path).read_bytes())
    core = load_recorded(path).outputs[0]["core_out"].view(torch.uint8).numpy().tobytes()
    place = bytes(data).index(core)
    data[place] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadInput, match="the recorded outputs differ from what the metadata promises"):
        load_recorded(path)
    assert load(path).launch == "k1", "the inputs are as they were"


ROWS = torch.zeros(4, 2048).bfloat16()  # as a prefix of 4 tokens, or an x_out


@pytest.mark.parametrize(
    ("prefix", "x_out", "notes", "says"),
    [
        (None, None, {}, "a case without recorded outputs"),
        (None, ROWS, {}, r"recorded outputs: expected tensors \['prefix', 'x_out'\]"),
        (ROWS, ROWS.float(), {}, "x_out: expected dtype"),
        (ROWS[:1], ROWS, {}, "prefix: expected shape"),
        (ROWS, ROWS, {"made_by": 3}, "notes of the recording: expected made_by, created, versions"),
    ],
)
def test_a_recording_that_another_program_wrote_wrong(prefix, x_out, notes, says, tmp_path):
    case = make_case("k2a", geometry="mini", ranks=1)
    given = {"rank.0/prefix": prefix, "rank.0/x_out": x_out}
    beside = {name: tensor for name, tensor in given.items() if tensor is not None}
    about = {"made_by": "", "created": "now", "versions": {}, "hash": _hash(beside), **notes}
    path = save(replace(case, notes={"recorded": about}), tmp_path / "case", beside)
    with pytest.raises(BadInput, match=says) as error:
        load_recorded(path)
    assert str(error.value).startswith("case file '")
