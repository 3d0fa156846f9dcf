"""The MI355X backend where there is none: what it refuses, and what it would hand to FlyDSL's launcher."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

import k3lab
from k3lab.backends import gfx950
from k3lab.backends.sim import Options
from k3lab.errors import BackendUnavailable, BadInput
from k3lab.kernels import peers
from k3lab.kernels.host import Buffers
from k3lab.lowering.resources import Resources


@dataclass
class Device:
    name: str = "AMD Instinct MI355X"
    gcnArchName: str = "gfx950:sramecc+:xnack-"  # noqa: N815
    multi_processor_count: int = 256


@pytest.fixture
def rocm(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A torch that takes itself for a ROCm build with one MI355X."""
    device = Device()
    monkeypatch.setattr("torch.version.hip", "7.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda which: device)
    return device


def resources(**options: Any) -> Resources:
    return Resources(
        "kda_pre", **{**dict.fromkeys(("agpr", "scratch", "vgpr_spills", "sgpr_spills"), 0), **options}, mix={}
    )


@pytest.fixture
def takes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets the launch's kernel take what a test says."""

    def take(**options: Any) -> None:
        row = resources(**{"vgpr": 128, "sgpr": 90, "lds": 65536, "threads": 512, **options})
        monkeypatch.setattr(gfx950, "lowered", lambda *build: None)
        monkeypatch.setattr(gfx950, "cached_isa", lambda module: SimpleNamespace(resources={"kda_pre": row}))

    return take


def unavailable(case: k3lab.Case, **options: Any) -> str:
    with pytest.raises(BackendUnavailable) as raised:
        k3lab.run("k1", case, backend="gfx950", **options)
    assert str(raised.value).endswith(".") and raised.value.exit_code == 3
    return str(raised.value)


def test_a_torch_without_rocm_is_refused(bench, monkeypatch):
    monkeypatch.setattr("torch.version.hip", None)
    monkeypatch.setattr("torch.version.cuda", None)
    assert "expected a ROCm build of torch, got one for the CPU only" in unavailable(bench.case())
    monkeypatch.setattr("torch.version.cuda", "13.0")
    assert "got one for CUDA 13.0" in unavailable(bench.case())


def test_a_machine_without_a_gpu_is_refused(bench, rocm, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "finds none here" in unavailable(bench.case())


def test_another_device_is_refused(bench, rocm):
    rocm.gcnArchName, rocm.name = "gfx942:sramecc+", "AMD Instinct MI300X"
    assert "expected an AMD gfx950 device, got AMD Instinct MI300X (gfx942)" in unavailable(bench.case())
    assert "expected one of 1 devices, got 'cuda:3'" in unavailable(bench.case(), device="cuda:3")


def test_too_few_compute_units_are_refused(bench, rocm):
    rocm.multi_processor_count = 32
    assert "expected 48 compute units, one a workgroup, got 32" in unavailable(bench.case())


@pytest.mark.parametrize("much", [{"lds": 163840 + 1280}, {"vgpr": 512}])
def test_workgroups_that_do_not_fit_together_are_refused(bench, rocm, takes, much):
    takes(**much)
    sentence = unavailable(bench.case())
    assert "expected room for all 48 workgroups of k1 at once, got 0: 0 on each of 256 compute units" in sentence
    assert f"{much.get('vgpr', 128)} vector registers, {much.get('lds', 65536)} bytes of LDS, 512 threads" in sentence


def test_a_device_that_holds_them_all_is_taken(bench, rocm, takes):
    takes()
    case = bench.case()
    gfx950.check(case.declaration, case.key, frozenset({"gate"}), "cuda")


def test_two_workgroups_a_unit_do_not_make_up_for_units(rocm, takes):
    with pytest.raises(BackendUnavailable, match="expected 256 compute units"):
        gfx950.check_device(replace(rocm, multi_processor_count=128), 256)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "cpu"}, "device: expected 'cuda' or 'cuda:N'"),
        ({"mfma": "cdna3"}, "mfma: expected none beside backend='gfx950'"),
        ({"sim": Options()}, "sim: expected none beside backend='gfx950'"),
    ],
)
def test_options_that_do_not_fit_are_refused(bench, options, says):
    with pytest.raises(BadInput, match=says):
        k3lab.run("k1", bench.case(), backend="gfx950", **options)


