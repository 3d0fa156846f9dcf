"""The registry of MFMA models, the rounding order of each, and the trees that summation reveals from outside."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache, reduce
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from k3lab.errors import BadInput
from k3lab.hardware import mfma

F32 = NDArray[np.float32]
Tree = int | tuple["Tree", ...]

K = 32
models = pytest.mark.parametrize("name", mfma.MODELS)


def operands(seed: int, shape: tuple[int, ...] = (3,), m: int = 4, n: int = 40) -> tuple[F32, F32, F32]:
    """bf16-valued a [*shape, m, K], b [*shape, n, K] and any c."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((*shape, rows, K)).astype(np.float32) for rows in (m, n))
    narrow = [(x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32) for x in (a, b)]
    return narrow[0], narrow[1], rng.standard_normal((*shape[1:], m, n)).astype(np.float32)


def test_get_names_the_models() -> None:
    assert mfma.get("fused") is mfma.MODELS["fused"]
    with pytest.raises(BadInput, match="fused, sequential, pairwise, cdna3, got 'exact'"):
        mfma.get("exact")


@models
def test_descriptions_say_what_is_assumed(name: str) -> None:
    model = mfma.get(name)
    assert model.name == name
    assert "assumed" in model.description
    assert model.scaled_model == ("fused" if name == "cdna3" else name)


@models
def test_operands_are_checked(name: str) -> None:
    a, b, c = operands(0)
    chain = mfma.get(name).chain
    wrong = [(a[:2], b, c), (a, b[..., :16], c), (a, b, c[:, :1]), (a.astype(np.float64), b, c), ([], [], c)]
    for case in wrong:
        with pytest.raises(BadInput):
            chain(*case)


@models
def test_steps_may_be_a_list_of_views(name: str) -> None:
    """A weight matrix [N, 2 rounds, 3 waves, 4 parts, K]: its steps (round, part) have no single stride."""
    rng = np.random.default_rng(1)
    w = rng.integers(-8, 9, (50, 2, 3, 4, K)).astype(np.float32)
    x = rng.standard_normal((5, 2, 3, 4, K)).astype(np.float32)
    steps = [(w[:, r, :, q].swapaxes(0, 1), x[:, r, :, q].swapaxes(0, 1)) for r in range(2) for q in range(4)]
    b, a = [s[0] for s in steps], [s[1] for s in steps]
    chain = mfma.get(name).chain
    assert np.array_equal(chain(a, b), chain(np.stack(a), np.stack(b)))


