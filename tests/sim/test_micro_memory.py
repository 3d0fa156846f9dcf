"""Rarer accesses and operations, lowered by the real compiler, against NumPy or by what the ISA says."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from k3lab.formats import E2M1, E8M0, FP8_E4M3, bf16_bits, bf16_values
from k3lab.hardware import approx
from k3lab.lowering.ir import Module
from k3lab.sim.engine import Engine
from k3lab.sim.faults import SimFault
from k3lab.sim.launch import simulate
from k3lab.sim.memory.regions import SharedRegion
from k3lab.sim.options import Options

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from k3lab.lowering.capture import lower
from tests.sim import memory_kernels as kernels
from tests.sim.test_micro import agree, float_rows, integer_rows

LANE = np.arange(64)


@cache
def lowered(name: str, *args: Any) -> Module:
    kernel = getattr(kernels, name)
    return lower(kernel(*args) if args else kernel, 0, 0)


def run(name: str, source: Any, rows: int, *, regions: Any = (), **options: Any) -> tuple[np.ndarray, Engine]:
    out = np.zeros((rows, 64), np.int32)
    source = np.ascontiguousarray(source)
    return out, simulate(lowered(name), source, out, options=Options(**options), regions=regions)


class TestGlobal:
    def test_generic_accesses(self):
        words = np.random.default_rng(0).integers(-(2**31), 2**31, (4, 64)).astype(np.int32)
        out, _ = run("generic_accesses", words, 4)
        agree(out, [words[0], words[1], *words.ravel()[128:].reshape(2, 64)])

    def test_volatile_and_system_accesses_have_the_reach_of_pairs(self):
        """What is neither is reported where pairs are declared."""
        words, checks = np.zeros((4, 64), np.int32), {"scopes": True}
        for start, nbytes in ((0, 256), (512, 512)):
            pairs = SharedRegion("P", 0, start, nbytes, "pairs", scope="system")
            run("generic_accesses", words, 4, regions=(pairs,), **checks)
        with pytest.raises(SimFault, match="scope"):
            run("generic_accesses", words, 4, regions=(SharedRegion("P", 0, 256, 256, "pairs"),), **checks)

    def test_buffer_intrinsics(self):
        words = np.random.default_rng(1).integers(-(2**31), 2**31, 256).astype(np.int32)
        out, engine = run("buffer_intrinsics", words, 9)
        agree([out[:4].ravel()], [np.where(np.arange(256) < 250, words, 0)])
        agree(out[4:], [words[62], words[63], words[64], 0, words[5]])  # the table has 65 words
        assert engine.counts["buffer load past num_records"] == 2

    def test_packed_atomics(self):
        rng = np.random.default_rng(2)
        pairs = bf16_bits(rng.integers(-8, 9, (64, 2)).astype(np.float32))
        singles = rng.integers(-1000, 1000, 64).astype(np.float32)
        rows = [pairs.view(np.int32)[:, 0], singles.view(np.int32)]
        out, engine = run("packed_atomics", rows, 2)
        assert bf16_values(out[0, :1].view(np.uint16)).tolist() == bf16_values(pairs).sum(0).tolist()
        assert out[0, 1:2].view(np.float32)[0] == singles.sum()
        agree(out[1:], [LANE])  # each lane finds what the one before it put there
        assert out[0, 2] == 64 and out[0, 3] == 0
        assert engine.counts["buffer atomic past num_records"] == 1


class TestLocal:
    def test_a_buffer_that_ends_on_the_way_to_lds(self):
        """The offset moves both ends by 16 bytes; lanes past the end give 0."""
        words = np.arange(1, 65, dtype=np.int32)
        out, _ = run("clipped_buffer_to_lds", words, 2)
        expected = np.full(128, -1)
        expected[4:68] = np.where(LANE + 4 < 40, LANE + 5, 0)
        agree([out.ravel()], [expected])

    def test_global_to_lds(self):
        words = np.random.default_rng(3).integers(-(2**31), 2**31, 64).astype(np.int32)
        agree(run("global_to_lds", words, 1)[0], [words[::-1]])

    def test_generic_pointers(self):
        words = np.arange(64, dtype=np.int32)
        out, _ = run("generic_lds", words, 2, races=True, global_races=True)
        odd = LANE % 2 == 1
        agree(out, [np.where(odd, LANE + 1000, LANE), np.where(odd, 2 * (LANE + 1000), LANE + 1000)])
        assert words.tolist() == np.where(odd, LANE, 2 * LANE).tolist()

    def test_private_memory(self):
        words = integer_rows(4)
        words = np.concatenate([words, words[::-1] ^ 77])
        out, _ = run("private_memory", words, 2)
        agree(out, [words[(LANE + i) % 4, LANE] for i in (0, 1)])


class TestOrderAndTime:
    def test_hints_and_identity(self):
        out, _ = run("order_and_time", np.zeros(64, np.int32), 8)
        agree(out, [1, 0, 64, 0, 0, 0, 0, LANE])


class TestValues:
    def test_hardware_functions(self):
        """By the models that twin and simulator share; logarithm and root are correctly rounded."""
        a = np.abs(float_rows(5)[0])
        out, _ = run("hardware_functions", a, 5)
        normal = np.where(a < np.float32(2.0**-126), np.float32(0), a)
        with np.errstate(all="ignore"):
            wide = normal.astype(np.float64)
            expected = [approx.exp2(a), np.log2(wide).astype(np.float32), approx.rsq(a), approx.rcp(a)]
            agree(out, [*expected, np.sqrt(wide).astype(np.float32)])

    def test_bytes_and_fields(self):
        a, b = integer_rows(6)
        selector = np.random.default_rng(7).integers(0, 16, (64, 4)).astype(np.uint8)
        x, y = float_rows(8)[2:]
        out, _ = run("bytes_and_fields", [a, b, selector.view(np.int32)[:, 0], x.view(np.int32), y.view(np.int32)], 9)
        agree(out[:1], [[_permuted(*row) for row in zip(a.tolist(), b.tolist(), selector.tolist(), strict=True)]])
        shift = (b & 15).astype(np.int64)
        field = a.astype(np.int64) >> shift & 511
        agree(out[1:3], [field, np.where(field > 255, field - 512, field)])
        amount = selector.view(np.uint32)[:, 0].astype(np.uint64)
        wide = a.view(np.uint32).astype(np.uint64) << np.uint64(32) | b.view(np.uint32)
        shifted = [wide >> (amount & np.uint64(31)), wide >> ((amount & np.uint64(3)) << np.uint64(3))]
        agree(out[3:5], [word.astype(np.uint32).view(np.int32) for word in shifted])
        pair = bf16_bits(x).astype(np.uint32) | bf16_bits(y).astype(np.uint32) << 16
        agree(out[5:6], [pair.view(np.int32)])
        nibble = (a.astype(np.int64) >> 16 & 15).astype(np.int64)
        agree(out[6:7], [(np.where(nibble > 7, nibble - 16, nibble) / 16).astype(np.float32)])
        unsigned = a.view(np.uint32)
        agree(out[7:], [np.array([word], np.uint32).view(np.int32) for word in (unsigned.max(), unsigned.min())])

    def test_scaled_fp8(self):
        values = np.random.default_rng(9).standard_normal((64, 2)).astype(np.float32) * 20
        scale = (2.0 ** np.resize([0, 3, -2], 64)).astype(np.float32)
        codes = np.random.default_rng(10).integers(0, 120, (64, 4)).astype(np.uint8)
        pairs = bf16_bits(values).view(np.int32)[:, 0]
        out, _ = run("scaled_fp8", [pairs, scale.view(np.int32), codes.view(np.int32)[:, 0]], 4)
        narrow = FP8_E4M3.encode(bf16_values(bf16_bits(values)) / scale[:, None]).astype(np.int64)
        word = narrow[:, 0] | narrow[:, 1] << 8
        wide = bf16_bits(FP8_E4M3.decode(codes).astype(np.float32) * scale[:, None])
        expected = [0x11220000 | word, 0x3344 | word << 16]
        agree(out[:2], [x.astype(np.uint32).view(np.int32) for x in expected])
        agree(out[2:], np.ascontiguousarray(wide).view(np.int32).T)


def _permuted(high: int, low: int, picks: list[int]) -> int:
    """v_perm_b32, byte by byte."""
    octets = [(low >> 8 * i) & 255 for i in range(4)] + [(high >> 8 * i) & 255 for i in range(4)]
    signs = [255 if octets[i] & 128 else 0 for i in (1, 3, 5, 7)]
    table = [*octets, *signs, 0, 255, 255, 255]
    return int.from_bytes(bytes(table[pick] for pick in picks), "little", signed=True)


@pytest.mark.parametrize("select_a", range(4))
@pytest.mark.parametrize("select_b", range(4))
def test_scaled_matrices_of_fp8_and_fp4(select_a, select_b):
    """Exact where float32 is: small whole numbers, powers of two near 1."""
    rng = np.random.default_rng(4 * select_a + select_b)
    wide = FP8_E4M3.encode(rng.integers(-8, 9, (16, 128)).astype(np.float32))
    narrow = rng.integers(0, 16, (16, 128)).astype(np.uint8)
    exponents = rng.integers(125, 130, (2, 16, 4, 4)).astype(np.uint8)
    packed = narrow[:, ::2] | narrow[:, 1::2] << 4
    source = np.concatenate([wide.ravel(), packed.ravel(), exponents.ravel()])
    out = np.zeros((16, 16), np.float32)
    simulate(lowered("mixed_mfma", select_a, select_b), source, out)
    chosen = exponents[0, :, :, select_a], exponents[1, :, :, select_b]
    a = FP8_E4M3.decode(wide).astype(np.float64) * np.repeat(E8M0.decode(chosen[0]), 32, axis=1)
    b = E2M1.decode(narrow).astype(np.float64) * np.repeat(E8M0.decode(chosen[1]), 32, axis=1)
    assert np.array_equal(out, a @ b.T)
