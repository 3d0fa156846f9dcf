"""Textbook kernels, and a planted race in one of them, against NumPy and torch."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from k3lab.formats import bf16_bits, bf16_values
from k3lab.hardware import mfma
from k3lab.lowering.ir import Module
from k3lab.sim.faults import SimFault
from k3lab.sim.launch import simulate
from k3lab.sim.memory.spaces import SPACING_BITS
from k3lab.sim.options import Options

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from k3lab.lowering.capture import lower
from tests.sim import textbook_kernels as kernels

SCHEDULES = [Options(races=True), *(Options(schedule="random", seed=seed) for seed in range(2))]
every_schedule = pytest.mark.parametrize("options", SCHEDULES, ids=["races", "random 0", "random 1"])


@cache
def lowered(name: str, hosts: int) -> Module:
    return lower(getattr(kernels, name), *[0] * hosts)


def near(got: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    error = np.abs(got - expected)
    at = np.unravel_index(error.argmax(), error.shape)
    assert error[at] <= tolerance, f"at {at}: {got[at]!r}, not {expected[at]!r}"


def rows_of(seed: int, rows: int = 3) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, kernels.ROW)) * 4).astype(np.float32)


@every_schedule
class TestEverySchedule:
    def test_softmax(self, options):
        torch = pytest.importorskip("torch")
        rows = rows_of(0)
        out = np.zeros_like(rows)
        simulate(lowered("softmax", 3), rows, out, 3, options=options)
        near(out, torch.softmax(torch.from_numpy(rows), dim=1).numpy(), 1e-6)

    def test_layer_norm(self, options):
        torch = pytest.importorskip("torch")
        rows, gain = rows_of(1), rows_of(2)[0]
        out = np.zeros_like(rows)
        simulate(lowered("layer_norm", 4), rows, gain, out, 3, options=options)
        normal = torch.nn.functional.layer_norm(torch.from_numpy(rows), (kernels.ROW,), torch.from_numpy(gain))
        near(out, normal.numpy(), 2e-5)

    def test_tiled_gemm(self, options):
        rng = np.random.default_rng(3)
        a, b = (bf16_bits(rng.standard_normal((n, 160)).astype(np.float32)) for n in (64, 96))
        out = np.zeros((64, 96), np.float32)
        simulate(lowered("tiled_gemm", 7), a, b, out, 160, 96, 3, 2, options=options)
        near(out, bf16_values(a).astype(np.float64) @ bf16_values(b).T, 2e-5)
        left, right = (bf16_values(m).reshape(-1, 5, 32).swapaxes(0, 1) for m in (a, b))
        assert np.array_equal(out, mfma.get("fused").chain(left, right))

    def test_transpose(self, options):
        words = np.random.default_rng(4).integers(-(2**31), 2**31, (64, 96)).astype(np.int32)
        out = np.zeros((96, 64), np.int32)
        simulate(lowered("transpose", 6), words, out, 64, 96, 3, 2, options=options)
        assert np.array_equal(out, words.T)

    def test_all_reduce_of_eight_ranks(self, options):
        """Two rounds on the same buffers: every rank gets the same bits, those of a sum in order of rank."""
        inputs, flags, outputs = buffers = [], [], []
        for _ in range(kernels.RANKS):
            inputs.append(np.zeros(kernels.PART, np.float32))
            flags.append(np.zeros(kernels.RANKS, np.int32))
            outputs.append(np.zeros(kernels.PART, np.float32))
        tables = [(np.arange(8) + 4 + 8 * i) << SPACING_BITS for i in range(3)]
        for tag in (1, 2):
            parts = np.random.default_rng(tag).standard_normal((8, kernels.PART)).astype(np.float32)
            for held, part in zip(inputs, parts, strict=True):
                held[:] = part
            simulate(lowered("all_reduce", 4), *tables, tag, *(x for group in buffers for x in group), options=options)
            expected = np.float32(0)
            for part in parts:
                expected = expected + part
            for rank, out in enumerate(outputs):
                assert np.array_equal(out, expected), (tag, rank, np.flatnonzero(out != expected)[:4])


class TestRace:
    def test_reusing_a_slot_without_a_barrier_is_reported_with_its_line(self):
        rows = rows_of(5)
        with pytest.raises(SimFault, match=r"race: store of 4 bytes of LDS.*textbook_kernels.py:\d+") as caught:
            simulate(lowered("hasty_softmax", 3), rows, np.zeros_like(rows), 3, options=Options(races=True))
        line = caught.value.finding.where.loc.line
        source = Path(kernels.__file__).read_text(encoding="utf-8").splitlines()[line - 1]
        assert "block_all" in source or "slots[wave] = x" in source, source

    def test_in_the_default_order_it_goes_unnoticed(self):
        assert self.right("hasty_softmax", Options())

    def test_some_random_orders_of_a_workgroup_s_waves_give_wrong_answers(self):
        options = [Options(schedule="random", seed=seed) for seed in range(12)]
        assert all(self.right("softmax", option) for option in options)
        wrong = [option.seed for option in options if not self.right("hasty_softmax", option)]
        assert wrong, "no order lets a wave store its sum while another reads the maxima"

    @staticmethod
    def right(name: str, options: Options) -> bool:
        rows = rows_of(6)
        out, expected = np.zeros_like(rows), np.zeros_like(rows)
        simulate(lowered(name, 3), rows, out, 3, options=options)
        simulate(lowered("softmax", 3), rows, expected, 3)
        return np.array_equal(out, expected)
