"""Lane identity and cross-lane moves, against one-lane-at-a-time re-implementations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from k3lab.sim.semantics import Unsupported
from tests.sim.test_semantics_kit import LANES, Waves, random_bits, row, run, same_bits

VALUE = random_bits((2, 64), np.int32, 1)
OLD = random_bits((2, 64), np.int32, 2)
HALF_MASK = np.stack([LANES % 3 != 1, LANES >= 20])


def test_ids_and_sizes() -> None:
    waves = Waves(5)
    assert run("rocdl.workitem.id.x", "() -> i32", waves=waves) is waves.thread_xyz[0]
    assert run("rocdl.workgroup.id.y", "() -> i32", waves=waves)[:, 0].tolist() == [10, 10, 10, 10, 11]
    assert run("rocdl.workgroup.dim.x", "() -> i32", waves=waves)[0, 0] == 256
    assert run("rocdl.grid.dim.z", "() -> i32", waves=waves)[0, 0] == 3
    axis = row([1], np.int32)
    assert run("llvm.call", "(i32) -> i64", axis, callee="__ockl_get_num_groups", waves=waves)[0, 0] == 5
    with pytest.raises(Unsupported, match="__ocml_exp"):
        run("llvm.call", "(f32) -> f32", axis, callee="__ocml_exp")


def test_mbcnt_counts_lower_lanes() -> None:
    ones = row([-1], np.int32)
    low = run("rocdl.mbcnt.lo", "(i32, i32) -> i32", ones, row([0], np.int32))
    assert (run("rocdl.mbcnt.hi", "(i32, i32) -> i32", ones, low) == LANES).all()
    mask, base = row([0b1010], np.int32), row([100], np.int32)
    low = run("rocdl.mbcnt.lo", "(i32, i32) -> i32", mask, base)[0]
    assert low.tolist() == [100 + bin(0b1010 & (1 << min(i, 32)) - 1).count("1") for i in range(64)]
    high = run("rocdl.mbcnt.hi", "(i32, i32) -> i32", mask, base)[0]
    assert high.tolist() == [100 + bin(0b1010 & (1 << max(i - 32, 0)) - 1).count("1") for i in range(64)]


def test_ballot() -> None:
    condition = VALUE > 0
    for mask in (None, HALF_MASK):
        got = run("rocdl.ballot", "(i1) -> i64", condition, waves=Waves(mask=mask))
        active = condition if mask is None else condition & mask
        assert got.shape == (2, 1)
        assert [int(x) % 2**64 for x in got[:, 0]] == [sum(1 << i for i in np.nonzero(r)[0].tolist()) for r in active]
    assert run("rocdl.ballot", "(i1) -> i64", row([True], bool))[0, 0] == -1
    low = run("rocdl.ballot", "(i1) -> i32", condition)
    assert (low == run("rocdl.ballot", "(i1) -> i64", condition).astype(np.int32)).all()


def test_readfirstlane() -> None:
    assert same_bits(run("rocdl.readfirstlane", "(i32) -> i32", VALUE), VALUE[:, :1])
    got = run("rocdl.readfirstlane", "(i32) -> i32", VALUE, waves=Waves(mask=HALF_MASK))
    assert got[:, 0].tolist() == [VALUE[0, 0], VALUE[1, 20]]
    one = row([4], np.int32)
    assert run("rocdl.readfirstlane", "(i32) -> i32", one) is one


def test_strict_readfirstlane_reports_what_differs() -> None:
    waves = Waves(strict=True, mask=HALF_MASK)
    shared = np.where(HALF_MASK, np.float32(np.nan), np.float32(3))
    run("rocdl.readfirstlane", "(f32) -> f32", shared, waves=waves)
    assert not waves.reports
    shared[1, 40] = 1
    run("rocdl.readfirstlane", "(f32) -> f32", shared, waves=waves)
    ((kind, lanes),) = waves.reports
    assert kind == "not-uniform" and np.argwhere(lanes).tolist() == [[1, 40]]


def test_readlane_and_writelane() -> None:
    assert (run("rocdl.readlane", "(i32, i32) -> i32", VALUE, row([5], np.int32)) == VALUE[:, 5:6]).all()
    assert (run("rocdl.readlane", "(i32, i32) -> i32", VALUE, row([69], np.int32)) == VALUE[:, 5:6]).all()
    waves = Waves(mask=HALF_MASK)
    run("rocdl.readlane", "(i32, i32) -> i32", VALUE, row([4], np.int32), waves=waves)
    assert waves.reports[0][0] == "inactive-lane"
    args = (row([8], np.int32), row([3], np.int32), VALUE)
    got = run("llvm.call_intrinsic", "(i32, i32, i32) -> i32", *args, intrin="llvm.amdgcn.writelane.i32")
    assert (got[:, 3] == 8).all() and (np.delete(got, 3, 1) == np.delete(VALUE, 3, 1)).all()


@pytest.mark.parametrize("mask", (None, HALF_MASK), ids=("full", "masked"))
@pytest.mark.parametrize("shared", (False, True))
def test_bpermute(shared: bool, mask: Any) -> None:
    index = random_bits((1 if shared else 2, 64), np.int32, 3)
    waves = Waves(mask=mask)
    got = run("rocdl.ds_bpermute", "(i32, i32) -> i32", index, VALUE, waves=waves)
    active = np.ones((2, 64), bool) if mask is None else mask
    bad = []
    for w, lane in np.argwhere(active):
        source = int(index[w % len(index), lane]) // 4 % 64
        assert got[w, lane] == (VALUE[w, source] if active[w, source] else 0)
        bad += [] if active[w, source] else [[w, lane]]
    reported = [np.argwhere(lanes).tolist() for kind, lanes in waves.reports if kind == "inactive-lane"]
    assert reported == ([bad] if bad else [])


def test_permutes_of_shared_values_stay_shared() -> None:
    one = row([4], np.int32)
    index = random_bits((2, 64), np.int32, 3)
    assert run("rocdl.ds_bpermute", "(i32, i32) -> i32", index, one) is one
    assert run("rocdl.ds_swizzle", "(i32, i32) -> i32", one, one) is one
    assert dpp(0xB1, old=one, value=one) is one
    assert run("rocdl.permlane32.swap", "(i32, i32) -> !llvm.struct<(i32, i32)>", one, one) == (one, one)


@pytest.mark.parametrize("mask", (None, HALF_MASK), ids=("full", "masked"))
def test_permute_pushes(mask: Any) -> None:
    index = random_bits((2, 64), np.int32, 4)
    got = run(
        "llvm.call_intrinsic",
        "(i32, i32) -> i32",
        index,
        VALUE,
        intrin="llvm.amdgcn.ds.permute",
        waves=Waves(mask=mask),
    )
    wanted = np.zeros((2, 64), np.int32)
    for w in range(2):
        for lane in range(64):
            if mask is None or mask[w, lane]:
                wanted[w, int(index[w, lane]) // 4 % 64] = VALUE[w, lane]
    assert (got == wanted).all()


# -- DPP ---------------------------------------------------------------------------------------------------------------


def dpp(
    control: int, old: Any = OLD, value: Any = VALUE, rows: int = 15, banks: int = 15, bound: bool = True, **more: Any
) -> Any:
    attrs = {"dppCtrl": control, "rowMask": rows, "bankMask": banks, "boundCtrl": bound}
    return run("rocdl.update.dpp", "(i32, i32) -> i32", old, value, **attrs, **more)


def within_row(step: int) -> Callable[[int], int | None]:
    return lambda i: i + step if i // 16 == (i + step) // 16 else None


CONTROLS: dict[int, Callable[[int], int | None]] = {
    0x00: lambda i: i - i % 4,
    0xB1: lambda i: i ^ 1,
    0x4E: lambda i: i ^ 2,
    0x1B: lambda i: i ^ 3,
    0x93: lambda i: i - i % 4 + (i - 1) % 4,
    **{0x100 + n: within_row(n) for n in range(1, 16)},
    **{0x110 + n: within_row(-n) for n in range(1, 16)},
    **{0x120 + n: lambda i, n=n: i - i % 16 + (i - n) % 16 for n in range(1, 16)},  # type: ignore[misc]
    0x130: lambda i: i + 1 if i < 63 else None,
    0x134: lambda i: (i + 1) % 64,
    0x138: lambda i: i - 1 if i else None,
    0x13C: lambda i: (i - 1) % 64,
    0x140: lambda i: i ^ 15,
    0x141: lambda i: i ^ 7,
    0x142: lambda i: i // 16 * 16 - 1 if i >= 16 else None,
    0x143: lambda i: 31 if i >= 32 else None,
    **{0x150 + n: lambda i, n=n: i - i % 16 + n for n in range(16)},  # type: ignore[misc]
}


@pytest.mark.parametrize("control", CONTROLS, ids=hex)
def test_dpp(control: int) -> None:
    for rows, banks in ((15, 15), (0b1010, 15), (15, 0b0110), (0b0011, 0b1000)):
        for bound in (False, True):
            for mask in (None, HALF_MASK):
                got = np.broadcast_to(
                    dpp(control, rows=rows, banks=banks, bound=bound, waves=Waves(mask=mask)), (2, 64)
                )
                for w in range(2):
                    for i in range(0, 64, 3 if control & 0xF > 3 else 1):
                        if mask is not None and not mask[w, i]:
                            continue
                        source = CONTROLS[control](i)
                        if not (rows >> i // 16 & banks >> i % 16 // 4 & 1):
                            wanted = OLD[w, i]
                        elif source is not None and (mask is None or mask[w, source]):
                            wanted = VALUE[w, source]
                        else:
                            wanted = 0 if bound else OLD[w, i]
                        assert got[w, i] == wanted, (i, rows, banks, bound)


def test_dpp_reports_only_inactive_lanes_it_reads() -> None:
    waves = Waves(mask=np.stack([LANES < 32, LANES >= 0]))
    dpp(0xB1, waves=waves)
    assert not waves.reports
    dpp(0x134, waves=waves)
    ((_, lanes),) = waves.reports
    assert np.argwhere(lanes).tolist() == [[0, 31]]


@pytest.mark.parametrize("control", (0x100, 0x110, 0x120, 0x131, 0x144, 0x160, 0x200), ids=hex)
def test_dpp_controls_that_do_not_exist(control: int) -> None:
    with pytest.raises(Unsupported, match="DPP control"):
        dpp(control)


def test_dpp_moves_floats_as_bits() -> None:
    nan = np.full((1, 64), 0x7F800001, np.uint32).view(np.float32)
    got = run(
        "rocdl.update.dpp",
        "(f32, f32) -> f32",
        nan,
        nan.copy(),
        dppCtrl=0x142,
        rowMask=15,
        bankMask=15,
        boundCtrl=False,
    )
    assert got.view(np.uint32)[0, 0] == 0x7F800001


def test_dpp_and_swaps_make_the_butterfly() -> None:
    x = np.random.default_rng(5).normal(size=(2, 64)).astype(np.float32)
    types = "!llvm.struct<(i32, i32)>"
    got, wanted = x, x
    for offset in (32, 16):
        words = got.view(np.int32)
        low, high = run(f"rocdl.permlane{offset}.swap", f"(i32, i32) -> {types}", words, words)
        got = low.view(np.float32) + high.view(np.float32)
    for control in (0x128, 0x124, 0x4E, 0xB1):
        got = got + dpp(control, got, got)
    for offset in (32, 16, 8, 4, 2, 1):
        wanted = wanted + wanted[:, LANES ^ offset]
    assert same_bits(got, wanted)


# -- swizzles and swaps ------------------------------------------------------------------------------------------------


def swizzle_source(offset: int, i: int) -> int:
    if offset >= 0xE000:
        mask = offset & 31
        j = int(f"{i & 31:05b}"[::-1], 2) >> bin(mask).count("1")
        return j | i & mask | i & 32
    if offset >= 0xC000:
        turn = offset >> 5 & 31
        mask = offset & 31
        turned = i + (-turn if offset >> 10 & 1 else turn)
        return (i & mask | turned & ~mask) & 31 | i & 32
    if offset & 0x8000:
        return i & ~3 | offset >> 2 * (i & 3) & 3
    return ((i & 31 & offset | offset >> 5 & 31) ^ offset >> 10 & 31) & 31 | i & 32


SWIZZLES = (
    0x041F,
    0x081F,
    0x101F,
    0x201F,
    0x401F,
    0x7C1F,
    0x0018,
    0x03E0,
    0x801B,
    0x80B1,
    0xC020,
    0xC460,
    0xC0A3,
    0xE000,
    0xE01F,
    0xE003,
)


@pytest.mark.parametrize("offset", SWIZZLES, ids=hex)
@pytest.mark.parametrize("mask", (None, HALF_MASK), ids=("full", "masked"))
def test_swizzle(offset: int, mask: Any) -> None:
    got = run("rocdl.ds_swizzle", "(i32, i32) -> i32", VALUE, row([offset], np.int32), waves=Waves(mask=mask))
    for w in range(2):
        for i in range(64):
            if mask is None or mask[w, i]:
                source = swizzle_source(offset, i)
                assert got[w, i] == (VALUE[w, source] if mask is None or mask[w, source] else 0)


@pytest.mark.parametrize("rows", (16, 32))
def test_swaps(rows: int) -> None:
    struct = "!llvm.struct<(i32, i32)>"
    attrs = {"fi": False, "boundControl": False}
    first, second = run(f"rocdl.permlane{rows}.swap", f"(i32, i32) -> {struct}", VALUE, OLD[:1], **attrs)
    for i in range(64):
        even = i // rows % 2 == 0
        assert (first[:, i] == (VALUE[:, i] if even else OLD[0, i - rows])).all()
        assert (second[:, i] == (VALUE[:, i + rows] if even else OLD[0, i])).all()
    waves = Waves(mask=np.stack([LANES < 64, LANES != 5]))
    run(f"rocdl.permlane{rows}.swap", f"(i32, i32) -> {struct}", VALUE, OLD, waves=waves, **attrs)
    assert np.argwhere(waves.reports[0][1]).tolist() == [[1, 5 + rows]]
