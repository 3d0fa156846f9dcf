"""Loads and stores by pointer and by buffer, cache policy, and LDS."""

from __future__ import annotations

import re

import numpy as np
import pytest

from k3lab.errors import BadInput
from k3lab.lowering.isa import compile_isa
from k3lab.sim.launch import simulate
from k3lab.sim.memory.buffers import Memory

pytest.importorskip("flydsl", reason="needs flydsl to lower its kernels")

from k3lab.device.memory import lds_offsets
from k3lab.lowering.capture import lower
from tests.device import device_kernels as kernels
from tests.device.micro import LANE, agree, lowered, run, words

MODIFIERS = ("", "nt", "sc1", "sc0 sc1")


def test_every_kind_and_count_moves_its_bytes():
    """All bit patterns: NaN payloads of bf16 and fp32 too."""
    source = words(1, len(kernels.ELEMENTS), kernels.AREA // 4)
    source.view(np.uint16)[:, :8] = [0x7F81, 0xFF81, 0x7FC0, 0x7FFF, 0xFFBF, 0x7FA5, 0x8000, 0x0001]
    source[:, 4:6] = [0x7F800001, 0x7FA00000]
    out = run("elements", source, len(kernels.ELEMENTS) * kernels.AREA // 256).reshape(source.shape)
    for area, (kind, count) in enumerate(kernels.ELEMENTS):
        moved, size = out[area].view(np.uint8), 64 * count * kind.width // 8
        assert (moved[:size] == source[area].view(np.uint8)[:size]).all(), (kind, count)
        assert not moved[size:].any(), (kind, count)


def test_an_access_is_as_wide_as_its_elements():
    """One access each, not one an element."""
    text = lowered("elements").text
    assert text.count('"llvm.load"') == text.count('"llvm.store"') == len(kernels.ELEMENTS)


def test_elements_beyond_32_bits_of_bytes():
    source, out, memory = words(2, 64), np.zeros((1, 64), np.int32), Memory()
    simulate(lowered("far_elements"), source, out, memory=memory)
    agree(out, [source])


def test_pointers_count_elements():
    source = words(3, 256)
    agree(run("pointers", source, 3), [source[LANE + 5], source[LANE * 4], source[LANE * 4 + 3]])
    assert lowered("pointers").text.count("alignment = 16") == 1


def test_buffer_words_of_every_count_and_policy():
    source = words(4, len(kernels.POLICIES) * len(kernels.WORDS), 256)
    out = run("words", source, source.size // 64).reshape(source.shape)
    for number in range(len(source)):
        size = 64 * kernels.WORDS[number % len(kernels.WORDS)]
        assert (out[number, :size] == source[number, :size]).all() and not out[number, size:].any(), number


def test_policies_reach_the_ir_and_the_assembly():
    module = lowered("words")
    for operation in ("load", "store"):
        found = re.findall(rf'"rocdl\.raw\.ptr\.buffer\.{operation}"\(.*?aux = (\d+)', module.text)
        assert found == [str(policy) for policy in kernels.POLICIES for _ in kernels.WORDS]
        lines = re.findall(rf"buffer_{operation}_dword\S* (?:.*offen|.*off, .*)(.*)", compile_isa(module).text)
        seen = {modifiers: 0 for modifiers in MODIFIERS}
        for line in lines:
            seen[re.sub(r"offset:\d+", "", line).strip()] += 1
        assert seen == dict.fromkeys(MODIFIERS, len(kernels.WORDS))


def test_a_drain_waits_between_stores():
    source = words(5, 64)
    agree(run("drained", source, 2), [source, source])
    stores = compile_isa(lowered("drained")).text.split("global_store")
    assert len(stores) == 3 and "vmcnt(0)" in stores[1]


OFFSETS = (0, 16, 32, 64, 80)
"""Where the arrays of CARVED begin: each at the next 16-byte boundary."""


@pytest.mark.parametrize("start", [0, 16, 400])
def test_carved_arrays_lie_one_after_the_other(start):
    out = np.zeros(256, np.int32)
    simulate(lower(kernels.carving(start), 0, 0), np.zeros(1, np.int32), out)
    wanted = np.zeros(kernels.LDS_ROOM, np.uint8)
    types = (np.int8, np.uint16, np.float32, np.int64, np.int32)
    for number, (offset, dtype, (_, count)) in enumerate(zip(OFFSETS, types, kernels.CARVED, strict=True)):
        values = number * 16 + 1 + np.arange(count)
        stored = (values.astype(np.float32).view(np.uint32) >> 16 if dtype is np.uint16 else values).astype(dtype)
        wanted[start + offset :][: stored.nbytes] = stored.view(np.uint8)
    assert (out.view(np.uint8) == wanted).all(), np.flatnonzero(out.view(np.uint8) != wanted)[:4]


def test_offsets_and_end():
    arrays = [(kind.width // 8, count) for kind, count in kernels.CARVED]
    assert lds_offsets(arrays) == (list(OFFSETS), 80 + 256)
    assert lds_offsets(arrays, 32) == ([32 + offset for offset in OFFSETS], 32 + 80 + 256)
    assert lds_offsets([]) == ([], 0)
    assert lds_offsets([(1, 17)], 16) == ([16], 48)


def test_arrays_that_do_not_fit_are_refused():
    assert lower(kernels.carving(0, nbytes=kernels.LDS_ROOM), 0, 0).kernels
    with pytest.raises(BadInput, match=r"LDS: expected at most 1024 bytes, got 1040"):
        lower(kernels.carving(kernels.LDS_ROOM - 320), 0, 0)
    assert lower(kernels.carving(kernels.LDS_ROOM - 336), 0, 0).kernels


def test_lds_vectors():
    source = words(6, 256)
    out = run("lds_vectors", source, 5).view(np.uint16).ravel()
    rows = source.view(np.uint16).reshape(64, 8)
    assert (out[:512].reshape(64, 8) == rows[LANE ^ 1]).all()
    assert (out[512:576] == source.view(np.uint16)[:64]).all()
