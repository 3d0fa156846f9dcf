"""What the lanes of a wave do together."""

from __future__ import annotations

import re

import numpy as np
import pytest

from k3lab.sim.faults import SimFault

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from tests.device import device_kernels as kernels
from tests.device.micro import LANE, agree, floats, lowered, run, words


def test_uniform_values():
    rows = words(1, 5, 64)
    rows[0], rows[4] = -77, 41
    rows[1:3] = np.full(64, -(2**40) + 12345, np.int64).view(np.int32).reshape(2, 64)
    out = run("uniforms", rows, 6)
    assert (out[:2].ravel().view(np.int64) == -(2**40) + 12345 + LANE).all()
    agree(out[2:], [-77 + LANE, rows[3, 0], rows[3, 63], rows[3, 41]])


def test_a_value_that_differs_between_lanes_is_reported():
    with pytest.raises(SimFault, match=r"not-uniform.*device_kernels\.py"):
        run("not_uniform", LANE.astype(np.int32), 1)


def test_ballots():
    a, b = words(2, 2, 64)
    b[:8] = a[:8]
    votes = np.array([sum(1 << int(lane) for lane in LANE if a[lane] < b[lane])], np.uint64).view(np.int32)
    agree(run("ballots", [a, b], 6), [*votes, -1, -1, 0, 0])


def turned(control: int) -> np.ndarray:
    """The lane that each lane reads, by the ISA's list of DPP controls."""
    row, place = LANE & ~15, LANE & 15
    if control < 0x100:
        return (LANE & ~3) | (control >> 2 * (LANE & 3)) & 3
    if control >> 4 == 0x12:
        return row + (place - (control & 15)) % 16
    return {0x140: row + 15 - place, 0x141: (LANE & ~7) + 7 - (LANE & 7)}[control]


def test_dpp_keeps_the_type_and_every_bit():
    a, x = words(3, 64), words(4, 64)
    x[:4] = [0x7F800001, 0x7FA00000, -1, 0]  # NaN payloads
    sources = [turned(control) for control in kernels.CONTROLS]
    near = sources[: len(kernels.wave.NEAR)]
    out = run("turns", [a, x], len(sources) + len(near))
    agree(out, [*(a[s] for s in sources), *(x[s] for s in near)])


def test_near_controls_are_xor_once_rows_repeat():
    """After the step for 8 a row has period 8, after that for 4 period 4: turning is xor then."""
    for control, distance in zip(kernels.wave.NEAR, (8, 4, 2, 1), strict=True):
        value = LANE % (2 * distance)
        assert (value[turned(control)] == value[LANE ^ distance]).all()


def test_swaps():
    a, b = words(5, 2, 64)
    odd16, odd32 = LANE & 16 != 0, LANE & 32 != 0
    expected = [np.where(odd16, b[LANE ^ 16], a), np.where(odd16, b, a[LANE ^ 16])]
    expected += [np.where(odd32, b[LANE ^ 32], a), np.where(odd32, b, a[LANE ^ 32])]
    expected += [a[LANE & ~16], a[LANE | 16], a[LANE & ~32], a[LANE | 32]]
    agree(run("swaps", [a, b], 8), expected)


def butterfly(x: np.ndarray, offsets: tuple[int, ...], combine: np.ufunc = np.add) -> np.ndarray:
    with np.errstate(all="ignore"):
        for offset in offsets:
            x = combine(x, x[LANE ^ offset])
    return x


FULL = (32, 16, 8, 4, 2, 1)


@pytest.mark.parametrize("seed", range(8))
def test_butterflies_go_from_far_to_near(seed):
    """Bit for bit the stated order, where every other order of the offsets gives other bits in some lane."""
    x = floats(10 + seed, 64)
    expected = [butterfly(x, FULL[1:]), butterfly(x, FULL)]
    expected += [butterfly(x, FULL[1:], np.maximum), butterfly(x, FULL, np.maximum)]
    agree(run("butterflies", [x], 4), expected)
    if seed == 0:
        others = (FULL[::-1], (16, 32, 8, 4, 2, 1), (32, 16, 8, 4, 1, 2), (32, 16, 4, 8, 2, 1), (32, 8, 16, 4, 2, 1))
        assert all((butterfly(x, other) != expected[1]).any() for other in others)


@pytest.mark.parametrize("lane", [0, 17, 40, 63])
def test_a_nan_reaches_every_lane_it_is_summed_with(lane):
    x = floats(20, 64)
    x[lane] = np.nan
    expected = [butterfly(x, FULL[1:]), butterfly(x, FULL)]
    expected += [butterfly(x, FULL[1:], np.maximum), butterfly(x, FULL, np.maximum)]
    assert np.isnan(expected[1]).all() and np.isnan(expected[0]).sum() == 32
    agree(run("butterflies", [x], 4), expected)


def test_infinities_and_zeros():
    x = np.zeros(64, np.float32)
    x[:32] = -0.0
    agree(run("butterflies", [x], 2 + 2)[:2], [np.where(LANE < 32, np.float32(-0.0), np.float32(0)), np.zeros(64, "f")])
    x[3], x[50] = np.inf, -np.inf
    expected = [butterfly(x, FULL[1:]), butterfly(x, FULL)]
    agree(run("butterflies", [x], 4)[:2], expected)


def test_a_butterfly_does_not_go_through_lds():
    text = lowered("butterflies").text
    assert not re.findall(r"rocdl\.ds_\w+", text)
    assert [text.count(f'"rocdl.{name}"') for name in ("permlane32.swap", "permlane16.swap", "update.dpp")] == [
        2,
        4,
        16,
    ]
