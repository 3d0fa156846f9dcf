"""Build keys: every valid one has a declaration, a layout and arguments; every other one is refused in a sentence."""

from __future__ import annotations

from dataclasses import fields, replace
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from k3lab.geometry import HELD_TASKS, Geometry
from k3lab.kernels.abi import arguments, stage_names
from k3lab.kernels.lowered import file_of
from k3lab.launches import K1, LAUNCHES, M1A
from k3lab.launches.declaration import Launch
from k3lab.launches.key import LaunchKey
from k3lab.layout import Placed, place_locals
from tests.hardening.said import refused, taken

GEOMETRIES = (Geometry.mini(), *(Geometry.k3(tp) for tp in (1, 2, 4, 8)))
BETWEEN = st.floats(0, 1, exclude_min=True, exclude_max=True)
FLAGS = st.booleans()
COUNTS = st.integers(0, 64)

names = pytest.mark.parametrize("name", LAUNCHES)


def common(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of every key, each in its documented range."""
    return {
        "geometry": draw(st.sampled_from(GEOMETRIES)),
        "nblocks": draw(st.integers(0, 8)),
        "eps": draw(BETWEEN),
        "out_eps": draw(BETWEEN),
        "token_tile": draw(COUNTS),
        "prefetch": draw(COUNTS),
        "ahead": draw(COUNTS),
        **{flag: draw(FLAGS) for flag in ("dumps", "bounded", "timeline", "gemv_all")},
    }


@st.composite
def k1(draw: st.DrawFn) -> dict[str, Any]:
    shared, qlen = common(draw), draw(st.integers(1, 16))
    return {
        **shared,
        "tokens": qlen * draw(st.integers(1, 8)),
        "qlen": qlen,
        "delta": draw(FLAGS),
        "gate_local": draw(FLAGS),
        "state_len": draw(st.sampled_from((0, qlen + 2))),
        "write_idx": draw(st.one_of(st.just(-1), st.integers(shared["nblocks"], 8))),
        "kda0": draw(st.integers(-1, shared["geometry"].blocks - 1)),
        "onorm_eps": draw(BETWEEN),
        "lower_bound": draw(st.floats(-100, 0, exclude_max=True)),
    }


@st.composite
def m1a(draw: st.DrawFn) -> dict[str, Any]:
    shared, ranks = common(draw), draw(st.sampled_from((1, 2, 4, 8)))
    heads = ranks * shared["geometry"].heads
    return {
        **shared,
        "tokens": draw(st.integers(1, 64)),
        "ranks": ranks,
        "q_heads": draw(st.one_of(st.just(0), st.integers(heads, heads if ranks == 1 else 2 * heads))),
        "delta": draw(FLAGS),
        "qbf16": draw(FLAGS) and ranks == 1,
        "q_eps": draw(BETWEEN),
        "kv_eps": draw(BETWEEN),
        "qb0": draw(st.integers(0, shared["geometry"].blocks - 1)),
        "uk_ctas": draw(st.integers(1, 300)),
    }


@st.composite
def k2a(draw: st.DrawFn) -> dict[str, Any]:
    return {
        **common(draw),
        "tokens": draw(st.integers(1, 64)),
        "ranks": draw(st.sampled_from((1, 2, 4, 8))),
        "reset": draw(FLAGS),
        "shots": draw(st.sampled_from(("auto", "one", "two"))),
        "sentinel": draw(FLAGS),
    }


@st.composite
def with_sums(draw: st.DrawFn, name: str, fields: st.SearchStrategy[dict[str, Any]]) -> dict[str, Any]:
    """Sums are held where a CTA's tasks are few enough."""
    drawn = draw(fields)
    key = LAUNCHES[name].key(drawn["geometry"], **{name: value for name, value in drawn.items() if name != "geometry"})
    held = st.integers(1, 9) if key.gemv_tasks <= HELD_TASKS * key.gemv_ctas else st.just(1)
    return {**drawn, "k_parts": draw(held), "at_once": draw(held)}


VALID = {name: with_sums(name, fields) for name, fields in {"k1": k1(), "m1a": m1a(), "k2a": k2a()}.items()}
ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 40),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from((10**400, "auto", [], {}, (1,), float("nan"), "8", Geometry.mini().to_dict())),
)


