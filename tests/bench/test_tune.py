from __future__ import annotations

import json

import pytest

from k3lab.bench import make, tune
from k3lab.bench.make import Plan
from k3lab.errors import BackendUnavailable, BadInput
from k3lab.geometry import Geometry
from k3lab.kernels import lowered as kernels
from k3lab.launches import get

WHERE = {"name": "a GPU", "units": 132, "driver": "1.2", "versions": {"nvrtc": "13.0"}}


def key_of(launch, tokens=4, **plan):
    return make.key_of(Plan((launch,), (tokens,), **plan), launch, tokens)


def cost(knobs):
    """Quickest with 132 blocks, a tile of 8, two rounds, and the local gate."""
    return (
        1e-6 * abs(knobs["blocks"] - 132)
        + 1e-5 * abs(knobs["token_tile"] - 8)
        + 1e-6 * abs(knobs["prefetch"] - 2)
        + (0 if knobs.get("gate_local", True) else 1e-7)
        + 1e-5
    )


@pytest.mark.parametrize("launch", ["k1", "m1a", "k2a"])
@pytest.mark.parametrize("tokens", [1, 4, 16])
def test_candidates_are_keys_the_default_first_and_none_twice(launch, tokens):
    key = key_of(launch, tokens)
    listed = tune.candidates(key)
    assert listed[0] == tune.knobs_of(key)
    assert len({json.dumps(knobs, sort_keys=True) for knobs in listed}) == len(listed)
    for knobs in listed:
        assert tune.knobs_of(tune.with_knobs(key, knobs)) == knobs
        assert knobs["token_tile"] <= tokens
    assert {knobs["blocks"] for knobs in listed} == {132, 188, 256}
    rows = 16 if launch == "k2a" else 4  # of 1536 columns, or of 7168: so many fit twice into a multiprocessor
    assert {knobs["token_tile"] for knobs in listed if knobs["blocks"] > 132} == {min(rows, tokens)}
    assert ("gate_local" in listed[0]) == (launch == "k1")
    assert ("qb0" in listed[0]) == (launch == "m1a")


@pytest.mark.parametrize(
    ("launch", "tokens", "parts"), [("k1", 8, {1}), ("k1", 16, {1, 2}), ("m1a", 16, {1, 2}), ("k2a", 16, {1})]
)
def test_rows_that_do_not_fit_lie_in_parts(launch, tokens, parts):
    listed = tune.candidates(key_of(launch, tokens))
    assert {knobs["k_parts"] for knobs in listed} == parts
    assert all(knobs["token_tile"] == tokens and knobs["gemv_all"] for knobs in listed if knobs["k_parts"] > 1)


@pytest.mark.parametrize(("launch", "knob"), [("k1", "ahead"), ("m1a", "ahead"), ("k2a", "at_once")])
def test_each_launch_has_one_way_to_ask_for_more_weights(launch, knob):
    listed = tune.candidates(key_of(launch))
    assert len({knobs[knob] for knobs in listed}) == 2
    assert not {"ahead", "at_once"} - {knob} & set(listed[0])


def test_m1a_deals_go_with_blocks():
    """228 projection tasks and 144 of q_b: of 132 GEMV workgroups 96 have two projections, the first ones, or where all
    multiply those from the first that norms no row on."""
    deals = {knobs["blocks"]: (knobs["qb0"], knobs["uk_ctas"]) for knobs in tune.candidates(key_of("m1a"))}
    assert deals == {132: (100, 132), 188: (96, 132), 256: (28, 200)}


@pytest.mark.parametrize("named", [{"uk_ctas": 64}, {"uk_ctas": 48, "qb0": 8}])
def test_m1a_deals_that_are_named_stay(named):
    key = key_of("m1a", fields=named)
    listed = tune.candidates(key)
    assert {knobs["blocks"] for knobs in listed} == {132, 188, 256}
    for name, value in named.items():
        assert getattr(key, name) == value
        assert {knobs[name] for knobs in listed} == {value}


@pytest.mark.parametrize(
    ("launch", "named"),
    [
        ("k1", {"gemv_all": False, "ahead": 0}),
        ("k1", {"token_tile": 3, "prefetch": 2}),
        ("m1a", {"k_parts": 1, "uk_ctas": 132}),
        ("k2a", {"at_once": 2}),
    ],
)
def test_knobs_that_are_named_stay(launch, named):
    key = key_of(launch, 16, fields=named)
    listed = tune.candidates(key, named=named)
    assert len(listed) > 2
    for name, value in named.items():
        assert {knobs[name] for knobs in listed} == {value}


def test_a_knob_that_is_not_searched_is_shown_where_it_is_not_the_defaults():
    assert "at_once" not in tune.knobs_of(key_of("k1"))
    assert tune.knobs_of(key_of("k1", fields={"at_once": 2}))["at_once"] == 2


@pytest.mark.parametrize("launch", ["k1", "m1a", "k2a"])
@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_shapes_that_cannot_be_are_left_out(launch, tp, ranks):
    """Where a CTA has more tasks than sums are held of, or the key asks for what fewer BLOCKS cannot have."""
    own = {"qlen": 1} if launch == "k1" else {"ranks": ranks}
    for tokens in (4, 16, 64):
        for at_once in (1, 2) if tp > 1 else (1,):
            options = {"tokens": tokens, "nblocks": 4, "at_once": at_once, **own}
            try:
                key = get(launch).key(Geometry.k3(tp), **options)
            except BadInput:
                continue
            for knobs in tune.candidates(key):
                assert tune.knobs_of(tune.with_knobs(key, knobs)) == knobs


