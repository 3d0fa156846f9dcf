"""Inputs are refused in one sentence that names the tensor, what was expected and what came."""

import time

import pytest
import torch

from k3lab.cases import Case, make_case
from k3lab.cases.validate import validate
from k3lab.errors import BadInput

CASE = make_case("k1", geometry="mini", values="normal", tokens=6, qlen=3)
WRITES = make_case("k1", geometry="mini", values="normal", nblocks=1, write_idx=2)


def check(case: Case, allow_nonfinite: bool = False, **changed) -> None:
    tensors = {**case.tensors, **changed}
    validate(case.declaration, case.key, {n: t for n, t in tensors.items() if t is not None}, allow_nonfinite)


def given(name: str) -> torch.Tensor:
    return CASE.tensors[name].clone()


def with_value(name: str, index: tuple[int, ...], value: float) -> torch.Tensor:
    tensor = given(name)
    tensor[index] = value
    return tensor


BAD = [
    ({"prefix": None}, "inputs of k1: expected tensors .*, got none called prefix"),
    ({"extra": torch.ones(1)}, "inputs of k1: expected only .*, got also extra; leave it out"),
    ({"prefix": [1.0]}, "prefix: expected a torch tensor, got list"),
    ({"prefix": given("prefix").to_sparse()}, "prefix: expected a dense tensor"),
    ({"prefix": given("prefix").to("meta")}, "prefix: expected a dense tensor"),
    ({"w_in": given("w_in").float()}, r"w_in: expected dtype torch\.bfloat16, got torch\.float32; convert"),
    ({"st_idx": given("st_idx").long()}, r"st_idx: expected dtype torch\.int32, got torch\.int64"),
    (
        {"prefix": given("prefix")[:, :2000].contiguous()},
        r"prefix: expected shape \[S=6, HIDDEN=2048\], got \[6, 2000\]; change",
    ),
    ({"prefix": given("prefix")[0]}, r"prefix: expected shape \[S=6, HIDDEN=2048\], got \[2048\]"),
    ({"blocks": given("blocks")[:, :3]}, r"blocks: expected shape \[S=6, BLOCKS_USED>=4, HIDDEN=2048\], got \[6, 3"),
    ({"conv_state": given("conv_state")[:0]}, r"conv_state: expected shape \[slots>=1, CONV=768, STATE_LEN=5\]"),
    ({"w_fb": given("w_fb")[:, :64].contiguous()}, r"w_fb: expected shape \[PROJ=256, 128\], got \[256, 64\]"),
    ({"st_idx": given("st_idx")[:, :2].contiguous()}, r"st_idx: expected shape \[R=2, L>=3\], got \[2, 2\]"),
    ({"w_in": given("w_in").T.contiguous().T}, "w_in: expected a contiguous tensor, got strides .*; call .contiguous"),
    ({"blocks": given("blocks").mT.contiguous().mT}, "blocks: expected a contiguous last dimension"),
    ({"rstate": given("rstate").mT}, "rstate: expected contiguous slots"),
    ({"rstate": given("rstate")[:1].expand(9, -1, -1, -1)}, "rstate: expected memory of its own .*; call .clone"),
    ({"blocks": given("blocks")[:, :1].expand(-1, 5, -1)}, "blocks: expected memory of its own"),
    ({"conv_state": given("conv_state")[:, :1].expand(-1, 768, -1)}, "conv_state: expected memory of its own"),
    ({"prefix": with_value("prefix", (2, 7), float("nan"))}, r"prefix: expected finite values, got nan at \[2, 7\]"),
    ({"rstate": with_value("rstate", (1, 0, 3, 2), float("-inf"))}, r"rstate: .* got -inf at \[1, 0, 3, 2\]; mend"),
    ({"num_acc": with_value("num_acc", (1,), 0)}, r"num_acc: expected accepted counts 1 \.\. 3"),
    ({"num_acc": with_value("num_acc", (1,), 4)}, r"num_acc: expected accepted counts 1 \.\. 3"),
    ({"st_idx": with_value("st_idx", (1, 1), 99)}, "st_idx: expected slots below 8"),
    ({"st_idx": torch.ones(2, 3, dtype=torch.int32)}, "st_idx: expected no slot twice"),
]


@pytest.mark.parametrize(("changed", "says"), BAD, ids=[says[:40] for _, says in BAD])
def test_bad_inputs_are_refused_in_one_sentence(changed, says):
    with pytest.raises(BadInput, match=f"^{says}") as error:
        check(CASE, **changed)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


def test_key_of_another_launch_is_refused():
    with pytest.raises(BadInput, match="key of k1: expected K1Key, got str"):
        validate(CASE.declaration, "k1", CASE.tensors, False)


def test_allowed_layouts():
    slots = torch.zeros(8, 3, 2, 128, 128)
    check(CASE, rstate=slots[:, 1])
    check(CASE, blocks=given("blocks").transpose(0, 1).contiguous().transpose(0, 1))
    check(CASE, blocks=torch.zeros(9, 11, 4096, dtype=torch.bfloat16)[:6, :5, :2048])
    check(CASE, conv_state=given("conv_state").mT.contiguous().mT)
    check(CASE, st_idx=torch.cat([given("st_idx"), torch.full((2, 2), 99, dtype=torch.int32)], dim=1))
    check(WRITES)


def test_nonfinite_values_pass_where_the_case_means_them():
    for name in ("prefix", "w_in", "conv_state", "rstate", "a_log"):
        index = (0,) * CASE.tensors[name].ndim
        for value in (float("inf"), float("-inf"), float("nan")):
            bad = {name: with_value(name, index, value)}
            check(CASE, allow_nonfinite=True, **bad)
            with pytest.raises(BadInput, match=f"^{name}: expected finite values"):
                check(CASE, **bad)


def test_nonfinite_values_are_found_anywhere_in_any_layout():
    largest = torch.finfo(torch.bfloat16).max
    for index in [(0, 0), (5, 2047), (3, 1000)]:
        check(CASE, prefix=with_value("prefix", index, largest), delta=with_value("delta", index, -largest))
        with pytest.raises(BadInput, match=rf"at \[{index[0]}, {index[1]}\]"):
            check(CASE, prefix=with_value("prefix", index, float("nan")))
    strided = given("conv_state").mT.contiguous().mT
    strided[3, 700, 4] = float("inf")
    with pytest.raises(BadInput, match=r"conv_state: .*got inf at \[3, 700, 4\]"):
        check(CASE, conv_state=strided)


def test_a_case_checks_itself_once():
    broken = Case("k1", CASE.key, {**CASE.tensors, "prefix": with_value("prefix", (0, 0), float("nan"))})
    with pytest.raises(BadInput, match="prefix"):
        _ = broken.checked
    assert Case("k1", CASE.key, broken.tensors, allow_nonfinite=True).checked


@pytest.mark.full
def test_finite_check_is_fast():
    case = make_case("k1", values="constant")
    start = time.perf_counter()
    check(case)
    assert time.perf_counter() - start < 1  # 0.03 s on an idle core


def test_a_change_in_place_is_noticed():
    case = make_case("k1", geometry="mini")
    before = case.hash
    assert case.checked
    case.tensors["prefix"][0, 0] = 7.0
    assert case.hash != before
    case.tensors["prefix"][0, 0] = float("nan")
    with pytest.raises(BadInput, match=r"prefix: expected finite values, got nan at \[0, 0\]"):
        case.check()
