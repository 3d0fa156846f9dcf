"""Bytes and matrix operations counted by a simulation are those counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import k3lab
from k3lab.lowering.types import parse_type
from k3lab.sim.chain import Launch, simulate_chain
from k3lab.sim.launch import simulate
from k3lab.sim.options import Options
from k3lab.sim.record.traffic import Access, Lds, Matrix, Traffic, stage_of
from tests.sim.test_micro_kit import GLOBAL, I8, I32, LDS, Build

STAGE = "micro"  # the source file of hand-made kernels


def counted(module: Any, *args: Any, names: dict[int, str] | None = None) -> Traffic:
    engine = simulate(module, *args, names=names, options=Options(count=True))
    assert engine.traffic is not None
    return engine.traffic


def access(buffer: str, what: str, count: int, issued: int, unique: int, **more: Any) -> Access:
    facts = {"device": 0, "launch": 0, "stage": STAGE} | more
    return Access(buffer=buffer, what=what, count=count, issued_bytes=issued, unique_bytes=unique, **facts)


class TestGlobalMemory:
    def test_lanes_that_load_the_same_are_issued_each_and_unique_once(self):
        """Lanes past the 40th load the 40th element again, in two workgroups of two waves."""
        k = Build(GLOBAL, GLOBAL)
        thread = k.thread()
        clamped = k.op("llvm.intr.smin", thread, k.constant(I32, 39), gives=I32)
        k.store(k.load(I32, k.params[0], clamped), k.params[1], thread)
        k.ret()
        module, arrays = k.module(groups=2, threads=128), (np.zeros(128, np.int32), np.zeros(128, np.int32))
        assert counted(module, *arrays, names={0: "src", 1: "dst"}).accesses == (
            access("dst", "store", 256, 1024, 512),
            access("src", "load", 256, 1024, 160),
        )

    def test_only_active_lanes_count(self):
        k = Build(GLOBAL, I32)
        thread = k.thread()
        k.cond(k.icmp("slt", thread, k.constant(I32, 10)), ("some", ()), ("out", ()))
        k.at("some")
        k.store(k.params[1], k.params[0], thread)
        k.br("out")
        k.at("out")
        k.ret()
        assert counted(k.module(groups=1), np.zeros(64, np.int32), 1, names={0: "dst"}).accesses == (
            access("dst", "store", 10, 40, 40),
        )

    def test_an_address_of_the_whole_wave_counts_once_a_wave(self):
        k = Build(GLOBAL)
        k.load(I32, k.params[0], k.group())
        k.ret()
        traffic = counted(k.module(groups=3, threads=128), np.zeros(8, np.int32), names={0: "src"})
        assert traffic.accesses == (access("src", "load", 6, 24, 12),)

    def test_bytes_count_by_the_byte(self):
        """One byte at 3 + 5 thread: neither aligned nor next to each other; then a word that covers the first."""
        k = Build(GLOBAL)
        place = k.add(k.op("llvm.mul", k.thread(), k.constant(I32, 5), gives=I32), k.constant(I32, 3))
        k.load(I8, k.params[0], place)
        k.load(I32, k.params[0], k.constant(I32, 0))
        k.ret()
        traffic = counted(k.module(groups=1), np.zeros(400, np.uint8), names={0: "src"})
        assert traffic.accesses == (access("src", "load", 65, 68, 64 + 3),)

    def test_atomics(self):
        k = Build(GLOBAL, I32)
        k.op("llvm.atomicrmw", k.element(I32, k.params[0], k.constant(I32, 1)), k.params[1], gives=I32, bin_op=1,
             ordering=2, alignment=4)  # fmt: skip
        k.ret()
        out = np.zeros(4, np.int32)
        assert counted(k.module(groups=1), out, 2, names={0: "sum"}).accesses == (access("sum", "atomic", 64, 256, 4),)
        assert out.tolist() == [0, 128, 0, 0]

    def test_devices_and_launches_are_apart(self):
        k = Build(GLOBAL, I32)
        k.store(k.params[1], k.params[0], k.thread())
        k.ret()
        module, data = k.module(groups=1), np.zeros(64, np.int32)
        ranks = [[Launch(module, (data, 1), {0: "shared"})] * 2, [Launch(module, (data, 1), {0: "shared"})]]
        traffic = simulate_chain(ranks, options=Options(count=True)).traffic
        assert traffic is not None and traffic.accesses == tuple(
            access("shared", "store", 64, 256, 256, device=device, launch=launch)
            for device, launch in ((0, 0), (0, 1), (1, 0))
        )


class TestInside:
    def test_lds(self):
        k = Build(I32)
        place = k.op("llvm.getelementptr", k.lds("shared"), k.thread(), gives=LDS, elem_type=I32,
                     rawConstantIndices=[-(2**31)])  # fmt: skip
        k.op("llvm.store", k.params[0], place, alignment=4)
        k.cond(k.icmp("slt", k.thread(), k.constant(I32, 8)), ("some", ()), ("out", ()))
        k.at("some")
        k.op("llvm.load", place, gives=I32, alignment=4)
        k.br("out")
        k.at("out")
        k.ret()
        traffic = counted(k.module(groups=3, lds=256), 1)
        assert traffic.lds == (Lds(0, 0, STAGE, loaded_bytes=3 * 8 * 4, stored_bytes=3 * 64 * 4),)
        assert traffic.accesses == traffic.matrix == ()

    def test_matrix_instructions(self):
        """Three turns of a loop, two waves: 16 x 16 outputs of 32 products, each a multiplication and an addition."""
        operand, sums = parse_type("vector<8xbf16>"), parse_type("vector<4xf32>")
        k = Build()
        zero, start = k.op("llvm.mlir.zero", gives=operand), k.op("llvm.mlir.zero", gives=sums)
        k.br("turn", start, k.constant(I32, 0))
        acc, count = k.at("turn", sums, I32)
        name = "rocdl.mfma.f32.16x16x32.bf16"
        acc = k.op(name, zero, zero, acc, gives=sums, cbsz=0, abid=0, blgp=0)
        after = k.add(count, k.constant(I32, 1))
        k.cond(k.icmp("slt", after, k.constant(I32, 3)), ("turn", (acc, after)), ("out", ()))
        k.at("out")
        k.ret()
        traffic = counted(k.module(groups=1, threads=128))
        assert traffic.matrix == (Matrix(0, 0, STAGE, name, count=6, flops=6 * 2 * 16 * 16 * 32),)


@pytest.mark.parametrize(
    ("file", "stage"),
    [
        ("/a/k3lab/stages/kda/conv/kernel.py", "kda/conv"),
        ("/k3lab/old/k3lab/stages/gemv/product.py", "gemv"),
        ("/a/k3lab/stages/kda/task.py", "kda"),
        ("/a/k3lab/device/context.py", "device/context"),
        ("/a/k3lab/stages/role.py", "stages/role"),
        ("micro.py", "micro"),
    ],
)
def test_stage_of_a_file(file, stage):
    assert stage_of(file) == stage


class TestK1:
    """What a launch has to move, from its sizes; mini geometry, four tokens of one request."""

    @staticmethod
    def unique(traffic: Traffic, stage: str, argument: str, what: str) -> int:
        [row] = [row for row in traffic.accesses if (row.stage, row.argument, row.what) == (stage, argument, what)]
        assert row.issued_bytes >= row.unique_bytes
        return row.unique_bytes

    def test_weights_and_state_to_the_byte(self):
        pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")
        case = k3lab.make_case("k1", tokens=4, nblocks=4, geometry="mini")
        traffic = k3lab.run("k1", case, backend="sim", sim=Options(count=True)).traffic
        assert traffic is not None
        tensors, g = case.ranks[0], case.key.geometry
        rows, hidden = tensors["w_in"].shape
        assert self.unique(traffic, "gemv", "w_in", "load") == rows * hidden * 2
        assert self.unique(traffic, "kda/gates", "w_fb", "load") == tensors["w_fb"].numel() * 2
        state = g.heads * 128 * 128 * 4  # a request's state of one token, fp32
        assert self.unique(traffic, "kda/recur", "rstate", "load") == state
        assert self.unique(traffic, "kda/recur", "rstate", "store") == case.key.tokens * state
        channels = 3 * g.heads * 128  # of q, k and v; bf16
        assert self.unique(traffic, "kda/conv", "conv_state", "load") == channels * 3 * 2
        assert self.unique(traffic, "kda/conv", "conv_state", "store") == channels * case.key.state_len * 2
        products = {row.stage: row.flops for row in traffic.matrix}
        assert products["gemv"] >= 2 * 16 * rows * hidden  # 16 columns, whatever the tokens; clamped tasks add to it
