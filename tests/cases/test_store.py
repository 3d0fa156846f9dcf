"""A case file holds every bit, appears whole or not at all, and never loads wrong."""

import errno
import json
import os
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from k3lab.cases import DISTRIBUTIONS, Case, load, make_case, save
from k3lab.cases import store as store_module
from k3lab.errors import BadInput


def small(values: str = "specials", **options) -> Case:
    return make_case("k1", **{"geometry": "mini", "values": values, "tokens": 2, "qlen": 2, "nblocks": 1, **options})


def same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), two.contiguous().view(torch.uint8))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    return save(small(), tmp_path_factory.mktemp("case") / "case.safetensors").read_bytes()


def header_of(data: bytes) -> dict:
    return json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])


def refused(path, says: str | None = None) -> None:
    with pytest.raises(BadInput, match=says) as error:
        load(path)
    assert str(error.value).startswith("case file '") and "\n" not in str(error.value)


def rewritten(data: bytes, path, **metadata) -> None:
    """Write the file again with other metadata and a checksum that fits it."""
    tensors = safetensors.torch.load(data)
    fields = {**header_of(data)["__metadata__"], **metadata}
    fields = {name: text for name, text in fields.items() if text is not None and name != "checksum"}
    fields["checksum"] = store_module._checksum(fields)
    path.write_bytes(safetensors.torch.save(tensors, fields))


@pytest.mark.parametrize("values", DISTRIBUTIONS)
def test_round_trip_keeps_every_bit(values, tmp_path):
    case = small(values)
    again = load(save(case, tmp_path / "case.safetensors"))
    assert again.hash == case.hash and again.describe() == case.describe() and again.notes == case.notes
    assert again.key == case.key and list(sorted(again.tensors)) == sorted(case.tensors)
    assert all(same_bits(case.tensors[name], tensor) for name, tensor in again.tensors.items())


def test_views_are_saved_contiguous_with_their_payloads(tmp_path):
    case = small("specials:nans")
    state, tensors = case.tensors["conv_state"], dict(case.tensors)
    tensors["conv_state"] = state.mT.contiguous().mT
    tensors["blocks"] = torch.cat([case.tensors["blocks"]] * 2, dim=1)[:, 1:]
    tensors["delta"] = tensors["prefix"]  # two names for one tensor
    viewed = Case("k1", case.key, tensors, allow_nonfinite=True)
    again = load(save(viewed, tmp_path / "case.safetensors"))
    assert again.tensors["conv_state"].is_contiguous() and same_bits(again.tensors["conv_state"], state)
    assert same_bits(again.tensors["blocks"], case.tensors["blocks"])
    assert again.hash == viewed.hash


def test_a_case_loaded_does_not_follow_its_file(tmp_path):
    path = save(small("normal"), tmp_path / "case.safetensors")
    case = load(path)
    with open(path, "r+b") as file:
        file.truncate(100)
    assert case.hash == small("normal").hash


def test_saving_replaces_a_file_and_takes_text_paths(tmp_path):
    path = tmp_path / "case.safetensors"
    save(small("normal"), path)
    save(small("constant"), str(path))
    assert load(str(path)).values == "constant" and os.listdir(tmp_path) == ["case.safetensors"]


# ---- saving that fails


