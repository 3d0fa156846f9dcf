"""Every distribution: reproducible to the bit, consistent, and what its one line says."""

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from k3lab.arith import make
from k3lab.cases import DISTRIBUTIONS, Case, make_case
from k3lab.cases.specials import SETS
from k3lab.cases.stream import Stream
from k3lab.errors import BadInput
from k3lab.formats import bf16_bits
from k3lab.formats.tensor import bf16_bits as stored_bits
from k3lab.geometry import Geometry
from k3lab.launches.eager import run_twins

EVERY = pytest.mark.parametrize("values", DISTRIBUTIONS)
FINITE = pytest.mark.parametrize("values", [name for name in DISTRIBUTIONS if name != "specials"])

PINNED = {
    "normal": "b9a02abeb86b83fa",
    "outliers": "31ad2e7a8f3e4615",
    "tiny": "5c6119b2026c1932",
    "huge": "919ac6878937e92f",
    "ties": "7e8a222e1bd0dd9f",
    "constant": "eafea16f3db7c9b7",
    "adversarial": "67e640b066d01bf0",
    "specials": "f8908b273834befd",
}


def mini(values: str = "normal", **options) -> Case:
    return make_case("k1", geometry="mini", values=values, **options)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def digest(case: Case) -> str:
    """Of the tensors alone, so that a new option of the key does not move it."""
    told = hashlib.sha256()
    for name, tensor in sorted(case.tensors.items()):
        told.update(name.encode() + bits(tensor))
    return told.hexdigest()[:16]


def run(case: Case, order: str = "kernel") -> dict[str, torch.Tensor]:
    return run_twins(case.declaration, case.key, case.ranks, make(order, case.launch))[0][0]


def f64(tensor: torch.Tensor) -> np.ndarray:
    return tensor.double().numpy()


@EVERY
def test_bits_are_pinned_and_the_same_twice(values):
    assert digest(mini(values)) == digest(mini(values)) == PINNED[values]


@EVERY
def test_another_seed_gives_other_tensors(values):
    one, two = mini(values, seed=1).tensors, mini(values, seed=2).tensors
    drawn = {"prefix", "w_in", "rstate"}
    differing = {name for name in one if bits(one[name]) != bits(two[name])}
    assert differing >= drawn or values == "constant"


@EVERY
def test_passes_its_own_checks_and_is_described_in_one_line(values):
    assert mini(values).checked
    assert DISTRIBUTIONS[values] and "\n" not in DISTRIBUTIONS[values]


@EVERY
def test_a_tensor_does_not_depend_on_which_others_there_are(values):
    if values == "ties":
        pytest.skip("in_nw is hunted from all the others")
    with_delta, without = mini(values).tensors, mini(values, delta=False).tensors
    assert set(with_delta) - set(without) == {"delta"}
    assert all(bits(tensor) == bits(with_delta[name]) for name, tensor in without.items())


@EVERY
def test_pad_rows_of_in_proj_are_zero(values):
    case = mini(values)
    assert bits(case.tensors["w_in"][-case.key.geometry.nproj_pad :]).strip(b"\0") == b""


@FINITE
def test_every_exposed_value_is_finite(values):
    assert not mini(values).allow_nonfinite
    assert all(value.isfinite().all() for value in run(mini(values)).values())


@FINITE
def test_decay_is_neither_none_nor_all(values):
    decay = run(mini(values))["decay"]
    assert decay.min() > 0 and decay.max() < 1
    if values != "constant":
        assert decay.quantile(0.1) < 0.2 and decay.quantile(0.9) > 0.8


def test_normal_has_a_models_scales():
    case = mini("normal")
    values = run(case)
    for name, value in {"prefix": case.tensors["prefix"], "x": values["x"], "proj": values["PROJ"]}.items():
        assert 0.8 < f64(value).std() < 1.2, name
    assert abs(f64(case.tensors["in_nw"]).mean() - 1) < 0.02


