"""A walk shows what runs gave, and a stage's own error."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import k3lab
from k3lab.analysis.walk import Walk, relative
from k3lab.launches import K1

pytest.importorskip("flydsl", reason="needs flydsl to lower the kernels")


@pytest.fixture(scope="module")
def walk():
    return Walk(k3lab.make_case("k1", geometry="mini", tokens=2, qlen=2, nblocks=1, seed=3))


def test_kernel_and_twin_agree_and_a_changed_bit_is_seen(walk):
    assert all(walk.same(name) for name in walk.kernel.values)
    lines = walk.agreement().splitlines()
    assert len(lines) == len(walk.kernel.values) and all(line.split()[-5] == line.split()[-3] for line in lines)
    core = walk.kernel["core_out"].clone()
    core[1, 5] = -core[1, 5]
    other = Walk.__new__(Walk)
    other.__dict__ |= {**vars(walk), "kernel": replace(walk.kernel, ranks=[{**walk.kernel.values, "core_out": core}])}
    assert not other.same("core_out") and other.same("x")
    assert f"{core.numel() - 1} of" in next(line for line in other.agreement().splitlines() if "core_out" in line)


def test_a_row_of_all_three_runs(walk):
    lines = walk.beside("x", 1).splitlines()
    assert lines[0] == "x[1]"
    for line, run in zip(lines[1:], (walk.kernel, walk.twin, walk.oracle), strict=True):
        assert [float(word) for word in line.split()[1:]] == pytest.approx(run["x"][1, :4].tolist(), rel=1e-8)


def test_what_a_stage_adds(walk):
    """A gate adds fp32 noise to exact sums, a mix one bf16 rounding: at most half an ulp, 2^-9 of a value."""
    errors = walk.errors("mix")
    assert 0 < errors["x"].adds <= 2**-9 < 2 * errors["x"].built_up
    assert errors["x"].built_up == relative(walk.kernel["x"], walk.oracle["x"])
    assert walk.errors("gate")["WGT"].adds < 1e-6
    assert str(errors).splitlines()[-1].startswith("   x ")


def test_errors_are_counted_on_the_named_part(walk):
    other = Walk.__new__(Walk)
    other.__dict__ |= {**vars(walk), "_parts": {"x": lambda x: x[:1]}}
    assert other.errors("mix")["x"].built_up == relative(walk.kernel["x"][:1], walk.oracle["x"][:1])


def test_the_text_of_twin_and_kernel(walk):
    text = walk.text("recur", "run")._repr_markdown_()
    assert "def kda_recur(" in text and "@traced\ndef run(" in text and text.count("```python") == 2
    assert "def even_code(" in walk.function("k3lab.device.narrow:even_code").text


@pytest.mark.parametrize("stage", ["gate", "norm"])
def test_a_stage_alone_writes_what_it_declares(walk, stage):
    assert set(walk.alone(stage)) <= set(K1.stage(stage).writes)


def test_relative_error():
    assert relative(torch.tensor([1.5, 2.0]), torch.tensor([1.0, 2.0])) == pytest.approx((0.25 / 5) ** 0.5)
