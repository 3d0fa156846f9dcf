"""One kernel for each kind of operation, lowered by the real compiler, against NumPy or by what the ISA says."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from k3lab.errors import BadInput
from k3lab.formats import E2M1, E8M0, FP8_E4M3, bf16_bits, bf16_values
from k3lab.lowering.ir import Module
from k3lab.sim.engine import Engine
from k3lab.sim.faults import SimFault
from k3lab.sim.launch import simulate
from k3lab.sim.memory.spaces import SPACING_BITS
from k3lab.sim.options import Options

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from k3lab.lowering.capture import lower
from tests.sim import micro_kernels as kernels
from tests.sim import test_micro_kit as kit

LANE = np.arange(64)
EDGES = np.array([0, 1, -1, 2, -2, 31, 32, 2**31 - 1, -(2**31), 12345, -54321], np.int64)
FLOAT_EDGES = np.array(
    [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3.4028235e38, 2.0**-126, 1 / 3, 7e7], np.float32
)


@cache
def lowered(name: str) -> Module:
    return lower(getattr(kernels, name), 0, 0)


def run(name: str, source: Any, rows: int, *more: Any, dtype: Any = np.int32, **options: Any) -> np.ndarray:
    """The rows of 64 words that the kernel writes."""
    out = np.zeros((rows, 64), dtype)
    simulated(name, source, out, *more, **options)
    return out


def simulated(name: str, source: Any, out: np.ndarray, *more: Any, **options: Any) -> Engine:
    with np.errstate(all="ignore"):
        return simulate(lowered(name), np.ascontiguousarray(source), out, *more, options=Options(**options))


def agree(got: np.ndarray, expected: Any, what: str = "") -> None:
    """Row by row, bit by bit; NaNs are alike."""
    for row, (mine, wanted) in enumerate(zip(got, expected, strict=True)):
        wanted = np.broadcast_to(np.asarray(wanted), mine.shape)
        if wanted.dtype == np.float32:
            mine = mine.view(np.float32)
            wrong = (mine.view(np.int32) != wanted.view(np.int32)) & ~(np.isnan(mine) & np.isnan(wanted))
        else:
            wrong = mine != wanted.astype(mine.dtype)
        lane = int(wrong.argmax())
        assert not wrong.any(), f"{what} row {row} lane {lane}: expected {wanted[lane]!r}, got {mine[lane]!r}"


def integer_rows(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = rng.integers(-(2**31), 2**31, (2, 64))
    rows[0, :22], rows[1, :22] = np.tile(EDGES, 2), np.repeat(EDGES, 2)
    return rows.astype(np.int32)


def float_rows(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rows = (rng.standard_normal((4, 64)) * 2.0 ** rng.integers(-20, 20, (4, 64))).astype(np.float32)
    rows[0, :39], rows[1, :39] = np.tile(FLOAT_EDGES, 3), np.repeat(FLOAT_EDGES, 3)
    return rows


class TestArithmetic:
    def test_integers(self):
        """FlyDSL's `//` rounds down, and its `%` is what truncated division leaves."""
        a, b = integer_rows()
        b = np.where((b == 0) | (b == -1), 3, b).astype(np.int32)
        low, ua, ub = b & 31, a.view(np.uint32), b.view(np.uint32)
        expected = [a + b, a - b, a * b, a & b, a | b, a ^ b, a << low, a >> low, (ua >> low.view(np.uint32))]
        expected += [a // b, np.fmod(a, b), ua // ub, ua % ub, np.minimum(a, b), np.maximum(a, b)]
        expected += [np.where(a < b, a, b), np.where(ua < ub, a, b), np.where(a == b, 1, 2), -a]
        expected = [row.view(np.int32) if row.dtype == np.uint32 else row for row in expected]
        agree(run("integers", [a, b], 19), expected)

    def test_long_integers(self):
        a, b = integer_rows(1)
        wide_a, wide_b = a.astype(np.int64), b.astype(np.int64)
        product = wide_a * wide_b
        expected = [product, wide_a + (wide_b << 31), product >> 17, wide_a - wide_b]
        agree(run("long_integers", [a, b], 4, dtype=np.int64), expected)

    def test_floats(self):
        a, b = float_rows()[:2]
        with np.errstate(all="ignore"):
            fused = (a.astype(np.longdouble) * b + a).astype(np.float32)
            expected = [a + b, a - b, a * b, a / b, np.maximum(a, b), np.minimum(a, b), -a, fused]
        zeros = (a == 0) & (b == 0)  # of two zeros the larger is +0
        expected[4] = np.where(zeros, np.where(np.signbit(a) & np.signbit(b), a, np.float32(0)), expected[4])
        expected[5] = np.where(zeros, np.where(np.signbit(a) | np.signbit(b), -np.float32(0), a), expected[5])
        expected += [a < b, a <= b, a == b, a != b]
        agree(run("floats", [a, b], 12), expected)

    def test_floats_to_integers_and_back(self):
        values = np.concatenate([np.linspace(-5, 5, 41), [2.0**30, -(2.0**31), 2147483520.0], [0.5] * 20])
        numbers = np.resize(EDGES, 64).astype(np.int32)
        rows = [values.astype(np.float32).view(np.int32), numbers]
        out = run("small_floats_to_integers", rows, 3)
        whole = np.trunc(values.astype(np.float32)).astype(np.int64)
        agree(out, [whole.astype(np.int32), whole.astype(np.int32), numbers.astype(np.float32)])


class TestBits:
    def test_vectors(self):
        a, b = integer_rows(2)
        pair = np.stack([a, b], axis=1)
        halves, octets = pair.view(np.int16), pair.view(np.int8)
        turned = np.ascontiguousarray(halves[:, [3, 0, 1, 2]]).view(np.int32)
        mixed = np.ascontiguousarray(octets[:, [7, 0, 6, 1]]).view(np.int32)[:, 0]
        wide = (pair.view(np.int64)[:, 0] >> 16).astype(np.int32)
        agree(run("vectors", [a, b], 6), [turned[:, 0], turned[:, 1], mixed, wide, a, b])

    def test_bf16_conversions(self):
        values = float_rows(3)[0]
        values[40:44] = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF], np.uint32).view(np.float32)  # ties
        pairs = np.random.default_rng(4).integers(0, 2**16, (64, 2)).astype(np.uint16)
        pairs[:4] = [[0x7F80, 0xFF80], [0, 0x8000], [1, 0x8001], [0x7F7F, 0x7F7F]]
        low, high = bf16_values(pairs[:, 0]), bf16_values(pairs[:, 1])
        with np.errstate(all="ignore"):
            total = bf16_values(bf16_bits(low + high))
        out = run("bf16_conversions", [values.view(np.int32), pairs.view(np.int32)[:, 0]], 5)
        numbers = ~np.isnan(values)
        agree(out[:1, numbers], [bf16_bits(values)[numbers]])
        agree(out[1:4], [low, high, total])
        assert (out[0, np.isnan(values)] & 0x7FFF > 0x7F80).all()

    def test_moved_bf16_keeps_every_bit(self):
        bits = np.random.default_rng(5).integers(0, 2**16, 256).astype(np.uint16)
        bits[:6] = [0x7F81, 0xFF81, 0x7FC0, 0x7FFF, 0xFFBF, 0x7FA5]  # signalling and quiet NaNs
        out = np.zeros(384, np.uint16)
        simulated("bf16_moves", bits, out)
        expected = np.concatenate([bits[:64], bits.reshape(64, 4)[:, ::-1].ravel(), bits[:64]])
        wrong = np.flatnonzero(out != expected)
        assert not len(wrong), f"half-word {wrong[0]}: {out[wrong[0]]:#x}, not {expected[wrong[0]]:#x}"


