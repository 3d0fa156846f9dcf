"""The fast build as fibers on this processor: its decoders, small kernels, and the launches, stage by stage.

Fibers see where values go, what meets, what races on LDS and what is not aligned; fences and speed they do not see.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from k3lab import Case, formats
from k3lab.arith import make
from k3lab.backends.cuda import emit, hostbuild
from k3lab.backends.cuda.arguments import blocks_of, packed
from k3lab.backends.cuda.emit import Source, translate
from k3lab.errors import BadInput
from k3lab.kernels import peers
from k3lab.kernels.host import Buffers
from k3lab.kernels.lowered import lowered
from k3lab.launches.eager import lifted, run_twin
from k3lab.lowering.ir import Module
from k3lab.sim.launch import simulate

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from tests.backends.test_cuda_kernels import CASES as PAIRS
from tests.backends.test_cuda_kernels import COVERS, QUICK, case_of
from tests.backends.test_cuda_translation import lowered as small
from tests.cover import options_of

pytestmark = pytest.mark.skipif(not hostbuild.compiler(), reason="needs a C++ compiler")
CASES = {**QUICK, "k1": {"tokens": 4, "qlen": 2, "nblocks": 2}}  # its special values leave nothing to add up


def run_fast(module: Module, *arrays: Any) -> None:
    numbers = [int(each.ctypes.data) if hasattr(each, "ctypes") else each for each in arrays]
    hostbuild.launch(translate(module, True), blocks_of(module, numbers), [packed(module, numbers)], races=True)


EACH = """
extern "C" void fours(const u32* codes, const u32* scales, u32* pairs, int n) {
  for (int i = 0; i < n; ++i)
    k3_e2m1_four(codes[i], k3_twice(k3_to_bf16(k3_e8m0_value(scales[i]))), pairs + 2 * i);
}
"""
SIZES = "#define K3_LDS 0\n#define K3_ROW 1024\n#define K3_WAVE_BYTES 1024\n#define K3_SHARED 1024\n"


def test_four_codes_are_their_values_times_the_scale():
    """Every code in every place beside others, at every scale: exact but where fp32 itself has no such number."""
    rng = np.random.default_rng(0)
    codes = np.concatenate([np.arange(16) * 0x1111, rng.integers(0, 1 << 16, 240)]).astype(np.uint32)
    codes, scales = (each.ravel().astype(np.uint32) for each in np.meshgrid(codes, np.arange(256)))
    pairs = np.zeros((codes.size, 2), np.uint32)
    source = Source("functions", SIZES, "static void k3_kernel(const K3Launch&) {}\n", 64, 0, 0, 0, fast=True)
    library = hostbuild._library(source.complete("host.hpp", "", defined=("K3_STACK 0",)) + EACH)
    library.fours(*(ctypes.c_void_p(each.ctypes.data) for each in (codes, scales, pairs)), codes.size)
    got = (pairs.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    each = (codes[:, None] >> 4 * np.arange(4) & 15).astype(np.uint8)
    scale = formats.E8M0.decode(scales.astype(np.uint8)).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        want = formats.E2M1.decode(each).astype(np.float32) * scale[:, None]
    same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
    assert same.all(), (each[~same][:5], got[~same][:5], want[~same][:5])
    assert np.isnan(want).sum() == 4 * 256 and np.isinf(want).any() and (np.abs(want[want != 0]) < 2.0**-126).any()


class TestSmallKernels:
    def test_the_host_build_refuses_an_address_that_is_not_aligned(self):
        words = np.zeros(260, np.int32)
        run_fast(small("scan"), words[:256], np.zeros(256, np.int32))
        with pytest.raises(BadInput, match=r"fast build of scan\w*: argument 0 of rank 0 of the launch"):
            run_fast(small("scan"), words[1:257], np.zeros(256, np.int32))
        hostbuild.run(small("scan"), words[1:257], np.zeros(256, np.int32))

    @pytest.mark.parametrize(
        ("name", "shapes", "numbers"),
        [("reduction", ((3, 1000), (3,)), (1000, 3)), ("scan", ((256,), (256,)), ()), ("mended", ((128,),), ())],
    )
    def test_without_products_they_are_the_simulators(self, name, shapes, numbers):
        kind = np.float32 if name == "reduction" else np.int32
        given = [np.arange(np.prod(shape)).reshape(shape).astype(kind) for shape in shapes]
        got, want = ([each.copy() for each in given] for _ in range(2))
        run_fast(small(name), *got, *numbers)
        simulate(small(name), *want, *numbers)
        assert all(np.array_equal(*pair) for pair in zip(got, want, strict=True))
        assert not np.array_equal(got[-1], given[-1])

    def test_products_that_are_not_turned(self):
        """Small whole numbers: every sum is exact, so however it is added up it is the same to the bit."""
        rng = np.random.default_rng(3)
        a, b = (rng.integers(-8, 9, (n, 96)).astype(np.float32) for n in (16, 48))
        words = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
        got = np.zeros((16, 48), np.float32)
        assert "k3_step_bf16(" in translate(small("gemm"), True).body
        run_fast(small("gemm"), *words, got, 96, 48, 3)
        assert np.array_equal(got, a @ b.T)

    def test_rows_that_are_not_aligned_are_read_in_pieces(self, monkeypatch):
        """A row stride of 72 bytes: the kernel reads 64 columns from each row's start on."""
        monkeypatch.setattr(emit, "runtime", misaligned_counted)
        rng = np.random.default_rng(4)
        flat = [rng.integers(-8, 9, (n * 36 + 64,)).astype(np.float32) for n in (16, 48)]
        a, b = (np.lib.stride_tricks.sliding_window_view(x, 64)[:-1:36] for x in flat)
        got = np.zeros((16, 48), np.float32)
        run_fast(small("gemm"), *((x.view(np.uint32) >> 16).astype(np.uint16) for x in flat), got, 36, 48, 3)
        assert np.array_equal(got, a @ b.T) and misaligned(small("gemm")) == 0


