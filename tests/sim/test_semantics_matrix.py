"""Matrix instructions: lane layouts, both operand formats, scales, accumulation models."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from k3lab.formats import E2M1, E8M0, FP8_E4M3, FP8_E5M2, bf16_bits, bf16_values
from k3lab.hardware import mfma
from k3lab.sim.semantics import Unsupported
from tests.sim.test_semantics_kit import LANES, Waves, row, run, same_bits

NONE = {"cbsz": 0, "abid": 0, "blgp": "#rocdl<mfma_perm_b none>"}
FP4, FP8, BF8 = (f"#rocdl<matrix_format {name}>" for name in ("fp4_e2m1", "fp8_e4m3", "fp8_e5m2"))
FORMATS = {FP4: E2M1, FP8: FP8_E4M3, BF8: FP8_E5M2}

HALVES = {  # name: size, slots, operand type, dtype to draw, dtype held
    "16x16x32.bf16": (16, 32, "vector<8xbf16>", ml_dtypes.bfloat16, np.uint16),
    "16x16x32.f16": (16, 32, "vector<8xf16>", np.float16, np.float16),
    "32x32x16.bf16": (32, 16, "vector<8xbf16>", ml_dtypes.bfloat16, np.uint16),
    "32x32x16.f16": (32, 16, "vector<8xf16>", np.float16, np.float16),
    "16x16x16bf16.1k": (16, 16, "vector<4xi16>", ml_dtypes.bfloat16, np.int16),
    "16x16x16f16": (16, 16, "vector<4xf16>", np.float16, np.float16),
    "32x32x8bf16.1k": (32, 8, "vector<4xi16>", ml_dtypes.bfloat16, np.int16),
    "32x32x8f16": (32, 8, "vector<4xf16>", np.float16, np.float16),
}


def to_lanes(matrix: Any, width: int) -> Any:
    """Rows of A [waves, rows, slots] as lanes hold them, one lane at a time."""
    rows = matrix.shape[1]
    lanes = [matrix[:, lane % rows, lane // rows * width :][:, :width] for lane in range(64)]
    return np.stack(lanes, axis=1)


def place_of(size: int, lane: int, i: int) -> tuple[int, int]:
    """Row and column of a lane's i-th output."""
    groups = 64 // size
    return i // 4 * 4 * groups + lane // size * 4 + i % 4, lane % size


