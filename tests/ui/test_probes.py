"""The probe panel's figures are those of `k3lab.probe`."""

from __future__ import annotations

import pytest

import k3lab
from k3lab.analysis.ends import end_names, run_error
from k3lab.errors import BadInput
from k3lab.ui.probes import Probed, error_bars, probe_view


@pytest.fixture(scope="module")
def probed():
    return Probed(k3lab.make_case("k1", geometry="mini", tokens=2, qlen=2, nblocks=1, seed=0))


def direct(case, off):
    """The same by the public functions."""
    oracle = k3lab.run(case.launch, case, backend="oracle")
    with k3lab.probe(ablate=off):
        run = k3lab.run(case.launch, case, order="torch")
    return {name: run_error(run, oracle, name).figures() for name in end_names(run)}


def test_errors_are_the_probes(probed):
    off = ["k1.mix.x", "k1.gemv.proj"]
    on = [name for name in probed.points if name not in off]
    assert probed.errors(on) == direct(probed.case, off)
    assert probed.errors(probed.points) == direct(probed.case, [])
    assert probed.errors(on)["x"].rms < probed.errors(probed.points)["x"].rms


def test_the_view_shows_them(probed):
    on = [name for name in probed.points if name != "k1.slice.prefix"]
    text = str(probe_view(probed, on))
    assert "left out: k1.slice.prefix" in text and "left out: none" in str(probe_view(probed, probed.points))
    assert probed.errors(on)["prefix"].relative_rms == 0 and "<img" in text


def test_bars_are_as_long_as_the_errors(probed):
    errors, full = probed.errors([]), probed.errors(probed.points)
    axes = error_bars(errors, full).axes[0]
    drawn = [bar.get_width() for bar in axes.patches]
    low = axes.get_xlim()[0]
    wanted = [*full.values(), *errors.values()]
    assert drawn == [max(one.relative_rms, low) for one in wanted]
    assert axes.get_xscale() == "log" and [t.get_text() for t in axes.get_yticklabels()] == list(errors)


def test_an_unknown_point_is_refused(probed):
    with pytest.raises(BadInput, match="rounding point"):
        probed.errors(["k1.mix.y"])