class Launcher:
    """Stands for FlyDSL: notes the arguments of every launch, and does what the kernel would."""

    def __init__(self, act: Any) -> None:
        self.compiled, self.calls, self.act = 0, [], act

    def build(self, launch: Any, key: Any, stages: Any, body: Any, lds: int) -> Any:
        class Args(dict):
            def __init__(self, **values: int) -> None:
                super().__init__(values)

        return self, Args()

    def compile(self, launcher: Any, args: Any) -> Any:
        """As FlyDSL does with live arguments, this also launches."""
        self.compiled += 1
        self(args)
        return self

    def __call__(self, args: Any) -> None:
        self.calls.append(dict(args))
        self.act(args)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, rocm, takes) -> Any:
    """FlyDSL and the device replaced: copies stay on the CPU."""

    def make(act: Any = lambda args: None) -> Launcher:
        takes()
        made = Launcher(act)
        modules = {"k3lab.kernels.build": made, "flydsl.compiler": made}
        monkeypatch.setattr(gfx950, "_compiled", {})
        monkeypatch.setattr(gfx950, "import_module", modules.__getitem__)
        monkeypatch.setattr(gfx950, "roles", lambda launch: SimpleNamespace(body=None, lds_bytes=lambda key: 1024))
        monkeypatch.setattr("torch.cuda.device", lambda device: nullcontext())
        monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
        monkeypatch.setattr("torch.cuda.get_device_name", lambda device: rocm.name)
        to = Buffers.to
        monkeypatch.setattr(Buffers, "to", lambda self, device: to(self, "cpu"))
        return made

    return make


def test_arguments_are_addresses_strides_and_numbers(bench, fake):
    flydsl = fake()
    case = bench.case(timeline=True, bounded=True)
    buffers = Buffers.of(case.declaration, case.key, case.ranks[0])
    buffers.next_step(epoch=9, slot=4)
    gfx950.call(buffers)
    (args,) = flydsl.calls
    assert list(args) == [argument.name for argument in buffers.arguments]
    for name in ("prefix", "conv_state", "core_out", "scratch", "epoch", "tl", "health", "alarm"):
        assert args[name] == buffers.tensors[name].data_ptr(), name
    assert args["conv_state_1"] == buffers.tensors["conv_state"].stride(1)
    assert (args["slot"], args["wait_ticks"]) == (4, 200_000_000) and "locals" not in args


def test_it_is_compiled_once_and_launched_once_a_step(bench, fake):
    flydsl = fake()
    case = bench.case()
    first = Buffers.of(case.declaration, case.key, case.ranks[0])
    for _ in range(3):
        gfx950.call(first)
    gfx950.call(Buffers.of(case.declaration, case.key, case.ranks[0], frozenset({"gate"})))
    assert (flydsl.compiled, len(flydsl.calls)) == (2, 4)


def test_what_comes_back_is_a_run(bench, fake, monkeypatch):
    """gate alone, by a launcher that writes the twin's WGT where the kernel would."""
    held = []
    call = gfx950.call
    monkeypatch.setattr(gfx950, "call", lambda buffers: (held.append(buffers), call(buffers)))
    twin = bench.twin()
    fake(lambda args: held[-1].fill({"WGT": twin["WGT"]}))
    run = k3lab.run_stage("k1.gate", bench.case(), backend="gfx950")
    assert bench.differing(run, twin) == {} and set(run.values) == {"WGT"}
    assert (run.mfma, run.device, run.provenance["device"]) == ("none", "cuda", "AMD Instinct MI355X")
    assert "simulation" not in run.provenance and run.provenance["build"]["seconds"] > 0


def test_several_ranks_are_refused(bench, fake):
    fake()
    with pytest.raises(BackendUnavailable, match="gfx950: this version runs k2a on one rank, got 2 ranks"):
        k3lab.run("k2a", bench.case("k2a", ranks=2), backend="gfx950")


def test_a_rank_on_its_own_reaches_its_own_peer_buffer(bench, fake):
    flydsl = fake()
    case = bench.case("k2a", ranks=1)
    if not case.declaration.peers(case.key):
        pytest.skip("a rank on its own has no peer buffer")
    buffers = Buffers.of(case.declaration, case.key, case.ranks[0])
    peers.join([buffers])
    gfx950.call(buffers)
    assert flydsl.calls[0]["peers"] == buffers.tensors["peers"].data_ptr()
    assert buffers.tensors["peers"].tolist() == [buffers.tensors["peer_buffer"].data_ptr()]