@models
def test_leading_dimensions_broadcast_and_blocks_do_not_show(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, _ = operands(2, (2, 3), m=2, n=100)
    chain = mfma.get(name).chain
    whole = chain(a, b)
    assert np.array_equal(whole[1], chain(a[:, 1], b[:, 1]))
    assert np.array_equal(chain(a, b[:, :1]), chain(a, np.repeat(b[:, :1], 3, axis=1)))
    assert np.array_equal(chain(a[:, :1], b), chain(np.repeat(a[:, :1], 3, axis=1), b))
    monkeypatch.setattr("k3lab.hardware.mfma.model.BLOCK_OUTPUTS", 1)
    assert np.array_equal(whole, chain(a, b))


@models
def test_no_rows_no_columns(name: str) -> None:
    a, b, _ = operands(3)
    assert mfma.get(name).chain(a[:, :0], b).shape == (0, 40)
    assert mfma.get(name).chain(a, b[:, :0]).shape == (4, 0)


@models
def test_a_chain_continues_from_c(name: str) -> None:
    a, b, c = operands(4)
    chain = mfma.get(name).chain
    assert np.array_equal(chain(a, b, c), chain(a[1:], b[1:], chain(a[:1], b[:1], c)))


def by_scalars_in_order(a: F32, b: F32, c: np.float32) -> np.float32:
    for x, y in zip(a, b, strict=True):
        c = c + x * y
    return c


def by_scalars_in_pairs(a: F32, b: F32, c: np.float32) -> np.float32:
    level = [x * y for x, y in zip(a, b, strict=True)]
    while len(level) > 1:
        level = [x + y for x, y in zip(level[::2], level[1::2], strict=True)]
    return c + level[0]


@pytest.mark.parametrize("extreme", [False, True], ids=["normal", "extreme"])
@pytest.mark.parametrize(("name", "scalars"), [("sequential", by_scalars_in_order), ("pairwise", by_scalars_in_pairs)])
def test_rounded_orders_against_a_scalar_loop(name: str, scalars: object, extreme: bool) -> None:
    a, b, c = operands(5)
    if extreme:  # products that underflow, overflow, or are -0
        exponents = np.random.default_rng(6).integers(-80, 65, a.shape)
        a, b[..., :9] = np.ldexp(a, exponents).astype(np.float32), -0.0
    with np.errstate(all="ignore"):
        truth = c.copy()
        for step, m, n in np.ndindex(3, *c.shape):
            truth[m, n] = scalars(a[step, m], b[step, n], truth[m, n])  # type: ignore[operator]
    assert np.array_equal(mfma.get(name).chain(a, b, c), truth, equal_nan=True)
    assert np.array_equal(np.signbit(mfma.get(name).chain(a, b, c)), np.signbit(truth)) or np.isnan(truth).any()


@pytest.mark.parametrize("name", ["sequential", "pairwise"])
def test_minus_zeros_add_as_ieee_says(name: str) -> None:
    minus, ones = np.full((2, 1, K), -0.0, np.float32), np.ones((2, 1, K), np.float32)
    assert np.signbit(mfma.get(name).chain(minus, ones, minus[0, :, :1])).all()
    assert not np.signbit(mfma.get(name).chain(minus, ones)).any()


def test_random_data_tells_the_models_apart() -> None:
    a, b, c = operands(7, n=2000)
    results = [model.chain(a, b, c) for model in mfma.MODELS.values()]
    for x, y in combinations(results, 2):
        assert (x != y).mean() > 0.05


# What order does an MFMA add in? Nothing but its results is needed (FPRev, 2024). Make every summand 1, except +M in
# one place and -M in another, with M so big that M + 1 = M. The ones added to an M before the two cancel are lost; the
# survivors count the summands that join later. So the loss tells how many leaves the smallest subtree with both places
# has, and all pairs together tell the tree. Leaf 0 is C, leaf k + 1 is slot k.


def survivors(name: str, plus: int, minus: int) -> int:
    summands = np.ones(K + 1, np.float32)
    summands[plus], summands[minus] = 2.0**60, -(2.0**60)
    a = summands[1:].reshape(1, 1, K)
    return int(mfma.get(name).chain(a, np.ones_like(a), summands[:1].reshape(1, 1))[0, 0])


def reveal(name: str) -> Tree:
    """The summation tree of one MFMA; a node with many children adds them at once."""

    @cache
    def leaves_below(first: int, second: int) -> int:
        return K + 1 - survivors(name, first, second)

    def build(leaves: list[int]) -> Tree:
        node: Tree = leaves[0]
        sizes = {leaf: leaves_below(leaves[0], leaf) for leaf in leaves[1:]}
        for size in sorted(set(sizes.values())):
            joined = [leaf for leaf in leaves[1:] if sizes[leaf] == size]
            subtree = build(joined)
            root_size = max((leaves_below(joined[0], leaf) for leaf in joined[1:]), default=1)
            at_once = root_size == size and isinstance(subtree, tuple)
            node = (node, *subtree) if at_once else (node, subtree)
        return node

    return build(list(range(K + 1)))


def balanced(leaves: range) -> Tree:
    half = len(leaves) // 2
    return (balanced(leaves[:half]), balanced(leaves[half:])) if half else leaves[0]


def blocks_of_8() -> Iterable[tuple[int, ...]]:
    return (tuple(range(first, first + 8)) for first in range(1, K + 1, 8))


TREES: dict[str, Tree] = {
    "fused": tuple(range(K + 1)),
    "sequential": reduce(lambda tree, slot: (tree, slot), range(1, K + 1), 0),
    "pairwise": (0, balanced(range(1, K + 1))),
    "cdna3": reduce(lambda tree, block: (tree, *block), blocks_of_8(), 0),
}


@models
def test_the_revealed_tree_is_the_documented_one(name: str) -> None:
    if name == "fused":  # loses nothing, whatever the places: one exact addition of all
        assert {survivors(name, i, j) for i, j in combinations(range(K + 1), 2)} == {K - 1}
    else:
        assert reveal(name) == TREES[name]


@models
def test_kernel_sized_work_takes_seconds(name: str) -> None:
    """A tenth of a wide projection; the limit is ten times what a laptop core needs."""
    rng = np.random.default_rng(8)
    w = (rng.standard_normal((640, 7168), np.float32).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    x = rng.choice(w.ravel(), (8, 7168))
    a, b = ([v.reshape(-1, 8, 28, K)[:, :, i].swapaxes(0, 1) for i in range(28)] for v in (x, w))
    started = time.perf_counter()
    mfma.get(name).chain(a, b)
    assert time.perf_counter() - started < 4