def test_outlier_channels_are_few_large_and_shared():
    tensors = mini("outliers").tensors
    found = {}
    for name in ("prefix", "delta", "blocks"):
        rms = np.sqrt((f64(tensors[name]).reshape(-1, 2048) ** 2).mean(0))
        found[name] = np.flatnonzero(rms > 5)
        assert (rms[found[name]] < 180).all()
    assert len(found["prefix"]) == 4
    assert (found["prefix"] == found["delta"]).all() and (found["prefix"] == found["blocks"]).all()


def test_tiny_reaches_subnormals_and_lets_eps_decide():
    prefix = mini("tiny").tensors["prefix"]
    rms = np.sqrt((f64(prefix) ** 2).mean(-1))
    assert (rms[0] ** 2 < 1e-5) and (rms[0] ** 2 > 1e-7)
    assert (abs(f64(prefix)[3]) < 2.0**-126).all() and (f64(prefix)[3] != 0).mean() > 0.5
    sq = run(mini("tiny"))["PART"][..., 0]
    assert (sq == 0).any()


@pytest.mark.parametrize("geometry", [Geometry.mini(), Geometry.k3()], ids=lambda g: g.name)
def test_huge_fills_most_of_fp32_but_not_more(geometry):
    case = make_case("k1", geometry=geometry, values="huge")
    total = f64(case.tensors["prefix"]) + f64(case.tensors["delta"])
    largest = (total**2).sum(-1).max()
    assert 2.0**124 < largest < 2.0**127


def test_ties_are_ties_to_even_and_to_odd():
    tensors = mini("ties").tensors
    total = (tensors["prefix"].float() + tensors["delta"].float()).numpy()
    words = total.view(np.uint32)
    assert (words & 0xFFFF == 0x8000).all()
    ups = bf16_bits(total) != (words >> 16)
    assert 0.3 < ups.mean() < 0.7


def test_constant_holds_one_value_a_tensor():
    case = mini("constant")
    for name, tensor in case.tensors.items():
        held = tensor[: -case.key.geometry.nproj_pad] if name == "w_in" else tensor
        if name not in ("st_idx", "num_acc"):
            assert len(held.unique()) == 1, name


def test_adversarial_columns_cancel_across_lanes_and_across_waves():
    tensors = mini("adversarial").tensors
    row = f64(tensors["prefix"])[0]
    large = np.flatnonzero(abs(row) > 2)
    assert 0.15 < len(large) / row.size < 0.3
    partners = {c: next((p for p in (c ^ 64, c ^ 128) if row[p] == -row[c]), None) for c in large}
    assert None not in partners.values()
    assert {c ^ p for c, p in partners.items()} == {64, 128}
    for name in ("w_in", "in_nw", "ares_nw", "ares_qk"):
        weight = f64(tensors[name]).reshape(-1, row.size)
        assert all((weight[:, c] == weight[:, p]).all() for c, p in partners.items()), name


def test_adversarial_products_depend_on_their_order():
    case = mini("adversarial")
    kernel, torch_order = run(case)["PROJ"], run(case, "torch")["PROJ"]
    used = slice(0, kernel.shape[1] - case.key.geometry.nproj_pad)
    assert (kernel != torch_order)[:, used].float().mean() > 0.2
    assert (run(mini())["PROJ"] != run(mini(), "torch")["PROJ"]).float().mean() < 0.02


# ---- specials


