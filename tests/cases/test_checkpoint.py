"""A checkpoint's layer becomes a rank's case: every row in its place, the key that of the layer, nothing else read."""

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from click.testing import CliRunner

import k3lab
from k3lab.cases import load, make_case, save
from k3lab.cases.checkpoint import Checkpoint, case_from_checkpoint
from k3lab.cases.checkpoint.layer import KINDS, blocks_seen, full_name, kind_of, sizes, writes_block
from k3lab.cases.checkpoint.reader import INDEX
from k3lab.cases.checkpoint.weights import WEIGHTS
from k3lab.cases.sample import BEYOND_HEADS, write_checkpoint
from k3lab.cli import cli
from k3lab.errors import BadInput
from k3lab.formats import mx
from k3lab.geometry import Geometry

HIDDEN, HEADS, TP = 2048, 2, 2  # of the mini geometry, as numbers
LAYERS = (0, 2, 3, 12)
RANKS = {"k2a": {"ranks": 2}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), LAYERS)


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor, read by another way."""
    return {n: t for file in folder.glob("*.safetensors") for n, t in safetensors.torch.load_file(file).items()}


def mini(folder: Path, launch: str, layer: int, **options) -> k3lab.Case:
    return case_from_checkpoint(folder, launch, layer, **{"geometry": "mini", **options})


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one.dtype == two.dtype and torch.equal(one, two)


# ---- names and shapes


def test_names_shapes_and_dtypes_of_the_published_model():
    bf16 = {
        "input_layernorm.weight": [7168],
        "post_attention_layernorm.weight": [7168],
        "self_attention_res_norm.weight": [7168],
        "mlp_res_norm.weight": [7168],
        "self_attention_res_proj.weight": [1, 7168],
        "mlp_res_proj.weight": [1, 7168],
        "self_attn.g_proj.weight": [12288, 7168],
        "self_attn.o_proj.weight": [7168, 12288],
    }
    kda = {
        **{f"self_attn.{x}_proj.weight": [12288, 7168] for x in "qkv"},
        "self_attn.b_proj.weight": [96, 7168],
        "self_attn.f_a_proj.weight": [128, 7168],
        "self_attn.f_b_proj.weight": [12288, 128],
        "self_attn.o_norm.weight": [128],
    }
    fp32 = {
        **{f"self_attn.{x}_conv1d.weight": [12288, 1, 4] for x in "qkv"},
        "self_attn.A_log": [128],
        "self_attn.dt_bias": [12288],
    }
    mla = {
        "self_attn.q_a_proj.weight": [1536, 7168],
        "self_attn.q_a_layernorm.weight": [1536],
        "self_attn.q_b_proj.weight": [18432, 1536],
        "self_attn.kv_a_proj_with_mqa.weight": [576, 7168],
        "self_attn.kv_a_layernorm.weight": [512],
        "self_attn.kv_b_proj.weight": [24576, 512],
    }
    k3 = sizes(Geometry.k3())
    for kind, wanted in (("KDA", {**bf16, **kda, **fp32}), ("MLA", {**bf16, **mla})):
        assert {held.name: list(held.shape(k3)) for held in KINDS[kind]} == wanted
        assert {held.name for held in KINDS[kind] if held.dtype == "F32"} == set(wanted) & set(fp32)
        assert {held.dtype for held in KINDS[kind]} <= {"BF16", "F32"}
    assert full_name(7, "self_attn.A_log") == "language_model.model.layers.7.self_attn.A_log"


def test_kinds_and_blocks_of_the_published_model():
    mla = [layer for layer in range(93) if kind_of(layer) == "MLA"]
    assert len(mla) == 24 and mla[:2] == [3, 7] and mla[-2:] == [91, 92]
    writing = [layer for layer in range(93) if writes_block(layer)]
    assert writing == [0, 12, 24, 36, 48, 60, 72, 84] and all(kind_of(layer) == "KDA" for layer in writing)
    assert [blocks_seen(layer) for layer in (0, 1, 12, 13, 92)] == [0, 1, 1, 2, 8]


@pytest.mark.parametrize("launch", WEIGHTS)
def test_weights_and_activations_are_all_inputs(launch, folder):
    case = mini(folder, launch, 2 if launch != "m1a" else 3)
    assert set(case.ranks[0]) == set(make_case(launch, geometry="mini", **RANKS.get(launch, {})).ranks[0])
    assert WEIGHTS[launch].names < set(case.ranks[0])


# ---- every row in its place


@pytest.mark.parametrize("rank", range(TP))
def test_k1_holds_a_ranks_rows(rank, folder, whole):
    got = mini(folder, "k1", 2, rank=rank).tensors
    model = {name.removeprefix(full_name(2, "")): tensor for name, tensor in whole.items()}
    proj = slice(rank * 256, (rank + 1) * 256)
    heads = slice(rank * 2, (rank + 1) * 2)
    w_in = got["w_in"]
    assert w_in.shape == (4 * 256 + 128 + 2 + 14, HIDDEN)
    for place, name in enumerate("qkvg"):
        assert same(w_in[256 * place : 256 * (place + 1)], model[f"self_attn.{name}_proj.weight"][proj])
    assert same(w_in[1024:1152], model["self_attn.f_a_proj.weight"])
    assert same(w_in[1152:1154], model["self_attn.b_proj.weight"][heads])
    assert not w_in[1154:].any()
    for place, name in enumerate("qkv"):
        assert same(got["conv_w"][256 * place : 256 * (place + 1)], model[f"self_attn.{name}_conv1d.weight"][proj, 0])
    assert same(got["w_fb"], model["self_attn.f_b_proj.weight"][proj])
    assert same(got["a_log"], model["self_attn.A_log"][heads])
    assert same(got["dt_bias"], model["self_attn.dt_bias"][proj])
    assert same(got["on_w"], model["self_attn.o_norm.weight"])
    assert same(got["ares_nw"], model["self_attention_res_norm.weight"])
    assert same(got["ares_qk"], model["self_attention_res_proj.weight"][0])
    assert same(got["in_nw"], model["input_layernorm.weight"])


def test_no_rank_reads_a_log_beyond_the_heads(folder, whole):
    padded = whole[full_name(2, "self_attn.A_log")]
    assert padded.shape == (128,) and (padded[HEADS * TP :] == np.float32(BEYOND_HEADS)).all()
    for rank in range(TP):
        assert (mini(folder, "k1", 2, rank=rank).tensors["a_log"] <= 1).all()


@pytest.mark.parametrize("ranks", [1, 2])
def test_m1a_holds_a_ranks_rows(ranks, folder, whole):
    case = mini(folder, "m1a", 3, ranks=ranks)
    model = {name.removeprefix(full_name(3, "self_attn.")): tensor for name, tensor in whole.items()}
    assert len(case.ranks) == ranks
    for rank, got in enumerate(case.ranks):
        assert same(got["w_qkv"], torch.cat([model["q_a_proj.weight"], model["kv_a_proj_with_mqa.weight"]]))
        assert same(got["q_nw"], model["q_a_layernorm.weight"]) and same(got["kv_nw"], model["kv_a_layernorm.weight"])
        assert same(got["w_g"], model["g_proj.weight"][256 * rank : 256 * (rank + 1)])
        assert same(got["w_qb"], model["q_b_proj.weight"][384 * rank : 384 * (rank + 1)])
        assert same(got["w_kv_b"], model["kv_b_proj.weight"][512 * rank : 512 * (rank + 1)])
        for head in range(HEADS):
            k_rows = model["kv_b_proj.weight"][512 * rank + 256 * head :][:128].float().numpy()
            codes = mx.unpack_nibbles(got["w_k"][head].numpy())
            values = mx.dequantise(codes, got["w_k_scale"][head].numpy())
            for latent in (0, 1, 511):  # a latent's 128 nope values lie along the last axis
                assert np.array_equal(values[latent], mx.round(np.ascontiguousarray(k_rows[:, latent]), "even"))


@pytest.mark.parametrize(("layer", "ranks", "rank"), [(2, 2, 0), (3, 2, 0), (2, 1, 1)])
def test_k2a_holds_a_ranks_columns_and_the_mlps_seam(layer, ranks, rank, folder, whole):
    case = mini(folder, "k2a", layer, ranks=ranks, rank=rank)
    model = {name.removeprefix(full_name(layer, "")): tensor for name, tensor in whole.items()}
    for number, got in enumerate(case.ranks, rank):
        assert same(got["w_o"], model["self_attn.o_proj.weight"][:, 256 * number : 256 * (number + 1)])
        assert same(got["ares_nw"], model["mlp_res_norm.weight"])
        assert same(got["ares_qk"], model["mlp_res_proj.weight"][0])
        assert same(got["in_nw"], model["post_attention_layernorm.weight"])


@pytest.mark.parametrize("rule", mx.RULES)
def test_w_k_follows_the_named_rule(rule, folder):
    case = mini(folder, "m1a", 3, scale_rule=rule)
    w_uk = case.tensors["w_kv_b"].float().view(HEADS, 256, 512)[:, :128].mT.contiguous().numpy()
    assert np.array_equal(case.tensors["w_k_scale"].numpy(), mx.block_scale(w_uk, rule))
    assert case.notes["checkpoint"]["scale_rule"] == rule


def test_one_file_without_an_index(folder, whole, tmp_path):
    layer = {name: tensor for name, tensor in whole.items() if name.startswith(full_name(2, ""))}
    (tmp_path / "model.safetensors").write_bytes(safetensors.torch.save(layer))
    assert mini(tmp_path, "k1", 2).hash == mini(folder, "k1", 2).hash


# ---- the key, and activations


@pytest.mark.parametrize(
    ("launch", "layer", "wanted"),
    [
        ("k1", 0, {"nblocks": 0, "write_idx": 0, "delta": False}),
        ("k1", 2, {"nblocks": 1, "write_idx": -1, "delta": True}),
        ("k1", 12, {"nblocks": 1, "write_idx": 1, "delta": True}),
        ("m1a", 3, {"nblocks": 1, "delta": True, "ranks": 1}),
        ("k2a", 0, {"nblocks": 1, "reset": True, "ranks": 2}),
        ("k2a", 2, {"nblocks": 1, "reset": False, "ranks": 2}),
        ("k2a", 12, {"nblocks": 2, "reset": True, "ranks": 2}),
    ],
)
def test_the_key_is_that_of_the_layer_and_the_twin_runs(launch, layer, wanted, folder):
    case = mini(folder, launch, layer)
    assert {name: getattr(case.key, name) for name in wanted} == wanted
    run = k3lab.run(launch, case)
    assert all(run[name].isfinite().all() for name in run.launch.end_tensors if name != "attention")


def test_options_go_before_the_layer(folder):
    key = mini(folder, "k1", 12, nblocks=3, tokens=8, qlen=2, eps=1e-6).key
    assert (key.nblocks, key.write_idx, key.tokens, key.qlen, key.eps) == (3, 3, 8, 2, 1e-6)


@pytest.mark.parametrize("values", ["outliers", "tiny", "specials"])
def test_drawn_activations_are_make_cases(values, folder):
    case = mini(folder, "k1", 2, values=values, seed=5, tokens=6, qlen=2, slots=9)
    drawn = make_case("k1", geometry="mini", values=values, seed=5, tokens=6, qlen=2, nblocks=1, slots=9)
    for name in set(case.tensors) - WEIGHTS["k1"].names:
        assert torch.equal(case.tensors[name].view(torch.uint8), drawn.tensors[name].view(torch.uint8)), name
    assert case.seed == 5 and values in case.values and case.allow_nonfinite == (values == "specials")


def test_ranks_draw_states_of_their_own(folder):
    states = [mini(folder, "k1", 2, rank=rank).tensors["rstate"] for rank in range(TP)]
    prefixes = [mini(folder, "k1", 2, rank=rank).tensors["prefix"] for rank in range(TP)]
    assert not torch.equal(*states) and torch.equal(*prefixes)


@pytest.mark.parametrize(("launch", "layer", "options"), [("k1", 2, {}), ("m1a", 3, {"ranks": 2})])
def test_recorded_activations(launch, layer, options, folder, tmp_path):
    recorded = make_case(
        launch, geometry="mini", tokens=2, nblocks=3, seed=9, **options, **({"qlen": 2} if launch == "k1" else {})
    )
    path = save(recorded, tmp_path / "recorded.safetensors")
    for given in (recorded, path):
        case = case_from_checkpoint(folder, launch, layer, activations=given)
        assert case.key == recorded.key
        weights = mini(folder, launch, layer, **options)
        for mine, drawn, held in zip(case.ranks, recorded.ranks, weights.ranks, strict=True):
            assert all(same(mine[name], (held if name in WEIGHTS[launch].names else drawn)[name]) for name in mine)


def test_a_case_is_kept_and_says_where_it_came_from(folder, tmp_path):
    case = mini(folder, "m1a", 3, ranks=2)
    again = load(save(case, tmp_path / "case.safetensors"))
    assert again.hash == case.hash and again.notes == case.notes
    about = again.notes["checkpoint"]
    assert (about["layer"], about["ranks"], about["folder"]) == (3, [0, 1], folder.name)
    assert "layer 3 of a checkpoint" in again.values


def test_the_sample_is_the_same_everywhere(folder, tmp_path):
    again = write_checkpoint(tmp_path / "again", (2,), shards=1)
    assert mini(again, "k1", 2).hash == mini(folder, "k1", 2).hash
    assert mini(write_checkpoint(tmp_path / "other", (2,), seed=1), "k1", 2).hash != mini(folder, "k1", 2).hash
    index = json.loads((folder / INDEX).read_text())
    assert len(set(index["weight_map"].values())) == 3
    with Checkpoint(folder) as checkpoint:
        assert checkpoint.layers == {0: "KDA", 2: "KDA", 3: "MLA", 12: "KDA"}


@pytest.mark.parametrize("wrong", [{"layers": ()}, {"layers": (93,)}, {"shards": 0}])
def test_a_sample_that_cannot_be_written(wrong, tmp_path):
    with pytest.raises(BadInput, match=next(iter(wrong))):
        write_checkpoint(tmp_path, **wrong)


# ---- only what is needed is read


@pytest.mark.parametrize(("launch", "layer"), [("k1", 2), ("m1a", 3), ("k2a", 2)])
def test_as_many_bytes_are_sliced_as_the_case_has_weights(launch, layer, folder):
    case = mini(folder, launch, layer)
    made_here = {"w_k", "w_k_scale"}  # quantised from w_kv_b, which is counted
    held = [(n, t) for n, t in case.stored.items() if n.rpartition("/")[2] in WEIGHTS[launch].names - made_here]
    wanted = sum(tensor.numel() * tensor.element_size() for _, tensor in held)
    pads = 14 * HIDDEN * 2 if launch == "k1" else 0  # zero rows, from no file
    assert case.notes["checkpoint"]["bytes_read"] == wanted - pads


@pytest.mark.parametrize(("launch", "layer", "rank"), [("k1", 2, 1), ("m1a", 3, 0), ("k2a", 2, 1)])
def test_garbage_elsewhere_does_not_matter(launch, layer, rank, folder, whole, tmp_path):
    """Every value that the rank does not hold, of this layer and the others, is NaN."""
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    mine, g = sizes(Geometry.mini()), full_name(layer, "")
    held = {f"{g}{each.name}": each for each in KINDS[kind_of(layer)]}
    spoilt = {}
    for name, tensor in whole.items():
        spoilt[name] = torch.full_like(tensor, torch.nan)
        if name in held:
            part = held[name].part(mine, rank)
            spoilt[name][part] = tensor[part]
    for file in copy.glob("*.safetensors"):
        names = safetensors.torch.load_file(file)
        file.write_bytes(safetensors.torch.save({name: spoilt[name] for name in names}))
    options = {} if launch == "k1" else {"ranks": 1}
    assert (
        mini(copy, launch, layer, rank=rank, **options).hash == mini(folder, launch, layer, rank=rank, **options).hash
    )


def test_shards_of_other_tensors_may_be_missing(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    index = json.loads((copy / INDEX).read_text())
    index["weight_map"][full_name(2, "mlp.experts.0.w1.weight")] = "model-00099-of-00099.safetensors"
    (copy / INDEX).write_text(json.dumps(index))
    assert mini(copy, "k1", 2).hash == mini(folder, "k1", 2).hash


def test_a_case_does_not_follow_the_mapped_files(folder, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    case = mini(copy, "k2a", 2)
    for file in copy.glob("*.safetensors"):
        size = file.stat().st_size
        with open(file, "r+b") as shard:
            shard.seek(size // 2)
            shard.write(b"\xff" * (size // 2))
    assert case.hash == mini(folder, "k2a", 2).hash


MEASURE = """
import resource, sys
from k3lab.cases.checkpoint import case_from_checkpoint
from k3lab.cases import make_case
make_case("k1", geometry="k3", nblocks=1).hash  # what a case of this size takes, weights included
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
case = case_from_checkpoint(sys.argv[1], "k1", 1, rank=3)
w_in = case.tensors["w_in"][:, 0].float()
marks = [w_in[1536 * place : 1536 * (place + 1)].tolist() for place in range(4)]
assert all(mark == [place + 1 + row % 64 for row in range(1536)] for place, mark in enumerate(marks))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, case.notes["checkpoint"]["bytes_read"])
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux counts it")
def test_a_full_layer_is_read_in_part(tmp_path):
    """All tensors of a layer at full size in one sparse file: only rank 3's rows hold anything, marked by row."""
    k3, header, offset = sizes(Geometry.k3()), {}, 0
    for held in KINDS["KDA"]:
        size = int(np.prod(held.shape(k3))) * (4 if held.dtype == "F32" else 2)
        place = [offset, offset + size]
        header[full_name(1, held.name)] = {"dtype": held.dtype, "shape": held.shape(k3), "data_offsets": place}
        offset += size
    text = json.dumps(header).encode()
    start = 8 + len(text)
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(start + offset)
        for place, name in enumerate("qkvg"):
            begin = start + header[full_name(1, f"self_attn.{name}_proj.weight")]["data_offsets"][0]
            for row in range(1536):
                file.seek(begin + (3 * 1536 + row) * 7168 * 2)
                file.write(torch.tensor([place + 1 + row % 64]).bfloat16().view(torch.uint8).numpy().tobytes())
    assert offset > 850e6
    done = subprocess.run([sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    grown, read = map(int, done.stdout.split())
    # in_proj's four parts, f_a, beta (4 x 1536 + 128 + 12 rows), f_b, taps, decay parameters and norms.
    assert read == (6284 * 7168 + 1536 * 128 + 3 * 7168 + 128) * 2 + (4608 * 4 + 12 + 1536) * 4
    # What is sliced is mapped, copied, and joined to in_proj: three times its bytes, beside 64 MB for all else.
    assert grown * 1024 < 3 * read + 64e6 < offset / 2


# ---- the command


def test_the_command_writes_the_same_case(folder, tmp_path):
    def said(*more: str) -> str:
        fixed = ["case", "from-checkpoint", str(folder), "--geometry", "mini", "-o", str(tmp_path / "case")]
        result = CliRunner().invoke(cli, [*fixed, *more], prog_name="k3lab")
        assert result.exit_code == (0 if "MB read" in result.output else 2), result.output
        return result.output

    assert "4.8 MB read" in said("--launch", "k1", "--layer", "2", "--rank", "1", "--seed", "3", "--set", "eps=1e-6")
    assert load(tmp_path / "case").hash == mini(folder, "k1", 2, rank=1, seed=3, eps=1e-6).hash
    said("--launch", "m1a", "--layer", "3", "--ranks", "2", "--scale-rule", "floor", "--values", "tiny")
    case = load(tmp_path / "case")
    assert case.hash == mini(folder, "m1a", 3, ranks=2, scale_rule="floor", values="tiny").hash
    shown = CliRunner().invoke(cli, ["case", "info", str(tmp_path / "case")]).output
    assert f"weights: layer 3 of checkpoint '{folder.name}', heads of rank 0, 1" in shown
    assert "got a KDA layer" in said("--launch", "m1a", "--layer", "2")
    assert load(tmp_path / "case").hash == case.hash, "a failing command leaves the file as it was"


def test_the_command_takes_recorded_activations(folder, tmp_path):
    recorded = save(make_case("k2a", geometry="mini", ranks=2, seed=4), tmp_path / "recorded")
    fixed = ["case", "from-checkpoint", str(folder), "--launch", "k2a", "--layer", "2", "-o", str(tmp_path / "case")]
    result = CliRunner().invoke(cli, [*fixed, "--activations", str(recorded)])
    assert result.exit_code == 0, result.output
    assert torch.equal(load(tmp_path / "case").tensors["prefix"], load(recorded).tensors["prefix"])
    result = CliRunner().invoke(cli, [*fixed, "--activations", str(recorded), "--geometry", "mini"])
    assert result.exit_code == 2 and "none beside recorded activations" in result.output
