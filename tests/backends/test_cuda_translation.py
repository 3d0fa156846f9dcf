"""Small kernels translated and run as fibers on this processor, against the simulator; and what is refused."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from k3lab.backends.cuda import hostbuild
from k3lab.backends.cuda.emit import translate
from k3lab.backends.cuda.residency import Limits, check_shape, per_unit
from k3lab.errors import BackendUnavailable, BadInput, InternalFault
from k3lab.lowering.ir import Module
from k3lab.lowering.parse import parse
from k3lab.sim.launch import simulate

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from k3lab.lowering.capture import lower
from tests.sim import kernels

fibers = pytest.mark.skipif(not hostbuild.compiler(), reason="needs a C++ compiler")


@cache
def lowered(name: str) -> Module:
    count = {"reduction": 4, "scan": 2, "histogram": 4, "exchange": 4, "never": 4, "gemm": 6, "clamped": 2, "mended": 1}
    return lower(getattr(kernels, name), *[0] * count.get(name, 1))


def both(name: str, *args: Any, result: int) -> tuple[np.ndarray, np.ndarray]:
    """What a launch leaves in argument `result`: translated, and simulated."""
    found = []
    for run in (hostbuild.run, simulate):
        held = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
        run(lowered(name), *held)
        found.append(held[result])
    return found[0], found[1]


def changed(name: str, old: str, new: str) -> Module:
    """A kernel with a piece of its text replaced."""
    text = lowered(name).text
    assert old in text
    return parse(text.replace(old, new))


@fibers
class TestAgainstTheSimulator:
    def test_reduction_through_lds(self):
        rows = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
        got, want = both("reduction", rows, np.zeros(3, np.float32), 1000, 3, result=1)
        assert np.array_equal(got.view(np.uint32), want.view(np.uint32)) and got.any()

    def test_prefix_scan_with_barriers_in_a_loop(self):
        values = np.random.default_rng(1).integers(-100, 100, 256).astype(np.int32)
        got, want = both("scan", values, np.zeros(256, np.int32), result=1)
        assert np.array_equal(got, want) and np.array_equal(got, np.cumsum(values))

    def test_histogram_with_atomics(self):
        values = np.random.default_rng(2).integers(0, 10, 1000).astype(np.int32)
        got, want = both("histogram", values, np.zeros(10, np.int32), 1000, 16, result=1)
        assert np.array_equal(got, want)

    def test_a_workgroup_that_waits_for_another(self):
        empty = np.zeros(64, np.int32)
        got, want = both("exchange", empty, np.zeros(1, np.int32), empty, 7, result=2)
        assert np.array_equal(got, want) and np.array_equal(got, 3 * np.arange(64) + 1)

    def test_matrix_products(self):
        rng = np.random.default_rng(3)
        a, b = (rng.integers(0, 1 << 16, (n, 96)).astype(np.uint16) for n in (16, 48))
        got, want = both("gemm", a, b, np.zeros((16, 48), np.float32), 96, 48, 3, result=2)
        assert ((got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))).all()

    def test_buffers_end_where_their_records_do(self):
        got, want = both("clamped", np.arange(1, 65, dtype=np.int32), np.zeros(64, np.int32), result=1)
        assert np.array_equal(got, want) and got[15] == 16 and not got[16:].any()

    def test_waves_meet_at_a_barrier(self):
        got, want = both("mended", np.zeros(128, np.int32), result=0)
        assert np.array_equal(got, want)

    def test_lanes_of_a_wave_meet_before_they_read_each_others_words(self):
        """Lane xor 8 is in the wave's other warp: the kernel has no barrier, for on AMD a wave is in step."""
        module = changed("racing", "value = 64 : i32", "value = 8 : i32")
        assert (
            "k3_wave_sync();" in translate(module).body and "k3_wave_sync();" not in translate(lowered("mended")).body
        )
        out = np.zeros(128, np.int32)
        hostbuild.run(module, out)
        assert np.array_equal(out, np.arange(128) ^ 8)

    @pytest.mark.parametrize(("name", "races"), [("racing", True), ("mended", False)])
    def test_accesses_to_lds_that_nothing_orders_are_found(self, name, races):
        out = np.zeros(128, np.int32)
        if not races:
            hostbuild.run(lowered(name), out, races=True)
            return
        with pytest.raises(InternalFault, match=r"got a race: LDS byte \d+ of workgroup 0: a .* that nothing orders"):
            hostbuild.run(lowered(name), out, races=True)

    def test_a_flag_that_never_comes_ends_the_run(self):
        empty = np.zeros(64, np.int32)
        with pytest.raises(InternalFault, match="threads still run at the limit of turns: 64 of 128 threads"):
            hostbuild.run(lowered("never"), empty, np.zeros(1, np.int32), empty, 7, turns=10_000)


class TestRefusals:
    def test_an_operation_that_is_not_known_is_named_with_its_line(self):
        with pytest.raises(
            BadInput, match=r"got 1 others: llvm\.intr\.ctpop \(not known\) at .*kernels\.py:\d+:\d+\.$"
        ):
            translate(changed("mended", "llvm.xor", "llvm.intr.ctpop"))

    def test_all_of_them_are_listed(self):
        module = changed("reduction", '"llvm.fadd"', '"llvm.frem"')
        with pytest.raises(BadInput, match=r"got 2 others: llvm\.frem .*; llvm\.frem "):
            translate(module)

    def test_a_wave_operation_where_not_all_lanes_are(self):
        with pytest.raises(BadInput, match=r"rocdl\.s\.barrier \(where not all lanes of a wave are\) at .*kernels\.py"):
            translate(lowered("uneven"))

    def test_sizes_that_are_not_whole_waves(self):
        module = lowered("scan")
        launch = replace(module.launches[0], block=(96, 1, 1))
        with pytest.raises(BadInput, match="expected workgroups of whole waves, 960 threads at most, got 96"):
            translate(replace(module, launches=(launch,)))

    def test_an_unsupported_cache_policy(self):
        module = changed("exchange", "aux = 16 : i32", "aux = 3 : i32")
        with pytest.raises(BadInput, match=r"rocdl\.raw\.ptr\.buffer\.load \(cache policy 3\)"):
            translate(module)


H200 = Limits("NVIDIA H200", "sm_90", 132, 2048, 65536, 233472, 232448)


class TestResidency:
    def source(self, lds: int, exchange: int = 16384) -> Any:
        made = translate(lowered("scan"))
        return replace(made, name="kda_pre", threads=512, lds=lds, shared=lds + exchange)

    def test_what_fits_twice_is_taken(self):
        assert per_unit(H200, 256) == 2
        check_shape(H200, self.source(96 * 1024), 256)

    def test_what_fits_once_is_refused_with_the_numbers(self):
        source = self.source(100 * 1024)
        check_shape(H200, source, 132)
        with pytest.raises(BackendUnavailable) as refused:
            check_shape(H200, source, 256)
        for number in ("256 workgroups of kda_pre", "got 132: 1 on each of 132", "118784 bytes", "102400 of LDS"):
            assert number in str(refused.value), str(refused.value)
        assert "64 registers a thread" in str(refused.value) and str(refused.value).endswith(".")

    def test_more_than_a_workgroup_may_take(self):
        with pytest.raises(
            BackendUnavailable, match="at most 232448 bytes of shared memory a workgroup on NVIDIA H200"
        ):
            check_shape(H200, self.source(220 * 1024), 132)

    def test_too_many_threads(self):
        with pytest.raises(BackendUnavailable, match="room for all 600 workgroups of kda_pre at once, got 528"):
            check_shape(H200, self.source(1024), 600)
