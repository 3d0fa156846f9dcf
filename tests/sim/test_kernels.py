"""Textbook kernels in FlyDSL, lowered by the real compiler and simulated, against NumPy and torch."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from k3lab.lowering.ir import Module
from k3lab.sim.faults import SimFault
from k3lab.sim.launch import simulate
from k3lab.sim.options import Options

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from k3lab.formats import bf16_bits, bf16_values
from k3lab.hardware import mfma
from k3lab.lowering.capture import lower
from tests.sim import kernels

SCHEDULES = [Options(), *(Options(schedule="random", seed=seed) for seed in range(3)), Options(races=True)]


@cache
def lowered(name: str, hosts: int) -> Module:
    return lower(getattr(kernels, name), *[0] * hosts)


def scalar_reduction(row: np.ndarray) -> np.float32:
    parts = []
    for thread in range(128):
        total = np.float32(0)
        for value in row[thread::128]:
            total = total + value
        parts.append(total)
    whole = np.float32(0)
    for part in parts:
        whole = whole + part
    return whole


@pytest.mark.parametrize("options", SCHEDULES, ids=str)
class TestEverySchedule:
    def test_reduction(self, options):
        rows = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
        out = np.zeros(3, np.float32)
        simulate(lowered("reduction", 4), rows, out, 1000, 3, options=options)
        assert out.tolist() == [scalar_reduction(row) for row in rows]

    def test_prefix_scan(self, options):
        values = np.random.default_rng(1).integers(-100, 100, 256).astype(np.int32)
        out = np.zeros(256, np.int32)
        simulate(lowered("scan", 2), values, out, options=options)
        assert np.array_equal(out, np.cumsum(values))

    def test_histogram_with_atomics(self, options):
        values = np.random.default_rng(2).integers(0, 10, 1000).astype(np.int32)
        out = np.zeros(10, np.int32)
        simulate(lowered("histogram", 4), values, out, 1000, 16, options=options)
        assert np.array_equal(out, np.bincount(values, minlength=10))

    def test_producer_and_consumer(self, options):
        data, flag, out = np.zeros(64, np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32)
        simulate(lowered("exchange", 4), data, flag, out, 7, options=options)
        assert np.array_equal(out, 3 * np.arange(64) + 1) and flag[0] == 7

    def test_gemm_with_mfma(self, options):
        rng = np.random.default_rng(3)
        a, b = (bf16_bits(rng.standard_normal((n, 96)).astype(np.float32)) for n in (16, 48))
        out = np.zeros((16, 48), np.float32)
        simulate(lowered("gemm", 6), a, b, out, 96, 48, 3, options=options)
        left, right = (bf16_values(m).reshape(-1, 3, 32).swapaxes(0, 1) for m in (a, b))
        assert np.array_equal(out, mfma.get("fused").chain(left, right))


class TestHolding:
    @pytest.mark.parametrize("held", [{0}, {1}])
    def test_a_workgroup_that_comes_last_changes_nothing(self, held):
        data, flag, out = np.zeros(64, np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32)
        simulate(lowered("exchange", 4), data, flag, out, 7, options=Options(hold=frozenset(held)))
        assert np.array_equal(out, 3 * np.arange(64) + 1)


class TestFaults:
    def test_a_flag_that_never_comes_is_a_deadlock(self):
        data, flag, out = np.zeros(64, np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32)
        with pytest.raises(SimFault, match=r"deadlock: no wave can go on: .*workgroup 1 polls in vain at .*kernels.py"):
            simulate(lowered("never", 4), data, flag, out, 7)

    def test_out_of_bounds_names_line_and_lane(self):
        out = np.zeros(10, np.int32)
        values = np.array([3, 12], np.int32)
        with pytest.raises(
            SimFault, match=r"out-of-bounds: .*argument 1 \+ 48 \(buffer has 40 bytes\).*kernels.py:\d+"
        ):
            simulate(lowered("histogram", 4), values, out, 2, 1)

    def test_a_buffer_load_past_num_records_gives_zero_and_is_counted(self):
        data, out = np.arange(1, 65, dtype=np.int32), np.zeros(64, np.int32)
        engine = simulate(lowered("clamped", 2), data, out)
        assert out.tolist() == [*range(1, 17), *[0] * 48]
        assert engine.counts["buffer load past num_records"] == 1

    @pytest.mark.parametrize(("name", "kind"), [("unwritten", "uninitialised"), ("uneven", "barrier-divergence")])
    def test_planted_faults_are_found(self, name, kind):
        with pytest.raises(SimFault, match=kind):
            simulate(lowered(name, 1), np.zeros(128, np.int32))

    def test_a_race_is_found_and_its_mended_twin_is_silent(self):
        out = np.zeros(128, np.int32)
        with pytest.raises(SimFault, match=r"race: load of 4 bytes of LDS that another wave touches"):
            simulate(lowered("racing", 1), out, options=Options(races=True))
        simulate(lowered("mended", 1), out, options=Options(races=True))
        assert out.tolist() == [(i + 64) % 128 for i in range(128)]


@pytest.mark.parametrize(
    ("name", "hosts", "options"), [("racing", 1, Options(races=True)), ("never", 4, Options())], ids=str
)
def test_the_readme_shows_what_is_reported(name, hosts, options):
    arrays = [np.zeros(n, np.int32) for n in (128, 1, 64)][: max(1, hosts - 1)]
    with pytest.raises(SimFault) as caught:
        simulate(lowered(name, hosts), *arrays, *([7] if hosts > 1 else []), options=options)
    root = Path(__file__).parent.parent.parent
    said = str(caught.value).replace(f"{root}/", "")
    assert " ".join(said.split()) in " ".join((root / "README.md").read_text(encoding="utf-8").split())
