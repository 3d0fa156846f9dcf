"""Names, the swap grammar, and the promise that the core does not drag torch in."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from k3lab import formats
from k3lab.errors import BadInput


def test_get_knows_names_and_aliases() -> None:
    assert formats.get("fp8") is formats.FP8_E4M3
    assert formats.get("fp4") is formats.E2M1
    assert formats.get("mxfp4") is formats.MXFP4
    with pytest.raises(BadInput, match="one of bf16, fp16, fp32, fp8_e4m3.*got 'fp9'"):
        formats.get("fp9")


@pytest.mark.parametrize(
    ("spec", "name", "mode", "seed", "rule"),
    [
        ("bf16", "bf16", "nearest", 0, None),
        ("bf16:zero", "bf16", "zero", 0, None),
        ("fp8:stochastic:7", "fp8_e4m3", "stochastic", 7, None),
        ("fp8:stochastic", "fp8_e4m3", "stochastic", 0, None),
        ("fp32", "fp32", "nearest", 0, None),
        ("mxfp4", "mxfp4", "nearest", 0, "even"),
        ("mxfp4:floor", "mxfp4", "nearest", 0, "floor"),
        ("mxfp4:rceil:nearest", "mxfp4", "nearest", 0, "rceil"),
        ("mxfp4:zero", "mxfp4", "zero", 0, "even"),
        ("mxfp4:ceil:stochastic:12", "mxfp4", "stochastic", 12, "ceil"),
    ],
)
def test_parse(spec: str, name: str, mode: str, seed: int, rule: str | None) -> None:
    rounder = formats.parse(spec)
    assert (rounder.spec, rounder.format_name, rounder.mode, rounder.seed) == (spec, name, mode, seed)
    assert getattr(rounder.format, "rule", None) == rule
    assert rounder.nearest == (mode == "nearest")


@pytest.mark.parametrize(
    "spec", ["", "fp9", "bf16:up", "bf16:floor", "fp8:7", "fp8:zero:7", "fp8:stochastic:-1", "fp8:stochastic:7:1",
             "mxfp4:nearest:floor", "mxfp4:half", "bf16:"],
)  # fmt: skip
def test_parse_refuses(spec: str) -> None:
    with pytest.raises(BadInput, match="expected"):
        formats.parse(spec)


def test_properties() -> None:
    fp8, bf16, mx = (formats.parse(s) for s in ("fp8", "bf16", "mxfp4"))
    assert (fp8.max_value, fp8.smallest, fp8.saturates) == (448, 2**-9, True)
    assert (bf16.max_value, bf16.smallest, bf16.saturates) == (np.inf, 2.0**-133, False)
    assert (mx.max_value, mx.smallest, mx.saturates) == (np.inf, 2.0**-127, True)


def test_round_and_ulp_go_to_the_format() -> None:
    x = np.random.default_rng(0).standard_normal((4, 64))
    for spec in ("bf16", "fp8:zero", "e2m1:stochastic:3", "mxfp4:rceil"):
        rounder = formats.parse(spec)
        assert rounder.round(x).dtype == np.float64 and rounder.ulp(x).shape == x.shape
        assert (np.abs(rounder.round(x) - x) <= rounder.ulp(x))[np.abs(x) < rounder.max_value].all()


def test_importing_formats_does_not_import_torch() -> None:
    program = "import sys, k3lab.formats; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