def outputs_to_lanes(matrix: Any) -> Any:
    size = matrix.shape[1]
    held = np.empty((len(matrix), 64, size * size // 64), matrix.dtype)
    for lane in range(64):
        for i in range(held.shape[2]):
            held[:, lane, i] = matrix[:, *place_of(size, lane, i)]
    return held


def draw(shape: tuple[int, ...], seed: int, kind: Any = np.float32) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(kind)


def test_places_of_the_16_wide_tile() -> None:
    for lane in range(64):
        for i in range(4):
            assert place_of(16, lane, i) == (4 * (lane // 16) + i, lane % 16)


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("waves", (1, 3))
def test_halves(name: str, waves: int) -> None:
    size, slots, kind, drawn, held = HALVES[name]
    a, b = draw((waves, size, slots), 1, drawn), draw((waves, size, slots), 2, drawn)
    c = draw((waves, size, size), 3)
    width = slots * size // 64
    out = f"vector<{size * size // 64}xf32>"
    args = (to_lanes(a, width).view(held), to_lanes(b, width).view(held), outputs_to_lanes(c))
    got = run(f"rocdl.mfma.f32.{name}", f"({kind}, {kind}, {out}) -> {out}", *args, waves=Waves(waves), **NONE)
    exact = c + np.einsum("wmk,wnk->wmn", a.astype(np.float64), b.astype(np.float64))
    assert same_bits(got, outputs_to_lanes(exact.astype(np.float32)))


@pytest.mark.parametrize("model", mfma.MODELS)
def test_models_are_followed(model: str) -> None:
    a, b = draw((2, 16, 32), 4, ml_dtypes.bfloat16), draw((2, 16, 32), 5, ml_dtypes.bfloat16)
    c = draw((2, 16, 16), 6)
    args = (to_lanes(a, 8).view(np.uint16), to_lanes(b, 8).view(np.uint16), outputs_to_lanes(c))
    types = "(vector<8xbf16>, vector<8xbf16>, vector<4xf32>) -> vector<4xf32>"
    got = run("rocdl.mfma.f32.16x16x32.bf16", types, *args, waves=Waves(mfma=mfma.get(model)), **NONE)
    chain = mfma.get(model).chain([bf16_values(a.view(np.uint16))], [bf16_values(b.view(np.uint16))], c)
    assert same_bits(got, outputs_to_lanes(chain))


@pytest.mark.parametrize("size", (16, 32))
def test_hostile_waves_beside_tame_ones(size: int) -> None:
    """Waves that the quick way does not settle get the same bits as from the model alone, and leave the rest alone."""
    name, slots = ("16x16x32", 32) if size == 16 else ("32x32x16", 16)
    rng = np.random.default_rng(17)
    a, b = draw((300, size, slots), 18), draw((300, size, slots), 19)
    c = draw((300, size, size), 20)
    for operand in (a, b, c):  # every fifth wave with exponents anywhere, every seventh without some of its operand
        operand[::5] *= np.exp2(rng.integers(-60, 60, operand[::5].shape)).astype(np.float32)
        operand[::7] *= rng.integers(0, 2, operand[::7].shape)
        operand[rng.integers(0, 300, 6), 3, 2] = [np.inf, -np.inf, np.nan, -0.0, 2.0**-149, -(2.0**127)]
    c[::11], a[::11] = -0.0, 0.0
    held = [bf16_bits(values) for values in (a, b)]
    kinds = f"vector<8xbf16>, vector<8xbf16>, vector<{size * size // 64}xf32>"
    lanes = [to_lanes(bits, 8) for bits in held]
    types = f"({kinds}) -> vector<{size * size // 64}xf32>"
    with np.errstate(all="ignore"):
        got = run(f"rocdl.mfma.f32.{name}.bf16", types, *lanes, outputs_to_lanes(c), waves=Waves(300), **NONE)
    wanted = mfma.get("fused").chain(*([bf16_values(bits)] for bits in held), c)
    assert 0 < np.isnan(wanted).sum() < wanted.size // 10
    assert same_bits(
        np.where(np.isnan(got), 0, got), np.nan_to_num(outputs_to_lanes(wanted), posinf=np.inf, neginf=-np.inf)
    )


def test_many_waves_and_shared_operands() -> None:
    a, b = draw((300, 16, 32), 7, ml_dtypes.bfloat16), draw((1, 16, 32), 8, ml_dtypes.bfloat16)
    zero = np.zeros((1, 1, 4), np.float32)
    types = "(vector<8xbf16>, vector<8xbf16>, vector<4xf32>) -> vector<4xf32>"
    args = (to_lanes(a, 8).view(np.uint16), to_lanes(b, 8).view(np.uint16), zero)
    got = run("rocdl.mfma.f32.16x16x32.bf16", types, *args, waves=Waves(300), **NONE)
    exact = np.einsum("wmk,nk->wmn", a.astype(np.float64), b[0].astype(np.float64))
    assert same_bits(got, outputs_to_lanes(exact.astype(np.float32)))
    shared = run("rocdl.mfma.f32.16x16x32.bf16", types, args[1], args[1], zero, waves=Waves(300), **NONE)
    assert shared.shape == (1, 64, 4)


def test_fp8_pairs_of_words() -> None:
    codes = np.random.default_rng(9).integers(0, 0x70, (2, 2, 16, 32)).astype(np.uint8)
    a, b = (FP8_E4M3.decode(codes[0]), FP8_E5M2.decode(codes[1] % 0x60))
    words = (to_lanes(codes[0], 8).view(np.int64)[..., 0], to_lanes(codes[1] % 0x60, 8).view(np.int64)[..., 0])
    zero = np.zeros((1, 1, 4), np.float32)
    got = run("rocdl.mfma.f32.16x16x32.fp8.bf8", "(i64, i64, vector<4xf32>) -> vector<4xf32>", *words, zero, **NONE)
    wanted = mfma.get("fused").chain([a], [b])
    assert same_bits(got, outputs_to_lanes(wanted))


def scaled_operand(fmt: str, waves: int, size: int, seed: int, spare: bool) -> tuple[Any, Any, Any]:
    """Values [waves, size, slots] with scales in, the lanes' registers, the lanes' scale codes."""
    rng = np.random.default_rng(seed)
    slots = 32 * 64 // size
    top = {FP4: 16, FP8: 0x7E, BF8: 0x7B}[fmt]
    codes = rng.integers(0, top, (waves, size, slots)).astype(np.uint8)
    exponents = rng.integers(120, 134, (waves, size, slots // 32)).astype(np.uint8)
    values = FORMATS[fmt].decode(codes) * np.repeat(E8M0.decode(exponents), 32, axis=2)
    lanes = to_lanes(codes, 32)
    if fmt == FP4:
        lanes = lanes[..., ::2] | lanes[..., 1::2] << 4
        if spare:
            lanes = np.concatenate([lanes, rng.integers(0, 256, lanes.shape).astype(np.uint8)], axis=2)
    return values, np.ascontiguousarray(lanes).view(np.int32), to_lanes(exponents, 1)[..., 0]


@pytest.mark.parametrize("size", (16, 32))
@pytest.mark.parametrize(
    "formats", ((FP4, FP4), (FP8, FP8), (FP8, FP4), (BF8, FP8)), ids=lambda f: "+".join(x[-9:-1] for x in f)
)
@pytest.mark.parametrize("bytes_", ((0, 0), (1, 3), (2, 1)))
def test_scaled(formats: tuple[str, str], bytes_: tuple[int, int], size: int) -> None:
    (a, held_a, scale_a), (b, held_b, scale_b) = (
        scaled_operand(fmt, 2, size, seed, spare=seed == 2) for seed, fmt in enumerate(formats, 1)
    )
    c = draw((2, size, size), 3)
    noise = np.random.default_rng(4).integers(0, 256, (2, 64, 4)).astype(np.uint8)
    words = []
    for scale, byte in ((scale_a, bytes_[0]), (scale_b, bytes_[1])):
        octets = noise.copy()
        octets[..., byte] = scale
        words.append(octets.view(np.int32)[..., 0])
    out = f"vector<{size * size // 64}xf32>"
    kinds = [f"vector<{held.shape[2]}xi32>" for held in (held_a, held_b)]
    name = "16x16x128" if size == 16 else "32x32x64"
    got = run(
        f"rocdl.mfma.scale.f32.{name}.f8f6f4", f"({kinds[0]}, {kinds[1]}, {out}, i32, i32) -> {out}",
        held_a, held_b, outputs_to_lanes(c), *words,
        cbsz=formats[0], blgp=formats[1], opselA=bytes_[0], opselB=bytes_[1],
    )  # fmt: skip
    assert same_bits(got, outputs_to_lanes(mfma.get("fused").chain([a], [b], c)))
    if formats == (FP4, FP4):
        exact = c + np.einsum("wmk,wnk->wmn", a.astype(np.float64), b.astype(np.float64))
        assert same_bits(got, outputs_to_lanes(exact.astype(np.float32)))


def test_scale_255_is_nan() -> None:
    ones = np.full((1, 64, 4), 0x22222222, np.int32)
    scale = np.where(LANES == 3, 255, 127).astype(np.int32)[None]
    types = "(vector<4xi32>, vector<4xi32>, vector<4xf32>, i32, i32) -> vector<4xf32>"
    attrs = {"cbsz": FP4, "blgp": 4, "opselA": 0, "opselB": 0}
    zero = np.zeros((1, 1, 4), np.float32)
    got = run("rocdl.mfma.scale.f32.16x16x128.f8f6f4", types, ones, ones, zero, scale, row([127], np.int32), **attrs)
    nan = np.isnan(got[0])
    assert nan[:16, 3].all() and nan.sum() == 16
    assert (got[0][~nan] == 128).all()


def test_masked_matrix_instruction_is_reported() -> None:
    waves = Waves(mask=np.stack([LANES >= 0, LANES != 9]))
    types = "(vector<8xbf16>, vector<8xbf16>, vector<4xf32>) -> vector<4xf32>"
    a, c = np.zeros((1, 1, 8), np.uint16), np.zeros((1, 1, 4), np.float32)
    run("rocdl.mfma.f32.16x16x32.bf16", types, a, a, c, waves=waves, **NONE)
    ((kind, lanes),) = waves.reports
    assert kind == "masked-mfma" and np.argwhere(lanes).tolist() == [[1, 9]]


def test_modifiers_are_refused() -> None:
    types = "(vector<8xbf16>, vector<8xbf16>, vector<4xf32>) -> vector<4xf32>"
    a, c = np.zeros((1, 1, 8), np.uint16), np.zeros((1, 1, 4), np.float32)
    for bad in ({"cbsz": 1}, {"abid": 2}, {"blgp": "#rocdl<mfma_perm_b bcast_first_32>"}):
        with pytest.raises(Unsupported):
            run("rocdl.mfma.f32.16x16x32.bf16", types, a, a, c, **(NONE | bad))
    scaled = "(vector<6xi32>, vector<6xi32>, vector<4xf32>, i32, i32) -> vector<4xf32>"
    with pytest.raises(Unsupported, match="e2m3"):
        attrs = {"cbsz": "#rocdl<matrix_format fp6_e2m3>", "blgp": FP4, "opselA": 0, "opselB": 0}
        run("rocdl.mfma.scale.f32.16x16x128.f8f6f4", scaled, a, a, c, c, c, **attrs)