UNIT = 2.0**-24
"""fp32's rounding error, relative."""
PRODUCTS = {
    "PROJ": ("x", "w_in"), "QA": ("x", "w_qkv"), "gate_out": ("x", "w_g"), "partial": ("core", "w_o"),
    "QN": ("QC", "w_qb"), "q_pe": ("QC", "w_qb"),
}  # fmt: skip
"""Matrix products: what is multiplied, rows by rows."""


def slack(name: str, want: torch.Tensor, read: dict[str, torch.Tensor]) -> torch.Tensor:
    """How far the fast build's fp32 value may be from the exact build's, before either is stored.

    A product of K terms is added up by instructions of 16 exact products each, rounded once: K / 16 roundings, and 16
    more where waves' sums meet; each is off by no more than a unit of the terms' magnitudes added up. Any other value
    is made of at most four rounded factors and one approximation of 2 ulps (4 units), or of e^-t where t is off by 4
    units of itself: t e^-t < 1. That is less than 16 units of the largest value. Sums that are no matrix products are
    added up in the same order in both builds, and those of the absorbed query, of multiples of a power of two, are
    exact. This leaves out what is stored in bf16 inside of a stage (before `decay`, `gate_out`, `q_pe`), where a sum
    may round to the other side: it does not in these cases.
    """
    if name not in PRODUCTS:
        return 16 * UNIT * largest(want.double())
    a, b = (read[each].double().abs() for each in PRODUCTS[name])
    sums = a @ b.T  # a query's columns go to two tensors: the largest stands for each
    return (a.shape[-1] / 16 + 16) * UNIT * (sums if sums.shape == want.shape else largest(sums))


def largest(values: torch.Tensor) -> torch.Tensor:
    """The largest magnitude of those that are finite; 0 where none is."""
    return torch.where(values.isfinite(), values.abs(), 0.0).max()


