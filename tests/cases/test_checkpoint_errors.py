"""What is wrong with a checkpoint, or with what is asked of it, is said in a sentence that names tensor and file."""

import json
import re
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from k3lab.cases import make_case, save
from k3lab.cases.checkpoint import case_from_checkpoint
from k3lab.cases.checkpoint.layer import full_name
from k3lab.cases.checkpoint.reader import INDEX
from k3lab.cases.sample import write_checkpoint
from k3lab.errors import BadInput

Q_PROJ, KV_B = full_name(2, "self_attn.q_proj.weight"), full_name(3, "self_attn.kv_b_proj.weight")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), (2, 3), shards=2)


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "copy")


def shard_of(folder: Path, name: str) -> Path:
    return folder / json.loads((folder / INDEX).read_text())["weight_map"][name]


def changed(folder: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Put another tensor into the shard in place of `name`; None takes it out."""
    file = shard_of(folder, name)
    tensors = safetensors.torch.load_file(file)
    del tensors[name]
    file.write_bytes(safetensors.torch.save(tensors if tensor is None else {**tensors, name: tensor}))


def indexed(folder: Path, **changes) -> None:
    index = json.loads((folder / INDEX).read_text())
    weight_map = {**index["weight_map"], **changes}
    index["weight_map"] = {name: file for name, file in weight_map.items() if file is not None}
    (folder / INDEX).write_text(json.dumps(index))


def refused(folder: Path | str, *says: str, launch: str = "k1", layer=2, **options) -> None:
    with pytest.raises(BadInput) as error:
        case_from_checkpoint(folder, launch, layer, **{"geometry": "mini", **options})
    text = str(error.value)
    assert "\n" not in text and text.endswith(".")
    for said in says:
        assert said in text


# ---- files


def test_a_missing_shard(folder):
    shard = shard_of(folder, Q_PROJ)
    shard.unlink()
    refused(folder, full_name(2, ""), str(shard), "no such file", "download")


def test_a_truncated_shard(folder):
    shard = shard_of(folder, Q_PROJ)
    data = shard.read_bytes()
    for size in (0, 4, 8, 100, len(data) // 2, len(data) - 1):
        shard.write_bytes(data[:size])
        refused(folder, full_name(2, ""), str(shard), "expected a whole safetensors file", "download it again")


def test_a_tensor_missing_in_the_index(folder):
    indexed(folder, **{Q_PROJ: None})
    refused(folder, "every tensor of the layer in the index", Q_PROJ)


def test_a_tensor_missing_in_its_shard(folder):
    changed(folder, Q_PROJ, None)
    refused(folder, Q_PROJ, str(shard_of(folder, Q_PROJ)), "expected a tensor of that name")


@pytest.mark.parametrize(
    ("name", "tensor", "says"),
    [
        (Q_PROJ, torch.zeros(512, 2048), ["dtype BF16", "got F32"]),
        (Q_PROJ, torch.zeros(512, 2048).half(), ["dtype BF16", "got F16"]),
        (Q_PROJ, torch.zeros(512, 1024).bfloat16(), ["shape [512, 2048]", "got [512, 1024]", "geometry"]),
        (Q_PROJ, torch.zeros(2048, 512).bfloat16(), ["shape [512, 2048]", "got [2048, 512]"]),
        (Q_PROJ, torch.zeros(()).bfloat16(), ["shape [512, 2048]", "got []"]),
        (full_name(2, "self_attn.q_conv1d.weight"), torch.zeros(512, 1, 4).bfloat16(), ["dtype F32", "got BF16"]),
        (full_name(2, "self_attn.q_conv1d.weight"), torch.zeros(512, 4), ["shape [512, 1, 4]", "got [512, 4]"]),
        (full_name(2, "self_attn.A_log"), torch.zeros(4), ["shape [128]", "got [4]"]),
    ],
)
def test_wrong_dtypes_and_shapes(name, tensor, says, folder):
    changed(folder, name, tensor)
    refused(folder, name, str(shard_of(folder, name)), *says)


def test_the_wrong_geometry_is_a_wrong_shape(whole):
    refused(whole, "shape [", "name the geometry that it was made for", geometry="k3")


def test_a_weight_that_is_not_finite(folder):
    file = shard_of(folder, Q_PROJ)
    values = safetensors.torch.load_file(file)[Q_PROJ]
    values[0, 0] = torch.nan
    changed(folder, Q_PROJ, values)
    refused(folder, f"layer 2 of checkpoint '{folder}'", "w_in: expected finite values, got nan at [0, 0]")
    case_from_checkpoint(folder, "k1", 2, geometry="mini", rank=1)  # the other rank's rows are as they were


# ---- the index


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100000, "\xff", "3", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}']
)
def test_a_damaged_index(text, folder):
    (folder / INDEX).write_text(text, encoding="latin-1")
    refused(folder, f"index '{folder / INDEX}'")


@pytest.mark.parametrize("file", ["../other.safetensors", "/etc/passwd", "a/b", "", ".", "..", "nul\0"])
def test_an_index_that_points_elsewhere(file, folder):
    indexed(folder, **{Q_PROJ: file})
    refused(folder, Q_PROJ, "the name of a file beside the index")


def test_no_checkpoint(tmp_path):
    refused(tmp_path / "none", "expected a folder, got none of that name")
    refused(tmp_path, f"expected {INDEX} or model.safetensors in it, got neither")
    (tmp_path / "model.safetensors").write_bytes(b"nonsense")
    refused(tmp_path, "model.safetensors", "expected a whole safetensors file")


@settings(max_examples=30)
@given(st.data())
def test_damage_anywhere_is_a_sentence_or_changes_nothing_else(whole, tmp_path_factory, data):
    """Bytes of a shard's header changed at random: never another exception than BadInput."""
    folder = shutil.copytree(whole, tmp_path_factory.mktemp("fuzz") / "copy")
    shard = shard_of(folder, Q_PROJ)
    content = bytearray(shard.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, 600))] = data.draw(st.integers(0, 255))
    shard.write_bytes(content)
    try:
        case_from_checkpoint(folder, "k1", 2, geometry="mini")
    except BadInput as error:
        assert "\n" not in str(error)
    shutil.rmtree(folder)


