"""The launches' kernels translated to CUDA C++ equal the kernel-order twin bit for bit.

On this machine's processor, as fibers, at test size; on an NVIDIA GPU, where there is one, through the backend itself.
"""

from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path

import pytest

import k3lab
from k3lab.backends import session
from k3lab.backends.cuda import compiler, device, hostbuild
from k3lab.backends.cuda.emit import translate
from k3lab.backends.cuda.residency import Limits, check_shape
from k3lab.errors import BackendUnavailable, BadInput
from k3lab.kernels import peers
from k3lab.kernels.health import GaveUp
from k3lab.kernels.host import Buffers
from k3lab.kernels.lowered import lowered
from tests.cover import options_of, pairwise
from tests.kernels import k1_cases, k2a_cases, m1a_cases
from tests.kernels.harness import differences, mini_case

MEMORY = Path("/proc/self/statm")
fibers = pytest.mark.skipif(not hostbuild.compiler(), reason="needs a C++ compiler")
COVERS = {"k1": k1_cases.FACTORS, "m1a": m1a_cases.FACTORS, "k2a": k2a_cases.QUICK}
CASES = [(launch, labels) for launch, factors in COVERS.items() for labels in pairwise(factors)]
QUICK = {
    "k1": {"tokens": 4, "qlen": 2, "nblocks": 2, "values": "specials"},
    "m1a": {"tokens": 2, "nblocks": 2, "ranks": 1, "values": "ties"},
    "k2a": {"tokens": 3, "nblocks": 1, "ranks": 2, "shots": "two", "values": "outliers"},
}
RESTRIDE = {"k1": k1_cases.RESTRIDES.get, "m1a": lambda _: m1a_cases.gaps}


def case_of(launch, options):
    """A case at test size, in other strides where the options ask for them."""
    options = dict(options)
    restride = options.pop("restride", None)
    if launch == "k2a":
        blocks = options.pop("blocks", k2a_cases.TINY.blocks)
        return k3lab.make_case(launch, geometry=replace(k2a_cases.TINY, blocks=blocks), **options)
    case = mini_case(launch, **options)
    return replace(case, tensors={**case.tensors, **RESTRIDE[launch](restride)(case.tensors)}) if restride else case


def faults(case, ranks, twin):
    """Where a launch's buffers differ from the twin; nothing exposed may be missing but what is not there at all."""
    lines = []
    absent = ({"AR"} if case.key.sentinel else set()) | ({"WGT"} if case.key.gate_local else set())
    for rank, values in enumerate(peers.exposed(ranks)):
        lines += [f"rank {rank}: missing {name}" for name in sorted(set(twin.values) - set(values) - absent)]
        lines += [f"rank {rank}: {line}" for line in differences(values, twin.ranks[rank])]
    return lines


def by_fibers(case, epochs=1, races=False):
    """Differences after launches in a row on the same scratch; a race would raise."""
    key = replace(case.key, dumps=True)
    ranks = [Buffers.of(case.declaration, key, tensors) for tensors in case.ranks]
    if case.declaration.peers(key):
        peers.join(ranks)
    lines, twin = [], k3lab.run(case.launch, case)
    for epoch in range(1, epochs + 1):
        for buffers, tensors in zip(ranks, case.ranks, strict=True):
            buffers.next_step(tensors, epoch=epoch)
            buffers.numbers["wait_ticks"] = 1 << 30
        hostbuild.launched(ranks, races=races)
        lines += [f"epoch {epoch}, {line}" for line in faults(case, ranks, twin)]
    return lines


@fibers
@pytest.mark.parametrize("launch", QUICK)
def test_a_launch_equals_its_twin(launch):
    assert by_fibers(case_of(launch, QUICK[launch]), races=True) == []


@fibers
@pytest.mark.skipif(not MEMORY.is_file(), reason=f"needs {MEMORY}")
def test_a_launch_that_was_watched_for_races_leaves_no_memory_behind():
    case = case_of("k1", QUICK["k1"])
    by_fibers(case)  # keeps the module and its twin
    before = resident()
    by_fibers(case, races=True)
    assert resident() - before < 32 << 20  # what is watched of this case takes 290 MB, all the rest a few


