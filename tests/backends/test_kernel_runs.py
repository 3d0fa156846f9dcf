"""A launch's kernel through `run`: what it exposes, its provenance, its stamps, and what is refused."""

from __future__ import annotations

import pytest
import torch

import k3lab
from k3lab.backends import chain
from k3lab.backends.sim import Options
from k3lab.errors import BackendUnavailable, BadInput
from k3lab.kernels import lowered, peers
from k3lab.kernels.host import Buffers

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")


def test_a_simulated_kernel_is_its_twin(bench):
    case, twin = bench.case(), bench.twin()
    run = k3lab.run("k1", case, backend="sim", dumps=True)
    assert bench.differing(run, twin) == {} and set(run.values) == set(twin.values)
    assert set(run.outputs) == set(twin.outputs) and set(run.regions) == set(twin.regions)
    assert set(run.locals) >= {"vals", "v", "o", "decay"} and not run.points and run.stamps is None
    assert "backend=sim" in repr(run) and run.backend == "sim" and run.device == "cpu"


def test_the_case_is_never_changed(bench):
    case = k3lab.make_case("k1", geometry="mini", tokens=4, qlen=4)
    before = case._hash()
    k3lab.run("k1", case, backend="sim")
    assert case._hash() == before


def test_without_dumps_there_are_no_locals(bench):
    run = k3lab.run("k1", bench.case(), backend="sim")
    assert not run.locals and run.key.dumps is False
    assert bench.differing(run, bench.twin()) == {}


def test_provenance_says_how_it_was_simulated(bench):
    sim = Options(schedule="random", seed=7, memory="relaxed", guards=True, scopes=True)
    facts = k3lab.run("k1", bench.case(), backend="sim", sim=sim).provenance
    assert facts["versions"]["flydsl"] != "none" and facts["backend"] == "sim"
    assert facts["device"].startswith("simulator on cpu")
    said = facts["simulation"]
    assert (said["schedule"], said["seed"], said["memory"]) == ("random", 7, "relaxed")
    assert said["detectors"] == ["guards", "scopes", "strict"] and said["findings"] == [] and said["steps"] > 0
    build = facts["build"]
    assert build["seconds"] > 0 and build["seconds_are"] == "wall seconds of the simulation on this host"
    assert build["stages"] == [stage.name for stage in bench.case().declaration.stages]


def test_the_mfma_model_reaches_the_simulator(bench):
    case = bench.case(values="adversarial")
    twin = k3lab.run("k1", case, mfma="sequential")
    run = k3lab.run("k1", case, backend="sim", mfma="sequential")
    assert run.mfma == "sequential" and bench.differing(run, twin) == {}
    assert "PROJ" in bench.differing(run, bench.twin(values="adversarial"))


def test_a_timeline_build_has_stamps(bench):
    case = bench.case(timeline=True)
    run = k3lab.run("k1", case, backend="sim")
    assert run.stamps is not None and run.stamps.dtype == torch.int64
    assert tuple(run.stamps.shape) == (case.key.geometry.blocks, len(case.declaration.stamps))
    assert bench.differing(run, bench.twin()) == {}


def test_stamps_are_those_of_the_launch_alone(bench):
    case = bench.case(timeline=True)
    buffers = Buffers.of(case.declaration, case.key, case.ranks[0])
    buffers.tensors["tl"][3, 2] = 77
    kept = buffers.stamps()
    buffers.next_step()
    assert kept is not None and kept[3, 2] == 77 and int(kept.sum()) == 77
    assert int(buffers.stamps().sum()) == 0


def test_two_ranks(bench):
    case, twin = bench.case("k2a", ranks=2), bench.twin("k2a", ranks=2)
    run = k3lab.run("k2a", case, backend="sim", dumps=True)
    assert len(run.ranks) == 2 and bench.differing(run, twin) == {}


@pytest.mark.parametrize("stages", [None, frozenset({"qb", "uk"})], ids=["whole", "qb+uk"])
def test_rows_that_a_build_writes_hold_nothing_before_on_every_rank(bench, monkeypatch, stages):
    """So that a read of a byte that nothing has written is found; what other stages would write is there."""
    case = bench.case("m1a", ranks=2)
    ranks = [Buffers.of(case.declaration, case.key, tensors, stages) for tensors in case.ranks]
    peers.join(ranks)
    seen = []
    monkeypatch.setattr(chain, "simulate_chain", lambda *args, regions, **more: seen.extend(regions))
    chain.simulated_chain([ranks])
    empty = {(region.rank, region.name) for region in seen if region.scratch}
    assert empty == (set() if stages else {(rank, name) for rank in range(2) for name in ("x", "QC")})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"device": "cuda"}, "device: expected 'cpu' or none"),
        ({"order": "torch"}, "order: expected 'kernel' beside backend='sim'"),
        ({"mfma": "exact"}, "exact"),
        ({"sim": Options(mfma="cdna3")}, "sim.mfma: expected the run's own 'fused', got 'cdna3'"),
        ({"backend": "twin", "sim": Options()}, "sim: expected none beside a twin"),
        ({"backend": "oracle", "dumps": True}, "dumps: expected none beside a twin"),
    ],
)
def test_options_that_do_not_fit_are_refused(bench, options, says):
    with pytest.raises(BadInput, match=says) as raised:
        k3lab.run("k1", bench.case(), **{"backend": "sim", **options})
    assert str(raised.value).endswith(".")


@pytest.mark.parametrize("probe", [{"record": "k1.*"}, {"ablate": "k1.mix.x"}])
def test_probes_are_refused(bench, probe):
    with k3lab.probe(**probe), pytest.raises(BadInput, match=r"probe: expected none around a run on sim"):
        k3lab.run("k1", bench.case(), backend="sim")


def test_a_launch_without_a_kernel_is_refused(bench, monkeypatch):
    monkeypatch.setattr("k3lab.backends.session.has_kernel", lambda launch: False)
    with pytest.raises(BackendUnavailable, match=r"k1: this version has no kernel of it"):
        k3lab.run("k1", bench.case(), backend="sim")


def test_without_flydsl_it_says_what_to_install(bench, monkeypatch, no_cache):
    def missing(launch):
        raise BackendUnavailable("flydsl is not installed here.")

    monkeypatch.setattr(lowered, "roles", missing)
    with pytest.raises(BackendUnavailable, match="flydsl is not installed here"):
        k3lab.run("k1", bench.case(), backend="sim")


def test_unknown_backends_and_other_cases_are_refused(bench):
    with pytest.raises(BackendUnavailable, match="this version has"):
        k3lab.run("k1", bench.case(), backend="hip")
    with pytest.raises(BadInput, match="expected inputs of k2a, got inputs of k1"):
        k3lab.run("k2a", bench.case(), backend="sim")