def test_every_launch_has_its_keys_drawn_here():
    assert set(VALID) == set(LAUNCHES)
    for name, launch in LAUNCHES.items():
        assert set(drawn_keys(name)[0]) == {field.name for field in fields(launch.key_type)}


def drawn_keys(name: str) -> list[dict[str, Any]]:
    """Fields of valid keys, as many as there are examples."""
    found: list[dict[str, Any]] = []

    @given(VALID[name])
    def draw(drawn: dict[str, Any]) -> None:
        found.append(drawn)

    draw()
    return found


def apart(placed: tuple[Placed, ...]) -> bool:
    """Whether no two of these share a byte, in the order they are listed."""
    ends = [part.offset + part.nbytes for part in placed]
    return all(part.offset >= end for part, end in zip(placed[1:], ends[:-1], strict=True))


def check_built(launch: Launch, key: LaunchKey, stages: frozenset[str]) -> None:
    """What a build reads off its key is there and fits together."""
    for placed in (launch.scratch(key), launch.peers(key), place_locals(launch.locals_for(key), key.sizes)):
        assert apart(placed) and all(part.nbytes > 0 and part.offset % 8 == 0 for part in placed)
    table = arguments(launch, key, stages)
    given_names = [argument.name for argument in table]
    assert len(set(given_names)) == len(given_names)
    inputs = {decl.name for decl in launch.inputs_for(key)}
    own = {made.name for made in launch.made} | {"scratch", "epoch", "peers", "locals", "tl", "health", "alarm", ""}
    assert {argument.tensor for argument in table} <= inputs | own
    assert ("tl" in given_names) == key.timeline and ("health" in given_names) == key.bounded
    assert set(launch.points_for(key)) <= set(launch.points)
    assert type(key).from_dict(key.to_dict()) == key
    assert file_of(launch, key, stages).endswith(".mlir")


@names
@given(data=st.data())
def test_a_valid_key_builds(name: str, data: st.DataObject):
    launch = LAUNCHES[name]
    key = launch.key(**data.draw(VALID[name]))
    stages = data.draw(st.sets(st.sampled_from(sorted(stage_names(launch))), min_size=1))
    check_built(launch, key, frozenset(stages))
    check_built(launch, key, stage_names(launch))


@names
@given(data=st.data())
def test_any_value_in_any_field_is_taken_whole_or_refused(name: str, data: st.DataObject):
    launch, drawn = LAUNCHES[name], data.draw(VALID[name])
    for field in data.draw(st.lists(st.sampled_from(sorted(drawn)), min_size=1, max_size=3)):
        drawn[field] = data.draw(ANYTHING)
    geometry = drawn.pop("geometry")
    key = taken(lambda: launch.key(geometry, **drawn))
    if key is not None:
        check_built(launch, key, stage_names(launch))


WRONG = {
    "tokens": (0, -1, 2.0, "4", True, None),
    "nblocks": (-1, 9, 1.5),
    "eps": (0, 1, -1e-5, float("nan"), float("inf"), 10**400, "small"),
    "out_eps": (0.0, 1.0, None),
    "token_tile": (-1, 0.5),
    "prefetch": (-1, "all"),
    "gemv_all": (1, "no"),
    "k_parts": (0, -1, 1.5),
    "at_once": (0, "all"),
    "ahead": (-1, 0.5),
    "dumps": (1, 0, None, "yes"),
    "bounded": (1, "no"),
    "timeline": (0, []),
    "geometry": (None, "mini", 3, {}),
    "qlen": (0, 17, "many", None, 2.0),
    "state_len": (1, -1, 99, "x"),
    "write_idx": (-2, "none"),
    "kda0": (-2, 10**6),
    "onorm_eps": (0, 1),
    "lower_bound": (0, 5.0, float("-inf")),
    "delta": (0, "yes"),
    "gate_local": (2,),
    "ranks": (0, 3, 16, "8", None),
    "q_heads": (-1, 10**6, "all"),
    "qbf16": (1,),
    "q_eps": (0,),
    "kv_eps": (1,),
    "qb0": (-1, 10**6, 1.5),
    "uk_ctas": (0, "all"),
    "reset": ("no",),
    "shots": ("three", 1, None, ["auto"]),
    "sentinel": (None,),
}


