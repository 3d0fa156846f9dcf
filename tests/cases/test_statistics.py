"""Statistics of a case against NumPy's own, element by element; blocks against the quantiser itself."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import k3lab
from k3lab.analysis import distributions
from k3lab.cases import make_case, save
from k3lab.cases.statistics import (
    FEWEST_CHANNELS,
    MAGNITUDES,
    OUTLIER,
    QUANTILES,
    channel_rms,
    mx_blocks,
    spread,
    statistics,
)
from k3lab.cli import cli
from k3lab.errors import BadInput
from k3lab.formats import FP8_E4M3, mx

RULES = tuple(mx.RULES)


def case_of(launch: str = "m1a", **options) -> k3lab.Case:
    return make_case(launch, **{"geometry": "mini", "nblocks": 1, "tokens": 2, **options})


def values_of(case: k3lab.Case, name: str) -> np.ndarray:
    """Every rank's values in float64, by another way."""
    own = {id(tensors[name]): tensors for tensors in case.ranks}
    found = []
    for tensors in own.values():
        tensor = tensors[name]
        if name == "w_k":
            codes = mx.unpack_nibbles(tensor.numpy())
            tensor = torch.from_numpy(mx.dequantise(codes, tensors["w_k_scale"].numpy()))
        elif name == "kv_cache":
            tensor = tensor.view(torch.float8_e4m3fn)
        found.append(tensor.double().numpy().reshape(-1, tensor.shape[-1]))
    return np.concatenate(found)


@pytest.mark.parametrize("options", [{"launch": "m1a"}, {"launch": "m1a", "ranks": 2}, {"launch": "k1", "qlen": 1}])
def test_figures_are_numpys(options):
    case = case_of(**options)
    names = [each.name for each in statistics(case, ("even",))]
    integers = {"st_idx", "num_acc", "slots", "w_k_scale"}
    assert set(names) == set(case.ranks[0]) - integers
    for each in statistics(case, ("even",)):
        values = values_of(case, each.name)
        assert (each.count, each.finite) == (values.size, values.size), each.name
        assert each.zeros == (values == 0).sum() and (each.min, each.max) == (values.min(), values.max())
        # Sums of at most 4 million terms in another order: float64 errs by less than 4e6 x 2^-53 of the sum of sizes.
        close = 4e6 * 2.0**-53
        assert each.mean == pytest.approx(values.mean(), abs=close * np.abs(values).mean())
        assert each.rms == pytest.approx(np.sqrt(np.square(values).mean()), rel=close)
        magnitudes = np.abs(values[values != 0])
        assert each.smallest == magnitudes.min()
        assert each.octaves == pytest.approx(math.log2(magnitudes.max() / magnitudes.min()), rel=1e-12)
        wanted = np.quantile(values, QUANTILES, method="inverted_cdf")
        assert list(each.quantiles.values()) == wanted.tolist(), each.name
        wanted = np.quantile(np.abs(values), MAGNITUDES, method="inverted_cdf")
        assert list(each.magnitudes.values()) == wanted.tolist(), each.name
        assert each.ranks == len({id(tensors[each.name]) for tensors in case.ranks})


def test_outlier_channels_are_those_that_were_drawn():
    case = case_of("k2a", ranks=2, values="outliers", tokens=64)
    found, plain = spread(case, "prefix").channels, spread(case_of("k2a", ranks=2, values="normal"), "prefix").channels
    # Channels drawn 20 to 100 times larger (k3lab.cases.values) stand apart from 10 times the median; others do not.
    assert found.count == max(2, 2048 // 512) and found.largest > 20 and plain.count == 0
    rms = np.sqrt(np.square(case.tensors["prefix"].double().numpy()).mean(0))
    assert np.allclose(channel_rms(case, "prefix"), rms, rtol=1e-12)
    assert found.where == np.argsort(-rms)[:4].tolist() and found.channels == 2048
    assert (rms[found.where] >= OUTLIER * np.median(rms)).all()


def test_few_channels_have_no_outliers():
    case = case_of("k1", qlen=1)
    for name in ("conv_w", "a_log", "conv_state"):
        assert case.tensors[name].shape[-1] < FEWEST_CHANNELS and spread(case, name).channels is None


def by_the_quantiser(values: np.ndarray, rule: str) -> tuple[float, ...]:
    """Shares counted on the quantised values themselves."""
    codes, scales = mx.quantise(values, rule)
    spread_scales = np.repeat(2.0 ** (scales.astype(np.float64) - 127), 32, axis=-1)
    blocks = lambda mask: mask.reshape(-1, 32)  # noqa: E731
    cut = blocks(np.abs(values) > 6 * spread_scales)
    flushed = blocks((values != 0) & (codes & 7 == 0))
    zero = blocks(values == 0).all(1)
    return cut.any(1).mean(), flushed.any(1).mean(), cut.mean(), flushed.mean(), zero.mean()


@pytest.mark.parametrize("rule", RULES)
@given(
    values=arrays(np.float32, (3, 64), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)),
    exponent=st.integers(-20, 20),
)
def test_blocks_are_counted_as_the_quantiser_makes_them(rule, values, exponent):
    for array in (values, np.round(values % 8) * np.float32(2.0**exponent)):  # any size, and ties at few exponents
        (found,) = mx_blocks([array], (rule,))
        wanted = by_the_quantiser(array, rule)
        assert (found.saturate, found.flush, found.cut, found.flushed, found.zero) == pytest.approx(wanted, abs=1e-15)
        assert found.blocks == 6


