"""The order probe: sums of eight ranks in four orders, on values whose sums are known by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import pairwise
from math import frexp
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import k3lab
from k3lab import Case
from k3lab.analysis.orders import ORDERS, POINT, OrderProbe, OrderRow, order_probe, order_steps
from k3lab.arith import KernelOrder
from k3lab.cli import cli
from k3lab.errors import BadInput
from k3lab.geometry import Geometry
from k3lab.launches import K2A
from k3lab.rounding import Probe
from k3lab.stages.oproj.reduce.twin import stage_reduce

MINI = Geometry.mini()
F32 = np.float32
OTHERS = list(ORDERS)[1:]

# 256 + 1 is a tie of bf16, which goes to 256; with a float32 step of 2^-15 more it is 258. Six tiny parts are more than
# half such a step together (more than 2^-16), but each alone is less: whether they count depends on who meets whom.
TINY = (1.5 * 2.0**-18, 2.0**-18)
"""The tiny parts of even and of odd columns."""
IN_ORDER = (256, 256)  # 257 first: each tiny part is lost
EXACT = (258, 258)
IN_PAIRS = (258, 256)  # ranks 4 to 7 are 1.5 half steps (up), or just one (a tie: to even, down)
# Owners from 2 on begin with 8 - owner tiny parts: with 256 more than half a step while they are 3, or 5, or more.
BY_OWNER = ((256, 258, 258, 258, 258, 258, 256, 256), (256, 258, 258, 258, 256, 256, 256, 256))


def parts() -> torch.Tensor:
    """[ranks, HIDDEN]: 256, 1 and six tiny parts in every column."""
    tiny = torch.tensor(TINY).repeat(MINI.hidden // 2)
    return torch.stack([torch.full_like(tiny, 256.0), torch.ones_like(tiny), *[tiny] * 6])


def known(order: str) -> torch.Tensor:
    """What each column's sum is in bf16, [HIDDEN]."""
    pairs = {"rank order": IN_ORDER, "pairwise": IN_PAIRS, "float64": EXACT}
    if order in pairs:
        return torch.tensor(pairs[order]).repeat(MINI.hidden // 2).float()
    return torch.tensor(BY_OWNER).T.repeat_interleave(MINI.hidden // 16, dim=0).flatten().float()


def reduced(partial: torch.Tensor, order: str = "rank order", fmt: str = "bf16") -> torch.Tensor:
    """delta of `partial: [ranks, ..., HIDDEN]` under an order, rounded to `fmt`."""
    key = K2A.key(MINI, tokens=1, nblocks=0, ranks=len(partial))
    swap = {} if order == "rank order" else {POINT: order}
    with k3lab.probe(swap={**swap, "k2a.reduce.delta": fmt}):
        return stage_reduce(KernelOrder("k2a"), SimpleNamespace(partial=partial), key)["delta"]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype == torch.float32 and torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.fixture(scope="module")
def told_apart() -> Case:
    """A case whose ranks' partials are `parts()` for every token."""
    case = k3lab.make_case("k2a", geometry="mini", ranks=8, tokens=2, nblocks=1)
    own = []
    for size in parts():
        core, w_o = (torch.zeros_like(case.per_rank[0][name]) for name in ("core", "w_o"))
        core[:, 0], w_o[:, 0] = 1.0, size.bfloat16()
        own.append({"core": core, "w_o": w_o})
    return replace(case, per_rank=own)


@pytest.fixture(scope="module")
def made(told_apart: Case) -> OrderProbe:
    return order_probe(told_apart)


def row(made: OrderProbe, order: str, tensor: str) -> OrderRow:
    (found,) = [row for row in made.rows if (row.order, row.tensor) == (order, tensor)]
    return found


@pytest.mark.parametrize("order", ORDERS)
def test_sums_known_by_hand(order):
    assert same_bits(reduced(parts(), order), known(order))


def test_the_hand_made_sums_tell_all_orders_apart():
    sums = [tuple(known(order).tolist()) for order in ORDERS]
    assert len(set(sums)) == len(ORDERS) == 4


def by_loop(order: str, column: list[np.float32], owner: int) -> np.float32:
    """A column's sum in float32, one addition after the other."""
    if order == "rotated":
        column = column[owner:] + column[:owner]
    if order != "pairwise":
        return reduce(lambda a, b: F32(a + b), column)
    while len(column) > 1:
        column = [F32(column[i] + column[i + 1]) for i in range(0, len(column), 2)]
    return column[0]


@pytest.mark.parametrize("order", ["rank order", "rotated", "pairwise"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_float32_sums_are_those_of_a_loop(order, ranks):
    partial = unlike(ranks)
    owned = MINI.hidden // ranks
    want = [by_loop(order, list(column), i // owned) for i, column in enumerate(partial[:, 0].numpy().T)]
    assert same_bits(reduced(partial, order, "fp32")[0], torch.from_numpy(np.array(want)))


def unlike(ranks: int) -> torch.Tensor:
    """Partials [ranks, 1, HIDDEN] of unlike sizes: those of one size have a sum that is exact in any order."""
    source, shape = torch.Generator().manual_seed(ranks), (ranks, 1, MINI.hidden)
    values = torch.randn(shape, generator=source).bfloat16().float()
    return torch.ldexp(values, torch.randint(-14, 14, shape, generator=source))


def to_bf16(x: float) -> float:
    """The nearest of 8 significant bits, ties to even: Python rounds the exact quotient so."""
    step = 2.0 ** (frexp(x)[1] - 8)
    return round(x / step) * step


def test_float64_is_rounded_once():
    """257 + 2^-40 is 257, a tie, in float32; in float64 it is above the tie."""
    barely = torch.zeros(8, 1, MINI.hidden)
    barely[:3] = torch.tensor([256.0, 1.0, 2.0**-40])[:, None, None]
    assert (reduced(barely) == 256).all() and (reduced(barely, "float64") == 258).all()
    partial = unlike(8)
    want = [to_bf16(float(sum(column.astype(np.float64)))) for column in partial[:, 0].numpy().T]
    assert same_bits(reduced(partial, "float64")[0], torch.tensor(want))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("order", OTHERS)
def test_no_order_shows_up_to_two_ranks(order, ranks):
    """Two ranks commute, and float32's 24 bits are enough (2 x 8 + 2) for rounding their sum twice to do no harm."""
    assert same_bits(reduced(unlike(ranks), order), reduced(unlike(ranks)))


def test_figures_of_a_case_whose_sums_are_known(made: OrderProbe, told_apart: Case):
    count = told_apart.key.tokens * MINI.hidden
    exact = 257 + 6 * torch.tensor(TINY, dtype=torch.float64)
    for order in ORDERS:
        found, moved = row(made, order, "delta"), (known(order) - 256) / 2
        assert (found.difference.differ, found.difference.count) == (told_apart.key.tokens * moved.sum(), count)
        assert found.difference.max_ulp == (1.0 if order in OTHERS else 0.0)
        assert found.difference.relative_rms == pytest.approx(2 * float(moved.mean()) ** 0.5 / 256)
        error = known(order).double() - exact.repeat(MINI.hidden // 2)
        assert found.error.rms == pytest.approx(float(error.square().mean().sqrt()))
        assert found.error.count == count


def test_the_end_tensors_are_those_of_runs_with_the_probe(made: OrderProbe, told_apart: Case):
    base = k3lab.run("k2a", told_apart)
    for order in OTHERS:
        with k3lab.probe(swap={POINT: order}):
            run = k3lab.run("k2a", told_apart)
        for tensor in ("prefix", "x_out"):
            differ = int((run[tensor] != base[tensor]).sum())
            assert row(made, order, tensor).difference.differ == differ > 0
    assert "the order alone moves x_out under rotated, pairwise and float64" in made.sentence


def test_rows_go_by_tensor_and_steps_are_announced():
    case = k3lab.make_case("k2a", geometry="mini", ranks=2, tokens=1, nblocks=0)
    steps: list[str] = []
    made = k3lab.order_probe(case, progress=steps.append)
    assert steps == ["oracle", *ORDERS] and len(steps) == order_steps()
    tensors = [row.tensor for row in made.rows]
    assert tensors == sorted(tensors, key=("delta", "prefix", "x_out").index)
    assert [row.order for row in made.rows] == list(ORDERS) * 3
    assert all(row.difference.differ == 0 for row in made.rows)
    assert all(a.error == b.error for a, b in pairwise(made.rows) if a.tensor == b.tensor)
    assert made.sentence == "2 ranks: in whichever order they are summed, x_out is the same in every bit."


def test_what_it_cannot_tell_is_refused(told_apart: Case):
    with pytest.raises(BadInput, match="order probe: expected inputs of k2a, the launch that all-reduces, got k1"):
        order_probe(k3lab.make_case("k1", geometry="mini"))
    with Probe(ablate="k2a.mix.x"), pytest.raises(BadInput, match="expected no probe that changes values"):
        order_probe(told_apart)


@pytest.mark.parametrize("order", OTHERS)
def test_another_option_has_no_orders(order):
    with k3lab.probe(swap={"k1.gates.beta": order}), pytest.raises(BadInput, match="swap of k1.gates.beta: expected"):
        k3lab.run("k1", k3lab.make_case("k1", geometry="mini", tokens=1, qlen=1, nblocks=0))


def test_the_command_prints_a_table_and_a_sentence(told_apart: Case, made: OrderProbe, tmp_path):
    path = k3lab.save_case(told_apart, tmp_path / "case.safetensors")
    done = CliRunner().invoke(cli, ["orders", "--case", str(path)], prog_name="k3lab")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[-1] == made.sentence
    lines = [[cell.strip() for cell in line.split("│")] for line in done.stdout.splitlines()]
    cells = [line[2:6] for line in lines if len(line) > 6]
    assert cells[:4] == [
        ["rank order", "0 of 4096", "0", "0"],
        ["rotated", "2048 of 4096", "1", "0.00552"],
        ["pairwise", "2048 of 4096", "1", "0.00552"],
        ["float64", "4096 of 4096", "1", "0.00781"],
    ]
    assert len(cells) == len(made.rows)


def test_the_command_refuses_other_launches(tmp_path):
    path = k3lab.save_case(k3lab.make_case("k1", geometry="mini"), tmp_path / "case.safetensors")
    done = CliRunner().invoke(cli, ["orders", "--case", str(path)], prog_name="k3lab")
    assert done.exit_code == 2 and "expected inputs of k2a, got inputs of k1" in done.stderr