def nan_bits(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        words = stored_bits(tensor.contiguous()).astype(np.uint32) << 16
    else:
        words = tensor.contiguous().view(torch.int32).numpy().view(np.uint32)
    return words[(words & 0x7FFFFFFF) > 0x7F800000]


def test_specials_hold_every_set_and_leave_something_finite():
    case = mini("specials")
    assert case.allow_nonfinite
    t = case.tensors
    assert (stored_bits(t["prefix"][0]) == 0x8000).all() and (stored_bits(t["delta"][0]) == 0x8000).all()
    assert (stored_bits(t["blocks"][0]) == 0x8000).all()
    magnitude = stored_bits(t["prefix"][1]) & 0x7FFF
    assert ((magnitude > 0) & (magnitude < 0x80)).all()
    assert t["prefix"][2].isinf().any() and t["prefix"][3].isnan().any()
    assert 200 in t["a_log"].abs() and (t["dt_bias"].abs() == 1e30).any() and (t["on_w"] < 0).any()
    for name in ("w_in", "w_fb", "conv_w", "conv_state", "rstate"):
        assert len(nan_bits(t[name])) and t[name].isinf().any(), name
    values = run(case)
    for name in ("core_out", "o", "rstate"):
        assert values[name].isfinite().any() and not values[name].isfinite().all(), name


def test_specials_vary_with_the_seed_so_that_one_token_can_be_each():
    kinds = [mini("specials", tokens=1, qlen=1, seed=seed).tensors["prefix"] for seed in range(5)]
    assert [bool(row.isfinite().all()) for row in kinds] == [True, True, False, False, True]


FLOATS = [d.name for d in mini().declaration.inputs if d.dtype in ("bf16", "fp32")]


@pytest.mark.parametrize("name", FLOATS)
def test_a_set_can_go_into_one_input_alone(name):
    plain = mini().tensors
    for chosen in SETS:
        tensors = mini(f"specials:{chosen}:{name}").tensors
        changed = {other for other in tensors if bits(tensors[other]) != bits(plain[other])}
        assert changed <= {name}, chosen
        assert changed or (chosen == "extremes" and name not in ("a_log", "dt_bias") and not name.endswith("_nw"))
        if chosen == "nans":
            assert len(nan_bits(tensors[name]))


def test_nan_payloads_survive_storage_quiet_and_signalling():
    found = np.concatenate([nan_bits(mini(f"specials:nans:{name}").tensors[name]) for name in FLOATS])
    quiet = (found & 0x00400000) != 0
    assert quiet.any() and not quiet.all() and len(set(found.tolist())) == 4


# ---- names, options, random numbers


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"values": "gaussian"}, "values: expected one of normal, outliers"),
        ({"values": "specials:infs"}, "SET one of"),
        ({"values": "specials:nans:st_idx"}, "specials in one of"),
        ({"values": "specials:nans:prefix:0"}, "SET one of"),
        ({"values": None}, "values: expected"),
        ({"seed": -1}, "seed: expected a whole number >= 0"),
        ({"seed": 1.5}, "seed: expected a whole number >= 0"),
        ({"geometry": "maxi"}, "geometry: expected 'k3' or 'mini'"),
        ({"null": "some"}, "null: expected one of"),
        ({"slots": 4}, "slots: expected a whole number, at least 5"),
        ({"slots": "many"}, "slots: expected a whole number"),
        ({"tokens": 5}, "tokens: expected a multiple of qlen 4"),
        ({"qlen": 17, "tokens": 17}, "qlen: expected 1 .. 16"),
        ({"token": 5}, "k1 option: expected one of"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(options, says):
    with pytest.raises(BadInput, match=re.escape(says)):
        make_case("k1", **{"geometry": "mini", **options})


def test_unknown_launch():
    with pytest.raises(BadInput, match="launch: expected one of"):
        make_case("k9")


def test_streams_are_named_and_their_numbers_as_promised():
    assert (Stream(3, "a").words(4) == Stream(3, "a").words(4)).all()
    assert (Stream(3, "a").words(4) != Stream(3, "b").words(4)).any()
    x = Stream(0, "x").normal((300, 1000)).astype(np.float64)
    assert abs(x.mean()) < 0.01 and abs(x.std() - 1) < 0.01 and abs(x).max() < 3.47
    u = Stream(0, "u").uniform((10000,), -2, 6)
    assert u.min() >= -2 and u.max() <= 6 and abs(u.mean() - 2) < 0.1
    assert sorted(Stream(0, "c").choose(9, 9).tolist()) == list(range(9))


def test_normal_numbers_do_not_depend_on_how_many_are_drawn():
    assert (Stream(0, "n").normal((70000,))[:100] == Stream(0, "n").normal((100,))).all()


def test_no_module_but_stream_draws_random_numbers():
    for path in (Path(__file__).parents[2] / "k3lab" / "cases").glob("*.py"):
        assert path.name == "stream.py" or "np.random" not in path.read_text(), path.name


@pytest.mark.full
def test_full_size_case():
    case = make_case("k1")
    assert case.key.geometry == Geometry.k3() and case.checked
    assert case.tensors["w_in"].shape == (6288, 7168)
