"""The rounding seam and its probes, on a launch's points and on bare values."""

from __future__ import annotations

import pytest
import torch

import k3lab
from k3lab.errors import BadInput
from k3lab.rounding import Probe, pass_through

THIRD = torch.tensor([1 / 3, -1 / 3, 2.0])
BF16_THIRD = 0.333984375  # 0x3EAB
BF16_BELOW = 0.33203125  # 0x3EAA


def rounded(value=THIRD, point="k1.mix.x", fmt="bf16"):
    return pass_through(point, value, fmt)


def test_without_a_probe_a_point_rounds():
    assert rounded().tolist() == [BF16_THIRD, -BF16_THIRD, 2.0]


def test_ablate_by_glob_leaves_the_value():
    with Probe(ablate="k1.*"):
        assert torch.equal(rounded(), THIRD)
        assert rounded(point="m1a.mix.x").tolist() == [BF16_THIRD, -BF16_THIRD, 2.0]
    assert rounded()[0] == BF16_THIRD


def test_swap_changes_format_and_mode():
    with Probe(swap={"k1.mix.x": "bf16:zero"}):
        assert rounded().tolist() == [BF16_BELOW, -BF16_BELOW, 2.0]
    with Probe(swap={"k1.*": "fp8"}):
        assert rounded()[0] == 0.34375


def test_inject_moves_one_element_by_ulps():
    with Probe(inject={"k1.mix.x": ((1,), +1)}):
        assert rounded().tolist() == [BF16_THIRD, -BF16_BELOW, 2.0]
    with Probe(inject={"k1.mix.x": ((2,), -1)}):
        assert rounded()[2] == 2.0 - 2.0**-7


@pytest.mark.parametrize("index", [(3,), (0, 0), ()])
def test_inject_at_an_index_that_does_not_fit_is_refused(index):
    with Probe(inject={"k1.mix.x": (index, 1)}), pytest.raises(BadInput, match="inject at k1.mix.x: expected an index"):
        rounded()


def test_the_innermost_probe_decides_and_every_recorder_sees():
    with Probe(record="k1.*", swap={"k1.mix.x": "fp8"}, keep=True) as outer, Probe(ablate="k1.mix.x"):
        assert torch.equal(rounded(), THIRD)
    assert outer.values["k1.mix.x"][0].fmt is None
    with Probe(ablate="*"), Probe(swap={"k1.mix.x": "bf16"}, record="*") as inner:
        assert rounded()[0] == BF16_THIRD
    assert inner.stats["k1.mix.x"].exact == 1


def test_statistics_stream_over_several_passings():
    with Probe(record="k1.mix.x") as probe:
        rounded()
        rounded(torch.tensor([1.0, 1 + 2.0**-9]))
    stats = probe.stats["k1.mix.x"]
    assert stats.count == 5 and stats.exact == 2
    errors = [BF16_THIRD - float(THIRD[0]), float(THIRD[0]) - BF16_THIRD, 0, 0, -(2.0**-9)]
    assert stats.mean == pytest.approx(sum(errors) / 5)
    assert stats.rms == pytest.approx((sum(e * e for e in errors) / 5) ** 0.5)
    assert stats.max_ulp == pytest.approx(abs(errors[0]) / 2.0**-9)


def test_probes_close_when_the_block_fails():
    with pytest.raises(ZeroDivisionError), Probe(ablate="*"):
        _ = 1 / 0
    assert rounded()[0] == BF16_THIRD


def test_hardware_points_move_only_when_named():
    with Probe(swap={"*": "fp8"}):
        assert pass_through("hw.exp2", THIRD, "fp32") is not None
        assert torch.equal(pass_through("hw.exp2", THIRD, "fp32"), THIRD)
    with Probe(swap={"hw.*": "ulp:+1"}):
        up = pass_through("hw.exp2", THIRD, "fp32")
    assert torch.equal(up, torch.nextafter(THIRD, THIRD.sign() * torch.inf))
    with Probe(swap={"hw.exp2": "ulp:random:3"}):
        mixed = pass_through("hw.exp2", torch.ones(1000), "fp32")
    assert set(mixed.tolist()) == {1.0, 1.0 + 2.0**-23, 1.0 - 2.0**-24}


@pytest.mark.parametrize("swap", ["bf17", "mxfp4:nosuch", "ulp:+2", "bf16:up:3:4"])
def test_a_swap_that_is_no_format_is_refused_at_once(swap):
    with pytest.raises(BadInput):
        Probe(swap={"k1.mix.x": swap})


def test_a_probe_entered_twice_closes_for_good():
    probe = Probe(ablate="*")
    with probe, probe:
        pass
    assert rounded()[0] == BF16_THIRD


def test_a_generator_closes_its_own_probe_only():
    def holding():
        with Probe(ablate="k1.mix.x"):
            yield

    held = holding()
    next(held)
    with Probe(swap={"k1.conv.out": "fp8"}):
        held.close()
        assert rounded()[0] == BF16_THIRD
        assert rounded(point="k1.conv.out")[0] == 0.34375
    assert rounded(point="k1.conv.out")[0] == BF16_THIRD


def test_inject_moves_an_mxfp4_value_by_steps_of_its_block():
    values = torch.full((1, 32), 0.5)
    values[0, 1] = 3.0  # amax 3 = 1.5 x 2: scale 1/2, so that 3 is the largest value and 0.5 is 1 x 1/2
    with Probe(inject={"k1.mix.x": ((0, 0), +1)}):
        assert rounded(values, fmt="mxfp4:even")[0, 0] == 0.75
    with Probe(inject={"k1.mix.x": ((0, 1), -1)}):
        assert rounded(values, fmt="mxfp4:even")[0, 1] == 2.0


def test_random_nudges_differ_from_call_to_call_and_repeat_by_seed():
    a, b = torch.linspace(1, 2, 1000), torch.linspace(1, 3, 1000)
    with Probe(swap={"hw.exp2": "ulp:random:1"}):
        first, second, again = (pass_through("hw.exp2", x, "fp32") for x in (a, b, a))
    assert torch.equal(first, again)
    assert not torch.equal((first - a).sign(), (second - b).sign())


@pytest.mark.parametrize(
    "wrong",
    [
        {"swap": {"k1.gates.b*": "bf16"}},
        {"ablate": "k1.gates.beta"},
        {"inject": {"k1.con*": ((0, 0), 1)}},
        {"inject": {"k1.gates.beta": ((0, 0, 0), 1)}},
    ],
)
def test_what_could_only_do_nothing_is_refused(wrong):
    with pytest.raises(BadInput):
        k3lab.probe(**wrong)


@pytest.mark.parametrize("pattern", ["k1.mx.x", "k9.*", "hw.tan"])
def test_a_pattern_that_names_no_point_is_refused(pattern):
    with pytest.raises(BadInput, match="expected a glob that names a rounding point"):
        k3lab.probe(ablate=pattern)