# ---- what is asked for


def test_a_layer_of_another_kind(whole):
    refused(
        whole, "expected an MLA layer, as m1a runs on, got a KDA layer", "MLA layers here: 3", launch="m1a", layer=2
    )
    refused(whole, "expected a KDA layer, as k1 runs on, got an MLA layer", "KDA layers here: 2", launch="k1", layer=3)


def test_a_layer_that_is_not_there(whole):
    for launch, here in (("k1", "KDA layers here: 2"), ("k2a", "KDA or MLA layers here: 2, 3")):
        refused(whole, "layer 7 of", "none of that number", here, launch=launch, layer=7)
    refused(whole, "layer: expected a whole number >= 0, got -1", layer=-1)
    refused(whole, "layer: expected a whole number >= 0, got '2'", layer="2")


def test_a_layer_of_unknown_kind(folder):
    indexed(folder, **{full_name(2, "self_attn.A_log"): None})
    refused(folder, "layer 2 of", "one of unknown kind (neither self_attn.A_log nor self_attn.kv_b_proj.weight)")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rank": 2}, "rank: expected 0 .. 1 (tensor parallel size 2), got 2"),
        ({"rank": -1}, "rank: expected 0 .. 1"),
        ({"rank": True}, "rank: expected 0 .. 1"),
        ({"launch": "k2a", "ranks": 8}, "ranks: expected at most 2 (the tensor parallel size), got 8"),
        ({"launch": "k2a", "rank": 1}, "rank: expected 0, as a key of 2 ranks has ranks 0 .. 1, got 1"),
        ({"scale_rule": "up"}, "scale_rule: expected one of"),
        ({"values": "nosuch"}, "values: expected one of"),
        ({"values": "specials:nans:w_in"}, "specials in an activation"),
        ({"null": "some"}, "null: expected one of"),
        ({"slots": 2}, "slots: expected a whole number, at least 5"),
        ({"nosuch": 2}, "k1 option: expected one of"),
        ({"nblocks": "x"}, "nblocks: expected a whole number"),
        ({"launch": "k9"}, "launch: expected one of"),
        ({"geometry": "huge"}, "geometry: expected"),
    ],
)
def test_wrong_options(options, says, whole):
    refused(whole, says, **options)


def test_recorded_activations_settle_everything(whole, tmp_path):
    recorded = make_case("k1", geometry="mini", tokens=1, qlen=1, nblocks=1)
    for options in (
        {"values": "tiny"},
        {"seed": 0},
        {"slots": 9},
        {"null": "none"},
        {"tokens": 2},
        {"geometry": "mini"},
    ):
        with pytest.raises(BadInput, match=f"none beside recorded activations.*got {next(iter(options))}"):
            case_from_checkpoint(whole, "k1", 2, activations=recorded, **options)
    with pytest.raises(BadInput, match=re.escape("activations: expected inputs of m1a, got inputs of k1")):
        case_from_checkpoint(whole, "m1a", 3, activations=save(recorded, tmp_path / "case"))
    with pytest.raises(BadInput, match="there is no such file"):
        case_from_checkpoint(whole, "k1", 2, activations=tmp_path / "none")
