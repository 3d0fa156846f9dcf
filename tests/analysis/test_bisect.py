"""`bisect` names the stage, the tensor and the element of a fault that is planted in a kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import k3lab
from k3lab.analysis.bisect import _held, units
from k3lab.analysis.compare import alike, compare, difference
from k3lab.errors import BadInput
from k3lab.kernels import lowered
from k3lab.launches import get
from k3lab.lowering import store

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")


@pytest.fixture(scope="module")
def case() -> k3lab.Case:
    return k3lab.make_case("k1", geometry="mini", tokens=4, qlen=4, nblocks=4)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Kernels may be altered: they are lowered anew, and not kept for others."""
    monkeypatch.setattr(lowered, "_parsed", {})
    monkeypatch.setattr(store, "cached", lambda kind, parts, make: make())
    yield monkeypatch


def test_kernels_that_are_their_twins(case):
    steps: list[str] = []
    found = k3lab.bisect("k1", case, progress=steps.append)
    stages = [stage.name for stage in get("k1").stages]
    assert found.equal and found.fault is None and steps == stages
    assert [check.name for check in found.checks] == stages
    assert repr(found).endswith("k1: 8 stages, each equal to its twin bit for bit.")
    assert "gemv: equal to the twin in PROJ (4672 values)" in repr(found)
    assert found._repr_html_().count("<tr>") == 9


def test_a_planted_fault_is_named(case, planted):
    from k3lab.stages.kda.conv import kernel

    right = kernel.sigmoid
    planted.setattr(kernel, "sigmoid", lambda z: right(z) * kernel.F32(1.0078125))
    found = k3lab.bisect("k1", case)
    assert not found.equal and found.fault is not None
    assert [check.equal for check in found.checks] == [True] * 4 + [False]  # it stops at the first
    assert found.fault.stages == ("conv",) and [e.tensor for e in found.fault.elements] == ["QK", "v"]
    element = found.fault.elements[0]
    twin = k3lab.run("k1", case)
    assert element.want == twin["QK"][element.index].item() != element.got
    assert element.ulps == 1 and element.format == "bf16"
    assert element.want_bits == f"0x{int(twin['QK'][element.index].view(torch.int32)) >> 16 & 0xFFFF:04x}"
    assert 0 < element.differ <= element.count == twin["QK"].numel()
    assert f"stage conv is the first that differs, at QK{list(element.index)}: kernel {element.got!r}" in repr(found)
    assert "<b>no</b>" in found._repr_html_()


def test_a_fault_in_one_element(case, planted):
    """norm stores one channel of one token wrong; nothing else differs."""
    from k3lab.stages.kda.norm import kernel

    right = kernel.store

    def wrong(kind, value, base, element):
        hit = element == 517
        right(kind, hit.select(kernel.F32(3.0).to(kernel.BF16), value), base, element)

    planted.setattr(kernel, "store", wrong)
    fault = k3lab.bisect("k1", case).fault
    assert fault is not None and fault.name == "norm"
    (element,) = fault.elements
    assert (element.tensor, element.index, element.differ) == ("core_out", (2, 5), 1)
    assert (element.got, element.got_bits) == (3.0, "0x4040")


def test_a_stage_that_stops_is_named(case, planted):
    from k3lab.stages.attnres.gate import kernel

    planted.setattr(kernel, "put", lambda *_: None)
    found = k3lab.bisect("k1", case)
    assert found.fault is not None and found.fault.name == "gate" and not found.fault.elements
    assert "region WGT: expected tag 257 in every pair, got 0" in found.fault.stopped
    assert found.verdict == "k1: stage gate is the first that fails."


def test_a_result_that_stays_in_a_cta_is_checked_with_the_next_stage():
    case = k3lab.make_case("k1", geometry="mini", gate_local=True)
    assert units(case)[:3] == [("slice",), ("gate", "mix"), ("gemv",)]


def test_twins_cannot_be_bisected(case):
    with pytest.raises(BadInput, match="backend: expected one that runs kernels"):
        k3lab.bisect("k1", case, backend="twin")


