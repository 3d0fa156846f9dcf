"""Registers, bit fields, byte permutes, sums over a wave, saturating conversions, assembly: known answers."""

from __future__ import annotations

import numpy as np
import pytest

from k3lab.sim.semantics.registry import Unsupported
from tests.sim.test_semantics_kit import Waves, row, run, same_bits

LANE = np.arange(64)


def intrinsic(name, signature, *values, **more):
    return run("llvm.call_intrinsic", signature, *values, intrin=f"llvm.amdgcn.{name}", **more)


def i32(*values):
    return row(values, np.int32)


def test_the_die_of_a_workgroup():
    """Workgroups go to the dies in turn; the kit's are (0 or 1, 10 and more, 20 and more) of a grid of 7 x 5 x 3."""
    waves = Waves(n=5)
    field = np.array([[20 | 31 << 11]], np.int32)
    got = intrinsic("s.getreg", "(i32) -> i32", field, waves=waves)
    numbers = [(20 * 5 + 10) * 7] * 4 + [(21 * 5 + 11) * 7 + 1]
    assert got[:, 0].tolist() == [number % 8 for number in numbers]
    two_bits = np.array([[20 | 1 << 6 | 1 << 11]], np.int32)
    assert intrinsic("s.getreg", "(i32) -> i32", two_bits, waves=waves)[:, 0].tolist() == [n % 8 >> 1 for n in numbers]
    with pytest.raises(Unsupported, match="register 4"):
        intrinsic("s.getreg", "(i32) -> i32", np.array([[4]], np.int32), waves=waves)


def test_permuted_bytes():
    high, low = i32(0x77668544), np.array([[0x33A21180]], np.int32)
    picks = {0x03020100: 0x33A21180, 0x07060504: 0x77668544, 0x0C000D0C: 0x0080FF00}
    picks |= {0x08090A0B: 0x0000FF00}  # signs: of low's halves 0x1180 and 0x33A2, of high's 0x8544 and 0x7766
    for selector, wanted in picks.items():
        got = intrinsic("perm", "(i32, i32, i32) -> i32", high, low, np.array([[selector]], np.int32))
        assert got.view(np.uint32)[0, 0] == wanted, hex(selector)


@pytest.mark.parametrize(
    ("value", "first", "width", "unsigned", "signed"),
    [
        (0x12345678, 4, 8, 0x67, 0x67),
        (0x12345688, 4, 4, 8, -8),
        (-1, 0, 0, 0, 0),
        (-1, 31, 1, 1, -1),
        (-1, 28, 8, 15, -1),
        (0x7FFFFFFF, 28, 8, 7, 7),
        (-1, 32, 33, 1, -1),
    ],
)
def test_bit_fields(value, first, width, unsigned, signed):
    for name, wanted in (("ubfe", unsigned), ("sbfe", signed)):
        got = intrinsic(f"{name}.i32", "(i32, i32, i32) -> i32", *(i32(x) for x in (value, first, width)))
        assert got[0, 0] == wanted, name


def test_aligned_words():
    high, low = i32(0x01234567), i32(0x09ABCDEF)
    for name, amount, wanted in (("bit", 4, 0x709ABCDE), ("bit", 36, 0x709ABCDE), ("bit", 0, 0x09ABCDEF)):
        assert intrinsic(f"align{name}", "(i32, i32, i32) -> i32", high, low, i32(amount))[0, 0] == wanted
    for amount, wanted in ((1, 0x6709ABCD), (5, 0x6709ABCD), (0, 0x09ABCDEF)):
        assert intrinsic("alignbyte", "(i32, i32, i32) -> i32", high, low, i32(amount))[0, 0] == wanted


def test_products_of_24_bits():
    a, b = i32(-1, 0x1000002, 3), i32(2, 5, -7)
    assert intrinsic("mul.u24.i32", "(i32, i32) -> i32", a, b)[0].tolist() == [0x1FFFFFE, 10, 3 * (2**24 - 7)]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("add", 40), ("umax", -5), ("umin", 0), ("max", 9), ("min", -5), ("and", 0), ("or", -1), ("xor", -5 ^ 1)],
)
def test_over_the_active_lanes(name, wanted):
    """Lanes 0 .. 9 hold their numbers, lane 20 holds -5; the others are not active, and their garbage is not seen."""
    values = np.where(LANE < 10, LANE, 12345).astype(np.int32)
    values[20] = -5
    mask = np.broadcast_to((LANE < 10) | (LANE == 20), (2, 64))
    got = intrinsic(f"wave.reduce.{name}.i32", "(i32, i32) -> i32", values[None], i32(0), waves=Waves(mask=mask))
    assert np.broadcast_to(got, (2, 64))[:, 63].tolist() == [wanted] * 2


def test_saturating_conversions():
    x = row([1.9, -1.9, 3e9, -3e9, np.nan, 5e9], np.float32)
    assert run("llvm.intr.fptosi.sat", "(f32) -> i32", x)[0].tolist() == [1, -1, 2**31 - 1, -(2**31), 0, 2**31 - 1]
    got = run("llvm.intr.fptoui.sat", "(f32) -> i32", x).view(np.uint32)
    assert got[0].tolist() == [1, 0, 3_000_000_000, 0, 0, 2**32 - 1]


def test_assembly():
    word = i32(*range(16))
    got = run("llvm.inline_asm", "(i32) -> f32", word, asm_string="v_cvt_off_f32_i4 $0, $1")
    assert same_bits(got[0], (np.where(np.arange(16) < 8, np.arange(16), np.arange(16) - 16) / 16).astype(np.float32))
    assert run("llvm.inline_asm", "(i32) -> i32", word, asm_string="", constraints="=v,0") is word
    with pytest.raises(Unsupported, match="v_magic"):
        run("llvm.inline_asm", "(i32) -> i32", word, asm_string="v_magic $0, $1")


def test_a_buffer_resource_as_words():
    resource = (np.array([[5 << 36]], np.int64), np.array([[1000]], np.int64))
    words = run("llvm.ptrtoint", "(!llvm.ptr<8>) -> i128", resource)
    assert words[0, 0].tolist() == [5 << 36, 1000]


def test_generic_pointers():
    address = row([0, 16, -1], np.int64)
    for space in (3, 5):
        generic = run("llvm.addrspacecast", f"(!llvm.ptr<{space}>) -> !llvm.ptr", address)
        assert generic[0, 1] - generic[0, 0] == 16 and generic[0, 2] == 0
        assert run("llvm.addrspacecast", f"(!llvm.ptr) -> !llvm.ptr<{space}>", generic).tolist() == address.tolist()
    with pytest.raises(Unsupported):
        run("llvm.addrspacecast", "(!llvm.ptr<3>) -> !llvm.ptr<1>", address)