def dpp_source(control: int, lane: int) -> int | None:
    """The lane a DPP control reads for `lane`, by the ISA's list of controls; None if there is none."""
    row, place = lane & ~15, lane & 15
    match control >> 4, control & 15:
        case (kind, _) if kind < 0x10:
            return (lane & ~3) | (control >> 2 * (lane & 3)) & 3
        case 0x10, n:
            return row + place + n if place + n < 16 else None
        case 0x11, n:
            return row + place - n if place - n >= 0 else None
        case 0x12, n:
            return row + (place - n) % 16
    named = {0x130: lane + 1, 0x138: lane - 1, 0x140: row + 15 - place, 0x141: (lane & ~7) + 7 - (lane & 7)}
    named |= {0x142: row - 1, 0x143: 31 if lane >= 32 else -1}
    return named[control] if 0 <= named[control] < 64 else None


class TestAcrossLanes:
    @pytest.mark.parametrize("place", range(len(kernels.DPP_CONTROLS)))
    def test_dpp_controls(self, place):
        control = kernels.DPP_CONTROLS[place]
        a, old = integer_rows(6)
        out = run("dpp_patterns", [a, old], 28)
        sources = [dpp_source(control, lane) for lane in range(64)]
        zero = [0 if s is None else a[s] for s in sources]
        kept = [old[lane] if s is None else a[s] for lane, s in enumerate(sources)]
        agree(out[[place, place + len(kernels.DPP_CONTROLS)]], [zero, kept], f"control {control:#x}")

    def test_dpp_masks(self):
        a, old = integer_rows(6)
        out = run("dpp_patterns", [a, old], 28)[-2:]
        moved = a[LANE ^ 1]
        agree(out, [np.where(LANE // 16 % 2 == 0, moved, old), np.where(LANE // 4 % 4 < 2, moved, old)])

    def test_swaps_permutes_and_votes(self):
        a = integer_rows(7)[0]
        b = np.random.default_rng(8).permutation(64).astype(np.int32)
        votes = sum(1 << int(lane) for lane in LANE if a[lane] < b[lane])
        low, high = np.array([votes], np.uint64).view(np.int32)
        odd16, odd32 = LANE & 16 != 0, LANE & 32 != 0
        expected = [np.where(odd16, b[LANE ^ 16], a), np.where(odd16, b, a[LANE ^ 16])]
        expected += [np.where(odd32, b[LANE ^ 32], a), np.where(odd32, b, a[LANE ^ 32])]
        agree(run("crossing", [a, b], 9), [*expected, a[b], 77, a[5], low, high])

    def test_xor_shuffles(self):
        a = integer_rows(9)[0]
        agree(run("xor_shuffles", [a], 9), [a[LANE ^ distance] for distance in kernels.XOR_DISTANCES])

    def test_other_shuffles(self):
        """Up is lowered without a lower bound: the first lanes read the last ones."""
        a, b = integer_rows(10)[0], np.random.default_rng(11).integers(0, 64, 64).astype(np.int32)
        down = a[np.where(LANE > 58, LANE, LANE + 5)]
        agree(run("other_shuffles", [a, b], 3), [a[LANE - 3], down, a[b]])

    def test_a_value_that_differs_between_lanes_is_not_made_uniform_silently(self):
        with pytest.raises(SimFault, match=r"not-uniform.*micro_kernels.py"):
            run("not_uniform", LANE.astype(np.int32), 1)
        agree(run("not_uniform", LANE.astype(np.int32) + 3, 1, strict=False), [3])


class TestMemory:
    def test_unaligned_lds(self):
        words = np.random.default_rng(12).integers(-(2**31), 2**31, (4, 64)).astype(np.int32)
        octets = np.concatenate([words.T.ravel().view(np.uint8), np.zeros(64, np.uint8)])
        expected = np.stack([octets[15 * lane : 15 * lane + 16].view(np.int32) for lane in LANE], axis=1)
        agree(run("unaligned_lds", words, 4), expected)

    def test_buffer_loads(self):
        words = np.random.default_rng(13).integers(-(2**31), 2**31, 70).astype(np.int32)
        octets, halves = words.view(np.int8), words.view(np.int16)
        expected = [octets[:64], halves[:64], bf16_values(halves[:64].view(np.uint16)), words[:64]]
        for count in (2, 3, 4):
            expected += [words[LANE + i] for i in range(count)]
        agree(run("buffer_loads", words, 13), expected)

    def test_a_buffer_that_ends_within_a_vector(self):
        words = np.arange(1, 257, dtype=np.int32)
        inside = np.where(np.arange(256) < 102, words, 0).reshape(64, 4).T
        out = run("clipped_buffer", words, 8)
        agree(out[:4], inside)
        stored = out[4:].ravel()
        agree([stored], [np.where(np.arange(256) < 102, words + 1, 0)])

    def test_buffer_to_lds(self):
        """Lanes of 16 bytes lie in LDS one after the other."""
        words = np.random.default_rng(14).integers(-(2**31), 2**31, 256).astype(np.int32)
        agree(run("buffer_to_lds", words, 4), words.reshape(64, 4).T)

    def test_a_table_of_addresses(self):
        peers = np.random.default_rng(15).integers(-(2**31), 2**31, (3, 64)).astype(np.int32)
        table = (np.arange(3) + 3) << SPACING_BITS
        out = run("pointer_table", table, 1, *peers)
        agree(out, [peers[LANE % 3, LANE]])

    def test_atomics(self):
        values = np.random.default_rng(16).integers(-1000, 1000, 64).astype(np.int32)
        out = run("atomics", values, 3)
        counters = [values.sum(), max(0, values.max()), min(0, values.min())]
        counters += [np.bitwise_or.reduce(values), np.bitwise_xor.reduce(values)]
        assert out[0, :5].tolist() == counters
        assert out[0].view(np.float32)[5] == values.sum()
        before = np.cumsum(values) - values
        first = np.where(LANE < 2, 0, LANE % 2 + 1)
        assert out[0, 6:8].tolist() == [1, 2]
        agree(out[1:], [before, first])

    def test_an_atomic_sum_of_bf16_is_one_of_values(self):
        """1 + 64 times 2^-7, each sum rounded."""
        build = kit.Build(kit.GLOBAL)
        step = build.constant(kit.BF16, 2.0**-7)
        build.op("llvm.atomicrmw", build.params[0], step, gives=kit.BF16, bin_op=11)
        build.ret()
        out = bf16_bits(np.ones(1, np.float32))
        kit.run(build.module(groups=1), out)
        assert bf16_values(out)[0] == 1.5


class TestNarrow:
    def test_fp8(self):
        ml = pytest.importorskip("ml_dtypes")
        a, b = float_rows(17)[:2]
        a, b = (np.where(np.isinf(x) | np.isnan(x), np.float32(1), x) for x in (a, b))
        a[40:48] = [448, 464, 464.5, 480, -465, 0.0625, 2.0**-10, 3 * 2.0**-10]  # overflow and ties
        codes = np.random.default_rng(18).integers(-(2**31), 2**31, 64).astype(np.int32)
        out = run("fp8_conversions", [a.view(np.int32), b.view(np.int32), codes], 6)
        with np.errstate(all="ignore"):
            ca, cb = (x.astype(ml.float8_e4m3fn).view(np.uint8) for x in (a, b))
        expected = np.stack([ca, cb, cb, ca], axis=1)
        got = out[0].view(np.uint8).reshape(64, 4)
        wrong = np.argwhere(got != expected)
        assert not len(wrong), [(a[l], b[l], got[l], expected[l]) for l, _ in wrong[:1]]
        inside = np.abs(a) <= 448
        assert (FP8_E4M3.encode(a)[inside] == ca[inside]).all()
        octets = codes.view(np.uint8).reshape(64, 4)
        agree(out[1:], [*FP8_E4M3.decode(octets).T.astype(np.float32), FP8_E4M3.decode(octets[:, 2])])

    def test_fp4(self):
        a, b = (np.random.default_rng(19).standard_normal((2, 64)) * 3).astype(np.float32)
        a[:8] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7]  # ties at scale 1, and what saturates
        power = np.resize([0, 0, -2, 3], 64)
        scale = (2.0**power).astype(np.float32)
        codes = np.random.default_rng(20).integers(-(2**31), 2**31, 64).astype(np.int32)
        out = run("fp4_conversions", [a.view(np.int32), b.view(np.int32), codes, scale.view(np.int32)], 5)
        pair = E2M1.encode(a / scale) | E2M1.encode(b / scale) << 4
        word = 0x00540010 | pair.astype(np.int64) << 8 | pair.astype(np.int64) << 24
        rounded = [bf16_values(bf16_bits(x)) / scale for x in (a, b)]
        packed = (E2M1.encode(rounded[0]) | E2M1.encode(rounded[1]) << 4).astype(np.int64) << 16
        octets = codes.view(np.uint8).reshape(64, 4)
        wide = [E2M1.decode(nibble).astype(np.float32) * scale for nibble in (octets[:, 3] & 15, octets[:, 3] >> 4)]
        half = [bf16_bits(E2M1.decode(n).astype(np.float32) * scale).astype(np.int64) for n in _nibbles(octets[:, 1])]
        agree(out, [*(x.astype(np.uint32).view(np.int32) for x in (word, packed)), *wide, _word(*half)])


def _nibbles(octets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return octets & 15, octets >> 4


def _word(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return (low | high << 16).astype(np.uint32).view(np.int32)


class TestMatrix:
    def test_bf16_with_whole_numbers_is_exact(self):
        rng = np.random.default_rng(21)
        a, b = (rng.integers(-9, 10, (16, 32)).astype(np.float32) for _ in range(2))
        c = rng.integers(-1000, 1000, (16, 16)).astype(np.float32)
        assert_equal(self.product(a, b, c), a.astype(np.float64) @ b.T + c)

    def test_bf16_is_near_float64(self):
        rng = np.random.default_rng(22)
        a, b = (bf16_values(bf16_bits(rng.standard_normal((16, 32)).astype(np.float32))) for _ in range(2))
        c = rng.standard_normal((16, 16)).astype(np.float32)
        error = np.abs(self.product(a, b, c) - (a.astype(np.float64) @ b.T + c)).max()
        assert 0 < error < 4e-6, error

    @staticmethod
    def product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        operands = np.concatenate([bf16_bits(a).ravel(), bf16_bits(b).ravel()]).view(np.uint8)
        out = np.zeros((16, 16), np.float32)
        simulated("mfma_bf16", np.concatenate([operands, c.view(np.uint8).ravel()]), out)
        return out

    def test_scaled_fp4_is_exact_where_float32_is(self):
        rng = np.random.default_rng(23)
        codes = rng.integers(0, 16, (2, 16, 128)).astype(np.uint8)
        exponents = rng.integers(125, 130, (2, 16, 4)).astype(np.uint8)
        packed = codes[..., ::2] | codes[..., 1::2] << 4
        out = np.zeros((16, 16), np.float32)
        simulated("mfma_fp4", np.concatenate([packed.ravel(), exponents.ravel()]), out)
        values = E2M1.decode(codes).astype(np.float64) * np.repeat(E8M0.decode(exponents), 32, axis=2)
        assert_equal(out, values[0] @ values[1].T)


def assert_equal(got: np.ndarray, expected: np.ndarray) -> None:
    wrong = np.argwhere(got != expected)
    assert not len(wrong), (
        f"{len(wrong)} differ, first at {wrong[0]}: {got[tuple(wrong[0])]}, not {expected[tuple(wrong[0])]}"
    )


def test_unknown_operations_are_all_listed_with_their_lines():
    with pytest.raises(BadInput, match=r"got 2 others: rocdl.sin at .*\.py:\d+:\d+; rocdl.cos at .*\.py:\d+:\d+"):
        run("unknown_operations", np.zeros((1, 64), np.float32), 1)
