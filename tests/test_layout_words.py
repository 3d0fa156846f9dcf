"""Scratch layouts of M1a and K2a, and words as their regions hold them."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from k3lab.geometry import Geometry
from k3lab.launches import K2A, M1A
from k3lab.layout import PAIR_BYTES
from k3lab.words import bf16_pair_words, fp8_words, fp32_words

K3 = Geometry.k3()


def test_m1a_scratch_holds_pairs_first_then_plain_rows():
    key = M1A.key(K3, tokens=4, nblocks=4, ranks=8)
    placed = {p.name: p for p in M1A.scratch(key)}
    assert list(placed) == ["PART", "WGT", "MSQ", "XRDY", "QA", "QCR", "QN", "x", "QC"]
    assert placed["QA"].nbytes == 4 * 2112 // 2 * PAIR_BYTES and placed["QN"].nbytes == 4 * 12 * 64 * PAIR_BYTES
    assert placed["QC"].offset % 16 == 0 and placed["QC"].nbytes == 4 * 1536 * 2
    gathered = next(region for region in M1A.regions if region.name == "QG")
    assert gathered.pairs(key.sizes) == (8, 4, 12, 144)


def test_k2a_scratch_holds_the_seam_alone():
    key = K2A.key(K3, tokens=4, nblocks=4, ranks=8)
    assert [p.name for p in K2A.scratch(key)] == ["PART", "WGT", "MSQ", "XRDY"]


def test_words_are_little_endian_and_low_half_first():
    values = np.array([1.0, -2.0, 0.5, 448.0], np.float32)
    assert (
        bf16_pair_words(values).view(np.uint16).tolist() == values.astype(ml_dtypes.bfloat16).view(np.uint16).tolist()
    )
    assert fp8_words(values).view(np.uint8).tolist() == values.astype(ml_dtypes.float8_e4m3fn).view(np.uint8).tolist()
    assert fp32_words(values).tolist() == values.view(np.uint32).tolist()