@pytest.mark.parametrize(
    ("got", "want", "fmt", "bits", "ulps"),
    [
        (1.0, 1.0078125, "bf16", ("0x3f80", "0x3f81"), 1),
        (1.0, 1.00390625, "bf16", ("0x3f800000", "0x3f808000"), 32768),  # no bf16: shown as fp32
        (-0.0, 0.0, "fp32", ("0x80000000", "0x00000000"), 1),
        (-1.0, 1.0, "fp8_e4m3", ("0xb8", "0x38"), 113),
        (float("nan"), 1.0, "bf16", ("0x7fc0", "0x3f80"), None),
    ],
)
def test_values_are_shown_with_their_bits(got, want, fmt, bits, ulps):
    shown = _held(torch.tensor(got), torch.tensor(want), fmt)
    assert (shown["got_bits"], shown["want_bits"]) == bits and shown["ulps"] == ulps


# Reports of a kernel, and NaN payloads.


def test_a_report_holds_kernel_twin_and_oracle(case, tmp_path):
    report = k3lab.make_report("k1", case, backend="sim", budget=False, spread=False)
    assert report.passed and report.labels["run"] == "kernel in the simulator, MFMA model fused, cpu"
    assert [row.name for row in report.points] == list(get("k1").points)
    assert {row.name for row in report.tensors} >= {"vals", "PART", "core_out"}
    assert {v.bound for v in report.verdicts} == {
        "own error at most half an ulp",
        "kernel equal to twin bit for bit",
    }
    assert all(row.total is not None and row.difference.differ == 0 for row in report.tensors)
    assert report.provenance["run"]["simulation"]["findings"] == []
    page = report.save(tmp_path).read_text()
    assert "All 18 tensors are equal to the twin" in page
    assert type(report).load(tmp_path / "report.json") == report


def test_a_kernel_is_not_judged_by_a_twin_of_another_model(case):
    run = k3lab.run("k1", case, backend="sim", mfma="pairwise")
    bounds = {verdict.bound for verdict in compare(run, k3lab.run("k1", case)).verdicts}
    assert "kernel equal to twin bit for bit" not in bounds


def test_a_report_of_some_stages_goes_round(case):
    run = k3lab.run_stage("k1.conv", case, backend="sim")
    report = compare(run, k3lab.run("k1", case))
    assert [row.name for row in report.tensors] == ["QK", "v", "conv_state"]
    assert type(report).from_json(report.to_json()) == report


def test_carried_nan_payloads_are_compared_bit_by_bit():
    case = k3lab.make_case("k1", geometry="mini", values="specials:nans:conv_state")
    twin = k3lab.run("k1", case)
    raw = get("k1").input("conv_state").raw
    assert raw is not None
    mask = raw(case.key, case.ranks[0]).expand_as(twin["conv_state"])
    state = case.tensors["conv_state"].contiguous().view(torch.int16)
    payloads = state[case.tensors["conv_state"].isnan()].unique()
    assert len(payloads) > 1
    held = (twin["conv_state"].contiguous().view(torch.int32) >> 16).to(torch.int16)
    carried = twin["conv_state"].isnan() & mask
    assert carried.any() and torch.isin(held[carried], payloads).all()
    kernel = k3lab.run("k1", case, backend="sim")
    assert compare(kernel, twin).passed
    # A NaN that loses its payload differs where it is carried, and not where the step made it.
    quiet = torch.where(twin["conv_state"].isnan(), torch.nan, twin["conv_state"])
    lost = difference(quiet, twin["conv_state"], "bf16", mask)
    assert 0 < lost.differ <= int(carried.sum()) and lost.first is not None
    assert lost.first["got"] == "nan (0x7fc00000)" and lost.first["want"].startswith("nan (0x")
    assert difference(quiet, twin["conv_state"], "bf16").differ == 0


def test_raw_elements_tell_zeros_apart_and_made_ones_do_not_tell_nan_apart():
    got, want = torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0])
    assert alike(got, want, torch.tensor(True)).tolist() == [False, True]
    nans = torch.tensor([0x7FC10000, 0x7FC20000], dtype=torch.int32).view(torch.float32)
    assert alike(nans, nans.flip(0), torch.tensor([True, False])).tolist() == [False, True]