def resident():
    """This process's bytes of memory."""
    return int(MEMORY.read_text().split()[1]) * mmap.PAGESIZE


@fibers
@pytest.mark.slow
@pytest.mark.parametrize(
    ("launch", "labels"), CASES, ids=lambda part: part if isinstance(part, str) else "-".join(part)
)
def test_every_pair_of_options_equals_its_twin(launch, labels):
    assert by_fibers(case_of(launch, {"seed": 1, **options_of(COVERS[launch], labels)}), races=True) == []


@fibers
@pytest.mark.slow
@pytest.mark.parametrize("launch", QUICK)
def test_launches_in_a_row_take_no_stale_word(launch):
    assert by_fibers(case_of(launch, QUICK[launch]), epochs=3) == []


@fibers
def test_a_wait_for_what_never_comes_is_given_up_and_named():
    case = mini_case("k1", tokens=4, qlen=2, bounded=True)
    buffers = Buffers.of(case.declaration, case.key, case.ranks[0], frozenset({"gate"}))
    buffers.numbers["wait_ticks"] = 100
    hostbuild.launched([buffers])
    with pytest.raises(GaveUp, match=r"CTA 0 gave up waiting for pair .* of region PART .*saw tag 0 \(nothing yet\)"):
        buffers.check_health()


class TestBuilds:
    """Text and binaries; NVRTC needs no GPU."""

    @pytest.fixture
    def module(self):
        case = mini_case("k1", **QUICK["k1"])
        return lowered(case.declaration, case.key, frozenset({"gates"}))

    def test_the_fast_build_keeps_the_sums_of_a_chain_where_tensor_cores_have_them(self, module):
        exact, fast = translate(module), translate(module, fast=True)
        assert exact.body.count("k3_mfma_bf16(") == fast.body.count("k3_turned_bf16(") == 4
        assert fast.body.count("k3_from_turned(") == 1 and "k3_to_turned(" not in fast.body
        defined = "#define K3_FAST"
        assert defined in fast.complete("device.cuh", "") and defined not in exact.complete("device.cuh", "")
        assert exact.lds == fast.lds and exact.shared > fast.shared  # nothing of its products is exchanged

    @pytest.mark.parametrize("fast", [False, True], ids=["exact", "fast"])
    def test_nvrtc_compiles_it_once(self, module, fast, tmp_path, monkeypatch):
        try:
            compiler.version()
        except BackendUnavailable as missing:
            pytest.skip(str(missing))
        monkeypatch.setenv("K3LAB_CACHE", str(tmp_path))
        made = compiler.binary(translate(module, fast), "sm_90", 1, 2)
        assert made.startswith(b"\x7fELF") and b"k3_kernel" in made
        monkeypatch.setattr(compiler, "_compiled", None)
        assert compiler.binary(translate(module, fast), "sm_90", 1, 2) == made

    def test_without_nvrtc_it_says_what_to_install(self, module, monkeypatch):
        def absent(name):
            raise ImportError(f"No module named {name!r}")

        monkeypatch.setattr(compiler, "import_module", absent)
        with pytest.raises(BackendUnavailable, match=r"expected the package cuda-bindings and NVRTC, .*k3lab\[cuda\]"):
            compiler.binary(translate(module), "sm_90", 1, 2)


@pytest.fixture
def fiber_device(monkeypatch):
    """A device that is this processor: what the backend does around a launch, without a GPU."""
    limits = Limits("fibers", "sm_90", 132, 2048, 65536, 233472, 232448)

    def load(module, blocks, ranks, index, fast=False, attention=0):
        source = translate(module, fast)
        check_shape(limits, source, blocks * ranks)
        return device.Loaded(source, None, blocks, 64, 0)

    def launched(ranks, where, plan):
        hostbuild.launched(ranks, live=plan.live)
        return list(ranks)

    monkeypatch.setattr(device, "check_torch", lambda: None)
    monkeypatch.setattr(device, "limits", lambda index: limits)
    monkeypatch.setattr(device, "version", lambda: "13.0")
    monkeypatch.setattr(device, "load", load)
    monkeypatch.setattr(device, "launched", launched)
    monkeypatch.setattr(session, "device_name", lambda where: "fibers")


