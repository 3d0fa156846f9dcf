"""Drift over many steps: the sign and the size that the formats' definitions give, and who is free of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from k3lab.analysis.drift import recurrent_state, reduced_stream, residual_stream, rounded_weights
from k3lab.errors import BadInput

BETA = {"k1.gates.beta": "bf16"}


def test_in_fp32_hardly_anything_is_lost():
    # 72 additions of numbers below 2, each wrong by at most half an ulp of 2^-23.
    free = residual_stream({"k1.slice.prefix": "fp32"})
    assert (free.last.double() - free.exact).abs().max() < 72 * 2**-24


def test_a_truncated_prefix_loses_half_an_ulp_a_layer():
    """Below 1 an ulp is 2^-8, from 1 on 2^-7: 72 halves of these are 14 and 28 percent, less what leaves the binade."""
    truncated = residual_stream({"k1.slice.prefix": "bf16:zero"})
    assert -0.28 < truncated.signed[-1] < -0.14
    assert (np.diff(truncated.signed) < 0).all()
    # Uniform errors within an ulp of 2^-7 have an rms of 0.29 of it; 72 independent ones add up to sqrt(72) times that.
    nearest = residual_stream()
    assert nearest.rms[-1] < 0.29 * 2**-7 * 72**0.5 and abs(nearest.signed[-1]) < 5 * nearest.rms[-1] / 2048**0.5


def test_a_skipped_rounding_gives_other_values_of_the_same_quality():
    kept, skipped = reduced_stream(), reduced_stream(ablate="k2a.reduce.delta")
    assert not torch.equal(kept.last, skipped.last)
    assert abs(kept.rms[-1] / skipped.rms[-1] - 1) < 0.05


def test_the_stream_does_not_depend_on_what_is_rounded_beside_it():
    assert torch.equal(reduced_stream().exact, reduced_stream(ablate="k2a.reduce.delta").exact)


def test_beta_through_bf16_is_a_bias_where_beta_stays_the_same():
    """sigmoid(0.5) = 0.62246 goes to 0.62109, 0.22 percent less: so much less is written at the first token."""
    steady, varied = recurrent_state(BETA, steps=24, logit=0.5), recurrent_state(BETA, steps=24)
    assert steady.signed[0] == pytest.approx(0.62109375 / 0.62245935 - 1, abs=1e-6)
    assert (steady.signed < -0.0015).all()
    # An average over as many betas as there are tokens and heads: its sigma is the rms over the root of their number.
    assert abs(varied.signed[-1]) < 5 * varied.rms[-1] / 48**0.5
    assert recurrent_state(steps=24).rms[-1] < 2e-6


def test_a_state_held_in_bf16_drifts_when_it_is_truncated():
    """A truncated value loses half an ulp a token, 2^-9 to 2^-8 of it on average; 24 tokens forget little of that."""
    nearest, truncated = (recurrent_state(steps=24, held=held) for held in ("bf16", "bf16:zero"))
    assert -24 * 2**-8 < truncated.signed[-1] < -0.01 and abs(nearest.signed[-1]) < 0.001
    assert nearest.rms[-1] > 100 * recurrent_state(steps=24).rms[-1]


def test_weights_below_half_the_smallest_fp8_value_are_lost():
    """Of 1 / 2048, half of e4m3's smallest value 2^-10, nothing is left; of twice as much, all."""
    lost = rounded_weights((1024, 4096), normalised=True, spread=0.0)
    assert lost.mass.tolist() == [0.0, 0.0]
    assert lost.zeros.tolist() == [1.0, 1.0]
    kept = rounded_weights((512,), normalised=True, spread=0.0)
    assert kept.mass.tolist() == [1.0] and kept.rms[0] < 1e-15


def test_a_power_of_two_keeps_them():
    lost, kept = (rounded_weights((4096,), normalised=True, scale=scale) for scale in (1.0, 256.0))
    assert lost.mass[0] < 0.5 and abs(kept.mass[0] - 1) < 2**-8


def test_a_context_of_nothing_is_refused():
    with pytest.raises(BadInput, match="contexts"):
        rounded_weights((0,))