@pytest.mark.parametrize(
    ("code", "says"), [(errno.ENOSPC, "no space left on the disk"), (errno.EDQUOT, "no space"), (errno.EIO, "error")]
)
def test_a_failed_write_leaves_nothing_and_keeps_the_old_file(code, says, tmp_path, monkeypatch):
    path = save(small("normal"), tmp_path / "case.safetensors")

    def half(path, data):
        write(path, data[: len(data) // 2])
        raise OSError(code, os.strerror(code))

    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(BadInput, match=says):
        save(small("constant"), path)
    assert os.listdir(tmp_path) == ["case.safetensors"] and load(path).values == "normal"


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(path, data):
        write(path, data[:100])
        raise KeyboardInterrupt

    write = Path.write_bytes
    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(small(), tmp_path / "case.safetensors")
    assert os.listdir(tmp_path) == []


def test_unwritable_paths(tmp_path):
    (tmp_path / "file").write_text("")
    cases = {
        tmp_path: "a folder of that name",
        "": "a folder of that name",
        tmp_path / "file" / "case": "File exists|Not a directory",
        "/proc/case.safetensors": "expected a place to write to",
        tmp_path / ("n" * 300): "expected a place to write to",
        f"{tmp_path}/nul\0": "expected a place to write to",
        "/dev/full/case": "expected a place to write to",
    }
    for path, says in cases.items():
        with pytest.raises(BadInput, match=says):
            save(small("constant"), path)
    assert os.listdir(tmp_path) == ["file"]


def test_a_missing_folder_is_made(tmp_path):
    path = save(small("constant"), tmp_path / "new" / "case.safetensors")
    assert load(path).values == "constant" and os.listdir(path.parent) == ["case.safetensors"]


def test_a_case_that_fails_its_checks_is_not_saved(tmp_path):
    case = small("normal")
    broken = Case("k1", case.key, {**case.tensors, "num_acc": case.tensors["num_acc"] + 9})
    with pytest.raises(BadInput, match="num_acc"):
        save(broken, tmp_path / "case")
    with pytest.raises(BadInput, match="notes of the case"):
        save(Case("k1", case.key, case.tensors, notes={"x": object()}), tmp_path / "case")
    assert os.listdir(tmp_path) == []


# ---- loading that fails


def test_files_that_are_no_case(tmp_path, whole):
    refused(tmp_path / "none", "there is no such file")
    refused(tmp_path, "it is a directory")
    path = tmp_path / "case"
    for data, says in [
        (b"", "the file is empty"),
        (b"\x89PNG\r\n" * 100, "not a whole safetensors file"),
        (whole[:-1], "not a whole safetensors file"),
        (whole + b"\0", "not a whole safetensors file"),
        (safetensors.torch.save({"x": torch.ones(2)}), "without k3lab's metadata"),
        (safetensors.torch.save({"x": torch.ones(2)}, {"k3lab_case": "9"}), "expected case format 1, got '9'"),
        (safetensors.torch.save({"x": torch.ones(2)}, {"k3lab_case": "1"}), "metadata: expected the fields"),
    ]:
        path.write_bytes(data)
        refused(path, says)


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"launch": "k9"}, "launch: expected one of"),
        ({"key": "[]"}, "launch key"),
        ({"key": "{"}, "no key of a launch"),
        ({"key": "{}"}, "launch key"),
        ({"key": '{"geometry": 3}'}, "launch key"),
        ({"seed": "many"}, "no key of a launch"),
        ({"notes": "{"}, "no key of a launch"),
        ({"allow_nonfinite": "false"}, "expected finite values"),
        ({"hash": "0" * 64}, "the content differs from what its metadata promises"),
        ({"hash": None}, "metadata: expected the fields"),
        ({"more": "x"}, "metadata: expected the fields"),
    ],
)
def test_metadata_that_fits_nothing(metadata, says, tmp_path, whole):
    rewritten(whole, tmp_path / "case", **metadata)
    refused(tmp_path / "case", says)


def test_metadata_changed_without_its_checksum(tmp_path, whole):
    (tmp_path / "case").write_bytes(whole.replace(b'"seed":"0"', b'"seed":"1"', 1))
    refused(tmp_path / "case", "differs from its own checksum")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop("prefix"), "none called prefix"),
        (lambda t: t.update(more=torch.ones(1)), "also more"),
        (lambda t: t.update(prefix=t["prefix"].half()), "prefix: expected dtype"),
        (lambda t: t.update(prefix=t["prefix"][:1].contiguous()), "prefix: expected shape"),
        (lambda t: t["rstate"].neg_(), "the content differs"),
        (lambda t: t.update({"rank.0/prefix": torch.ones(1)}), "the content differs|also"),
    ],
)
def test_tensors_that_are_not_the_ones_saved(change, says, tmp_path, whole):
    tensors = safetensors.torch.load(whole)
    change(tensors)
    (tmp_path / "case").write_bytes(safetensors.torch.save(tensors, header_of(whole)["__metadata__"]))
    refused(tmp_path / "case", says)


def test_truncated_anywhere(tmp_path, whole):
    start = 8 + struct.unpack("<Q", whole[:8])[0]
    offsets = [*range(0, 20), *range(20, start, 97), start - 1, start, start + 1, *range(start, len(whole), 100_003)]
    for offset in offsets:
        (tmp_path / "case").write_bytes(whole[:offset])
        refused(tmp_path / "case")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_header_byte_flipped(data, tmp_path, whole):
    end = 8 + struct.unpack("<Q", whole[:8])[0]
    at = data.draw(st.integers(0, end - 1))
    flipped = bytearray(whole)
    flipped[at] ^= data.draw(st.integers(1, 255))
    (tmp_path / "case").write_bytes(flipped)
    try:
        case = load(tmp_path / "case")
    except BadInput as error:
        assert "\n" not in str(error)
    else:  # nothing but blank space changed
        assert header_of(bytes(flipped)) == header_of(whole) and case.hash == header_of(whole)["__metadata__"]["hash"]


def test_any_content_bit_flipped(tmp_path, whole):
    start = 8 + struct.unpack("<Q", whole[:8])[0]
    for at in range(start, len(whole), len(whole) // 40):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << (at % 8)
        (tmp_path / "case").write_bytes(flipped)
        refused(tmp_path / "case")