def beyond(fmt: str, got: torch.Tensor, want: torch.Tensor, off: torch.Tensor) -> torch.Tensor:
    """Where stored values are further apart than values `off` apart can be rounded: half an ulp each, one in all."""
    kind = formats.parse(fmt).format
    ulp = torch.from_numpy(kind.ulp(torch.maximum(got.abs(), want.abs()).numpy()))
    alike = (got == want) | (got.isnan() & want.isnan())
    return ~alike & ~((got.double() - want.double()).abs() <= off + ulp)


def misaligned_counted(name: str) -> str:
    """A file of the run time that counts accesses at addresses that are no multiples of their size."""
    text = runtime(name)
    if name != "host.hpp":
        return text
    head = "template <int POLICY, int BYTES> static inline void k3_"
    for call in ("ld(u64 address, u8* to) {", "st(u64 address, const u8* from) {"):
        assert head + call in text
        text = text.replace(head + call, f"{head}{call}\n  k3_misaligned += address % BYTES != 0;")
    return text.replace("static void k3_touch(", 'extern "C" { u64 k3_misaligned; }\nstatic void k3_touch(', 1)


runtime = emit.runtime


def misaligned(module: Module, ranks: int = 1) -> int:
    """What was counted so far."""
    library = hostbuild.build(translate(module, True), ranks, races=True)
    return ctypes.c_uint64.in_dll(library, "k3_misaligned").value


def launched_fast(case: Case) -> list[Buffers]:
    """One launch of the fast build; a race raises."""
    key = replace(case.key, dumps=True)
    ranks = [Buffers.of(case.declaration, key, tensors) for tensors in case.ranks]
    if case.declaration.peers(key):
        peers.join(ranks)
    for buffers in ranks:
        buffers.numbers["wait_ticks"] = 1 << 30
    hostbuild.launched(ranks, races=True, fast=True)
    return ranks


def moved(case: Case) -> int:
    """How many values one launch rounds otherwise than the exact build; fails where one is further off than that.

    Each stage's twin takes what the launch's own stages before it wrote: an error of one does not hide in the next.
    """
    launch = case.launch
    ranks = launched_fast(case)
    own, arith = peers.exposed(ranks), make("kernel", launch, "fused")
    held = lifted(case.declaration, case.ranks, arith.dtype)
    seen: set[str] = set()
    count = 0
    for stage in case.declaration.stages:
        for values, found in zip(held, own, strict=True):
            values.update({name: found[name] for name in stage.reads if name in found and name not in case.tensors})
        gathered = {name: torch.stack([values[name] for values in held]) for name in stage.gathers}
        for rank, (values, found) in enumerate(zip(held, own, strict=True)):
            wanted = run_twin(stage, arith, {**values, **gathered}, case.key)
            values.update({name: wanted[name] for name in wanted.keys() - found.keys() - case.tensors.keys()})
            for name in wanted.keys() & found.keys():
                seen.add(name)
                got, want = found[name], wanted[name].to(found[name].dtype)
                if not got.is_floating_point():
                    assert torch.equal(got, want), name
                    continue
                fmt = case.declaration.format_of(name, case.key)
                wrong = beyond(fmt, got, want, slack(name, want, values))
                assert not wrong.any(), f"rank {rank}, {stage.name}: {name} at {wrong.nonzero()[0].tolist()}"
                count += int((got != want).sum())
    assert seen >= set(own[0]) - {"AR"}, set(own[0]) - seen
    module = lowered(case.declaration, replace(case.key, dumps=True), ranks[0].stages)
    assert misaligned(module, len(ranks)) == 0
    return count


@pytest.mark.parametrize("launch", CASES)
def test_every_stage_is_as_near_its_twin_as_rounding_allows(launch, monkeypatch):
    monkeypatch.setattr(emit, "runtime", misaligned_counted)
    assert moved(case_of(launch, CASES[launch])), "tensor cores and approximations round otherwise somewhere"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launch", "labels"), PAIRS, ids=lambda part: part if isinstance(part, str) else "-".join(part)
)
def test_so_it_is_with_other_options(launch, labels, monkeypatch):
    monkeypatch.setattr(emit, "runtime", misaligned_counted)
    moved(case_of(launch, {"seed": 1, **options_of(COVERS[launch], labels)}))