@fibers
@pytest.mark.usefixtures("fiber_device")
class TestTheBackend:
    def test_a_run_says_how_it_was_built(self):
        case = case_of("m1a", QUICK["m1a"])
        run = k3lab.run("m1a", case, backend="cuda", dumps=True)
        assert differences(run.values, k3lab.run("m1a", case).values) == []
        said = run.provenance
        assert (said["device"], said["mfma"], run.device) == ("fibers", "fused", "cuda")
        assert said["translation"]["build"] == "exact" and said["translation"]["shared_bytes"] > 0

    def test_stages_run_one_by_one(self):
        case = mini_case("k1", **QUICK["k1"])
        twin = k3lab.run("k1", case)
        for stage in ("gate", "norm"):
            run = k3lab.run_stage(f"k1.{stage}", case, backend="cuda")
            assert run.values and differences(run.values, twin.values) == []

    def test_a_launch_too_large_is_refused_before_it_runs(self):
        case = k3lab.make_case("k1", tokens=16, qlen=4, nblocks=1)
        with pytest.raises(BackendUnavailable, match=r"room for all 256 workgroups of kda_pre at once, got 132: 1 on"):
            k3lab.run("k1", case, backend="cuda")


class TestWithoutAGpu:
    def test_torch_for_the_cpu_is_refused(self, monkeypatch):
        monkeypatch.setattr("torch.version.cuda", None)
        monkeypatch.setattr("torch.version.hip", None)
        with pytest.raises(BackendUnavailable, match="cuda: expected a CUDA build of torch, got one for the CPU only"):
            k3lab.run("k1", mini_case("k1", **QUICK["k1"]), backend="cuda")

    def test_other_models_and_the_simulators_options_are_refused(self, monkeypatch):
        monkeypatch.setattr(device, "check_torch", lambda: None)
        with pytest.raises(BadInput, match="mfma: expected none beside backend='cuda'"):
            k3lab.run("k1", mini_case("k1", **QUICK["k1"]), backend="cuda", mfma="cdna3")


@pytest.mark.gpu
class TestOnAGpu:
    @pytest.mark.parametrize(
        ("launch", "labels"), CASES, ids=lambda part: part if isinstance(part, str) else "-".join(part)
    )
    def test_every_pair_of_options_equals_its_twin(self, launch, labels):
        case = case_of(launch, {"seed": 1, **options_of(COVERS[launch], labels)})
        run, twin = k3lab.run(launch, case, backend="cuda", dumps=True), k3lab.run(launch, case)
        for rank, values in enumerate(run.ranks):
            assert differences(values, twin.ranks[rank]) == []

    @pytest.mark.parametrize("launch", QUICK)
    def test_every_stage_alone_equals_its_twin(self, launch):
        case = case_of(launch, QUICK[launch])
        twin = k3lab.run(launch, case)
        for stage in case.declaration.stages:
            run = k3lab.run_stage(f"{launch}.{stage.name}", case, backend="cuda")
            for rank, values in enumerate(run.ranks):
                assert differences(values, twin.ranks[rank]) == [], stage.name

    @pytest.mark.full
    @pytest.mark.parametrize("tokens", [1, 4, 8, 16])
    def test_full_size_equals_its_twin(self, tokens):
        case = k3lab.make_case("k1", tokens=tokens, qlen=min(tokens, 4), nblocks=4, token_tile=4)
        run, twin = k3lab.run("k1", case, backend="cuda", dumps=True), k3lab.run("k1", case)
        assert differences(run.values, twin.values) == []

    def test_a_launch_that_does_not_fit_is_refused(self):
        case = k3lab.make_case("k1", tokens=16, qlen=4, nblocks=4)
        with pytest.raises(BackendUnavailable, match="expected room for all 256 workgroups of kda_pre at once"):
            k3lab.run("k1", case, backend="cuda")
