"""The launches' kernels translated to CUDA C++ equal the kernel-order twin bit for bit.

On this machine's processor, as fibers, at test size; on an NVIDIA GPU, where there is one, through the backend itself.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import k3lab
from k3lab.backends.cuda import device, hostbuild
from k3lab.errors import BackendUnavailable, BadInput
from k3lab.kernels import peers
from k3lab.kernels.health import GaveUp
from k3lab.kernels.host import Buffers
from tests.cover import options_of, pairwise
from tests.kernels import k1_cases, k2a_cases, m1a_cases
from tests.kernels.harness import differences, mini_case

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


def by_fibers(case, epochs=1):
    """Differences after launches in a row on the same scratch."""
    key = replace(case.key, dumps=True)
    ranks = [Buffers.of(case.declaration, key, tensors) for tensors in case.ranks]
    if case.declaration.peers(key):
        peers.join(ranks)
    lines, twin = [], k3lab.run(case.launch, case)
    for epoch in range(1, epochs + 1):
        for buffers, tensors in zip(ranks, case.ranks, strict=True):
            buffers.next_step(tensors, epoch=epoch)
            buffers.numbers["wait_ticks"] = 1 << 30
        hostbuild.launched(ranks)
        lines += [f"epoch {epoch}, {line}" for line in faults(case, ranks, twin)]
    return lines


@fibers
@pytest.mark.parametrize("launch", QUICK)
def test_a_launch_equals_its_twin(launch):
    assert by_fibers(case_of(launch, QUICK[launch])) == []


@fibers
@pytest.mark.slow
@pytest.mark.parametrize(
    ("launch", "labels"), CASES, ids=lambda part: part if isinstance(part, str) else "-".join(part)
)
def test_every_pair_of_options_equals_its_twin(launch, labels):
    assert by_fibers(case_of(launch, {"seed": 1, **options_of(COVERS[launch], labels)})) == []


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