def test_a_tie_at_the_smallest_step_is_flushed():
    values = np.zeros((1, 32), np.float32)
    values[0, :3] = 4, 0.25, 0.2500001  # scale 1: half of the smallest step goes to zero, more goes to the step
    (found,) = mx_blocks([values], ("even",))
    assert (found.flush, found.flushed, found.cut) == (1, 1 / 32, 0)
    values[0, 0] = 6.5  # below 1.75 x 4: still scale 1, and cut
    (found,) = mx_blocks([values], ("even",))
    assert (found.saturate, found.cut) == (1, 1 / 32)


def test_w_uk_is_counted_as_w_k_is_quantised():
    case = case_of(ranks=2)
    both = spread(case, "w_kv_b")
    rows = np.concatenate([t["w_kv_b"].float().view(2, 256, 512)[:, :128].mT.numpy() for t in case.per_rank])
    for blocks in both.mxfp4:
        wanted = by_the_quantiser(np.ascontiguousarray(rows), blocks.rule)
        got = (blocks.saturate, blocks.flush, blocks.cut, blocks.flushed, blocks.zero)
        assert got == pytest.approx(wanted, abs=1e-15)
    assert not spread(case, "w_k").mxfp4 and [blocks.rule for blocks in both.mxfp4] == list(RULES)


def test_values_that_are_not_finite_are_left_out():
    case = case_of("k2a", ranks=1, values="normal")
    prefix = case.tensors["prefix"].clone()
    prefix[0, 0], prefix[1, 1], prefix[0, 1] = torch.nan, torch.inf, -torch.inf
    spoilt = replace(case, tensors={**case.tensors, "prefix": prefix}, allow_nonfinite=True)
    found, values = spread(spoilt, "prefix"), prefix.double().numpy()
    finite = values[np.isfinite(values)]
    assert (found.count, found.finite) == (4096, 4093)
    assert (found.min, found.max) == (finite.min(), finite.max()) and found.rms == pytest.approx(finite.std(), rel=0.1)
    nowhere = replace(spoilt, tensors={**case.tensors, "prefix": torch.full_like(prefix, torch.nan)})
    empty = spread(nowhere, "prefix")
    assert (empty.finite, empty.min, empty.rms, empty.quantiles, empty.octaves) == (0, None, None, {}, None)
    json.dumps(empty.to_dict(), allow_nan=False)


@pytest.mark.parametrize("values", ["zeros", "huge", "tiny"])
def test_sizes_at_the_ends(values):
    case = case_of("k1", qlen=1, values="normal" if values == "zeros" else values)
    if values == "zeros":
        case = replace(case, tensors={**case.tensors, "prefix": torch.zeros_like(case.tensors["prefix"])})
    found = spread(case, "prefix")
    if values == "zeros":
        assert (found.zeros, found.rms, found.octaves, found.smallest) == (found.count, 0, None, None)
        assert found.channels.count == 0 and found.mxfp4[0].zero == 1
    else:
        rms = np.sqrt(np.square(case.tensors["prefix"].double().numpy()).mean())
        assert found.rms == pytest.approx(rms, rel=1e-12) and found.rms > 0


def test_unknown_names():
    case = case_of("k2a", ranks=1)
    with pytest.raises(BadInput, match="tensor: expected one of prefix, .*got 'nosuch'"):
        spread(case, "nosuch")
    with pytest.raises(BadInput, match="rules: expected some of"):
        statistics(case, ("up",))
    assert FP8_E4M3.decode(np.uint8(0x7E)) == 448, "the cache's bytes are decoded by the format, not by torch"


def test_the_charts_show_them():
    case = case_of("m1a")
    spreads = statistics(case)
    sizes = distributions.magnitudes(spreads).axes[0]
    assert [label.get_text() for label in sizes.get_yticklabels()] == [f"{s.name} ({s.dtype})" for s in spreads]
    lines = [line for line in sizes.get_lines() if line.get_linewidth() == 1.5 and len(line.get_xdata()) == 2]
    assert len(lines) == len(spreads)
    for each, line in zip(spreads, lines, strict=True):
        assert 2 ** np.diff(line.get_xdata())[0] == pytest.approx(2**each.octaves, rel=1e-9)

    found = spread(case, "prefix").channels
    marked = distributions.channels(case, "prefix").axes[0]
    assert {int(text.get_text()) for text in marked.texts} == set(found.where)
    with pytest.raises(BadInput, match="conv_w: expected a tensor with 128 channels or more"):
        distributions.channels(case_of("k1", qlen=1), "conv_w")

    blocked = [each for each in spreads if each.mxfp4]
    for axes, part in zip(distributions.block_shares(spreads).axes, ("cut", "flushed"), strict=True):
        for bars, rule in zip(axes.containers, RULES, strict=True):
            shares = [next(b for b in each.mxfp4 if b.rule == rule) for each in blocked]
            assert [bar.get_width() for bar in bars] == [100 * getattr(share, part) for share in shares]
    for chart in (distributions.magnitudes, distributions.block_shares):
        with pytest.raises(BadInput, match="tensors: expected at least one"):
            chart([])


def test_case_info_shows_them(tmp_path):
    path = save(case_of("m1a"), tmp_path / "case.safetensors")

    def said(*more: str) -> str:
        result = CliRunner().invoke(cli, ["case", "info", str(path), *more])
        assert result.exit_code == 0, result.output
        return result.stdout

    facts = json.loads(said("--json"))
    shown = {each["name"]: each for each in facts["statistics"]}
    assert shown["prefix"]["max"] == case_of("m1a").tensors["prefix"].double().max()
    assert {blocks["rule"] for blocks in shown["w_kv_b"]["mxfp4"]} == set(RULES) and facts["notes"] == {}
    assert "4 of 2048" in said() and "rule even" in said() and "rule floor" in said("--scale-rule", "floor")
    assert CliRunner().invoke(cli, ["case", "info", str(path), "--scale-rule", "up"]).exit_code == 2