@pytest.mark.parametrize(("launch", "named"), [("m1a", {"qb0": 200}), ("k1", {"kda0": 200})])
def test_a_cta_that_is_named_leaves_out_fewer_blocks(launch, named):
    listed = tune.candidates(key_of(launch, fields=named))
    assert {knobs["blocks"] for knobs in listed} == {256}


def test_several_ranks_share_the_workgroups():
    listed = tune.candidates(key_of("k2a", ranks=2))
    assert {knobs["blocks"] for knobs in listed} == {66, 122, 128}


def test_a_rank_needs_a_workgroup_beside_the_attention():
    listed = tune.candidates(key_of("k2a", ranks=4))
    assert all(knobs["blocks"] > Geometry.k3().na for knobs in listed) and listed


def test_only_knobs_differ():
    key = key_of("k1", fields={"eps": 1e-6})
    for knobs in tune.candidates(key):
        changed = tune.with_knobs(key, knobs)
        assert tune.with_knobs(changed, tune.knobs_of(key)) == key


def test_a_search_finds_the_quickest_and_measures_none_twice():
    seen = []

    def seconds(knobs):
        seen.append(json.dumps(knobs, sort_keys=True))
        return cost(knobs)

    listed = tune.candidates(key_of("k1", 8))
    found = tune.search(listed, seconds)
    shape = {"blocks": 132, "token_tile": 8, "gemv_all": True, "k_parts": 1}
    assert found.knobs == {**shape, "prefetch": 2, "ahead": 0, "gate_local": True}
    assert len(seen) == len(set(seen)) == len(found.tried) < len(listed)


def test_what_cannot_be_tried_is_listed_with_its_reason():
    def seconds(knobs):
        if knobs["blocks"] == 132:
            raise BackendUnavailable("flydsl is not installed here.")
        return cost(knobs)

    found = tune.search(tune.candidates(key_of("m1a", 8)), seconds)
    assert found.knobs["blocks"] == 188 and found.knobs["token_tile"] == 4
    missed = [tried for tried in found.tried if tried.median is None]
    assert missed and all(tried.why == "flydsl is not installed here." for tried in missed)


def test_a_search_without_any_build_says_so():
    def seconds(knobs):
        raise BackendUnavailable("nothing here.")

    with pytest.raises(BackendUnavailable, match=r"expected one build that runs.*nothing here"):
        tune.search(tune.candidates(key_of("k2a")), seconds)


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """A search over builds that are all there, with an empty cache; counts what is measured."""
    monkeypatch.setenv("K3LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(tune, "available", lambda launch, key: True)
    seen = []

    def seconds(key):
        seen.append(key)
        return cost(tune.knobs_of(key))

    return seen, seconds


def test_an_outcome_is_kept_for_the_device_and_its_tools(counted):
    seen, seconds = counted
    key = key_of("m1a")
    first = tune.tuned(get("m1a"), key, WHERE, seconds)
    count = len(seen)
    again = tune.tuned(get("m1a"), key, WHERE, seconds)
    assert not first.cached and again.cached and len(seen) == count
    assert (again.knobs, again.tried) == (first.knobs, first.tried)
    for other in ({"name": "another GPU"}, {"driver": "1.3"}, {"versions": {"nvrtc": "13.1"}}):
        assert not tune.tuned(get("m1a"), key, {**WHERE, **other}, seconds).cached
    assert not tune.tuned(get("m1a"), key_of("m1a", 8), WHERE, seconds).cached


def test_more_builds_or_another_translation_make_it_search_again(counted, monkeypatch):
    _, seconds = counted
    key = key_of("m1a")
    tune.tuned(get("m1a"), key, WHERE, seconds)
    monkeypatch.setattr(tune, "available", lambda launch, key: key.geometry.blocks == 256)
    assert not tune.tuned(get("m1a"), key, WHERE, seconds).cached
    monkeypatch.setattr(tune, "translation", lambda: "another")
    assert not tune.tuned(get("m1a"), key, WHERE, seconds).cached


def test_what_one_machine_lowers_another_finds(monkeypatch, tmp_path):
    pytest.importorskip("flydsl", reason="needs flydsl to lower")
    key = key_of("k2a", 1, geometry=Geometry.mini())
    paths = list(tune.lower(tmp_path, get("k2a"), key, tune=True))
    assert len(paths) == len(tune.candidates(key)) and all(path.is_file() for path in paths)

    def missing(*build):
        raise BackendUnavailable("flydsl is not installed here.")

    monkeypatch.setattr(kernels, "_parsed", {})
    monkeypatch.setattr(kernels, "_text", missing)
    monkeypatch.setattr(kernels, "flydsl_version", lambda: "none")
    monkeypatch.setenv(kernels.ARTEFACTS, str(tmp_path))
    assert all(tune.available(get("k2a"), tune.with_knobs(key, knobs)) for knobs in tune.candidates(key))
    assert not tune.available(get("k2a"), key_of("k2a", 2, geometry=Geometry.mini()))


def test_the_translations_hash_follows_its_files():
    assert tune.translation() == tune.translation() and len(tune.translation()) == 64