@names
def test_each_wrong_value_is_refused_by_its_field(name: str):
    launch, good = LAUNCHES[name], {**drawn_keys(name)[0], "geometry": Geometry.mini()}
    for field in fields(launch.key_type):
        for value in WRONG[field.name]:
            wrong = {**good, field.name: value}
            geometry = wrong.pop("geometry")
            with refused(field.name):
                launch.key(geometry, **wrong)


@pytest.mark.parametrize(
    ("launch", "wrong"),
    [
        (K1, {"tokens": 5, "qlen": 2}),
        (K1, {"tokens": 4, "nblocks": 4, "write_idx": 3}),
        (M1A, {"tokens": 1, "ranks": 2, "qbf16": True}),
        (M1A, {"tokens": 1, "ranks": 1, "q_heads": 3}),
    ],
    ids=lambda value: value.name if isinstance(value, Launch) else "-".join(value),
)
def test_fields_that_contradict_each_other_are_refused(launch: Launch, wrong: dict[str, Any]):
    with refused():
        launch.key(Geometry.mini(), **{"nblocks": 1, **wrong})


SIZES = {"hidden": 2048, "heads": 2, "tp": 2, "q_lora": 1280, "kv_lora": 512, "blocks": 48}


@given(
    st.dictionaries(st.sampled_from(sorted(SIZES)), st.one_of(ANYTHING, st.integers(0, 64).map(lambda n: n * 128))),
    st.sampled_from(sorted(LAUNCHES)),
)
def test_any_geometry_is_refused_or_lays_out(sizes: dict[str, Any], name: str):
    geometry = taken(lambda: Geometry("drawn", **{**SIZES, **sizes}), "drawn")
    if geometry is None:
        return
    key = taken(lambda: LAUNCHES[name].key(geometry, tokens=2, nblocks=1))
    if key is not None:
        check_built(LAUNCHES[name], key, stage_names(LAUNCHES[name]))


@given(
    st.recursive(ANYTHING, lambda inner: st.dictionaries(st.text(max_size=9), inner) | st.lists(inner), max_leaves=6)
)
def test_any_json_value_as_a_key_is_refused(value: Any):
    for launch in LAUNCHES.values():
        with refused("launch key"):
            launch.key_type.from_dict(value)


# Builds of a key, by FlyDSL: seconds each.

needs_flydsl = pytest.mark.skipif(find_spec("flydsl") is None, reason="needs flydsl to lower a kernel")


@needs_flydsl
@pytest.mark.slow
@names
@pytest.mark.parametrize("number", range(4))
def test_a_valid_key_lowers(name: str, number: int):
    from k3lab.kernels.lowered import lowered

    drawn = drawn_keys(name)
    key = small(name, drawn[(number + 1) * len(drawn) // 5])
    module = lowered(LAUNCHES[name], key)
    (kernel,) = module.kernels.values()
    assert kernel.name.startswith(LAUNCHES[name].published)
    (launched,) = module.launches
    assert launched.grid == (key.geometry.blocks, 1, 1) and launched.block == (512, 1, 1)
    assert len(module.host_args) >= len(arguments(LAUNCHES[name], key, stage_names(LAUNCHES[name])))


def small(name: str, drawn: dict[str, Any]) -> LaunchKey:
    """A key of these fields with few tokens, at mini size: what is built then takes seconds."""
    mini = Geometry.mini()
    cut = {**drawn, "tokens": drawn.get("qlen", min(drawn["tokens"], 4)), "token_tile": 0}
    cut.pop("geometry")
    if name == "k1":
        cut |= {"kda0": min(drawn["kda0"], mini.blocks - 1)}
    if name == "m1a":
        cut |= {"q_heads": 0, "qb0": min(drawn["qb0"], mini.blocks - 1)}
        cut |= {} if drawn["gemv_all"] else {"k_parts": 1, "at_once": 1}  # more tasks a CTA than are held
    key = LAUNCHES[name].key(mini, **cut)
    return replace(key, dumps=False)
