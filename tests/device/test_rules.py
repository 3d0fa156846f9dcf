"""The lint's rules of whole launches: clean on the kernels as they are, and every planted fault is found."""

from __future__ import annotations

from typing import Any

import pytest

from k3lab.geometry import Geometry
from k3lab.kernels import rules
from k3lab.kernels.abi import stage_names
from k3lab.launches import LAUNCHES, get
from k3lab.launches.key import LaunchKey
from k3lab.lowering.isa import cached_isa, compile_isa
from k3lab.lowering.lint import lint

pytest.importorskip("flydsl", reason="needs flydsl to lower the kernels")

from k3lab.device.dsl import located
from k3lab.device.stamps import clock
from k3lab.kernels import k1
from k3lab.kernels.build import build
from k3lab.kernels.lowered import has_kernel, lowered
from k3lab.lowering.capture import lower
from k3lab.stages.gemv import product, rows

K1 = get("k1")
MINI = {"tokens": 4, "qlen": 4, "nblocks": 4}
FULL = [{"tokens": s, "qlen": q, "nblocks": nb} for s in (1, 4, 8, 16) for q in (1, 4) if s % q == 0 for nb in (1, 8)]
FULL.append({"tokens": 64, "qlen": 16, "nblocks": 8})  # a loop over tasks, much unrolled
QUICK = {"tokens": 4, "qlen": 4, "nblocks": 8}
VARIANTS = (
    {"bounded": True},
    {"timeline": True},
    {"dumps": True},
    {"gate_local": True},
    {"qlen": 1, "delta": False},
    {"write_idx": 5, "prefetch": 1},
    {"gemv_all": True, "prefetch": 1, "ahead": 1},
    {"k_parts": 2, "at_once": 2},
)


def key_of(geometry: str = "mini", **fields: Any) -> LaunchKey:
    return K1.key(Geometry.named(geometry), **fields)


def findings(key: LaunchKey, launch: Any = K1) -> list[str]:
    isa = cached_isa(lowered(launch, key), line_tables=True)
    return [str(finding) for finding in lint(isa.text, rules.rules_for(launch, key))]


@pytest.mark.parametrize("variant", [{}, *VARIANTS], ids=str)
def test_k1_is_clean_at_mini_geometry(variant):
    assert findings(key_of(**{**MINI, **variant})) == []


@pytest.mark.parametrize(
    "fields", [pytest.param(f, id=str(f), marks=() if f == QUICK else pytest.mark.slow) for f in FULL]
)
def test_k1_is_clean_at_full_size(fields):
    assert findings(key_of("k3", **fields)) == []


@pytest.mark.parametrize(
    ("name", "ranks"),
    [*((name, 2) for name, launch in LAUNCHES.items() if name != "k1" and has_kernel(launch)), ("m1a", 1)],
)
def test_the_other_kernels_are_clean(name, ranks):
    launch = LAUNCHES[name]
    assert findings(launch.key(Geometry.mini(), tokens=4, nblocks=4, ranks=ranks), launch) == []


def test_what_the_rules_ask_for():
    """gate, mix (2), gemv, conv, gates (2) and norm (2) poll; 7 rounds of 4 loads; the flag is mix's."""
    key = key_of("k3", **QUICK)
    asked = rules.rules_for(K1, key)
    assert (asked.polls, asked.weight_loads, asked.timeline, asked.flag_width) == (9, 28, False, 0)
    assert asked.pair_widths == {8, 16} and asked.weight_polls == {rules.ROWS_FILE}
    assert [file for file, _ in asked.flag_lines] == ["stages/attnres/mix/kernel.py"]
    assert rules.rules_for(K1, key_of(**MINI, gate_local=True)).polls == 8
    assert rules.rules_for(K1, key_of(**MINI, prefetch=1)).weight_loads == 4
    for switch in ("timeline", "bounded"):
        assert rules.rules_for(K1, key_of(**MINI, **{switch: True})).timeline


def test_what_the_rules_ask_of_a_stage():
    key = key_of(**MINI)
    conv, mix = (rules.rules_for(K1, key, frozenset({name})) for name in ("conv", "mix"))
    assert (conv.polls, conv.weight_loads, conv.flag_lines) == (1, 0, frozenset())
    assert (mix.polls, mix.weight_loads, len(mix.flag_lines)) == (2, 0, 1)
    assert product.QUADS == rules.QUADS and str(rows.__file__).endswith(rules.ROWS_FILE)


def planted(key: LaunchKey) -> set[str]:
    """The rules that a K1 built anew breaks."""
    launcher, placeholders = build(K1, key, stage_names(K1), k1.body, k1.lds_bytes(key))
    text = compile_isa(lower(launcher, placeholders), line_tables=True).text
    return {finding.rule for finding in lint(text, rules.rules_for(K1, key))}


class TestPlantedFaults:
    def test_none(self):
        assert planted(key_of(**MINI)) == set()

    def test_the_drain_left_out(self, monkeypatch):
        monkeypatch.setattr("flydsl.expr.rocdl.s_waitcnt", lambda **counts: None)
        assert planted(key_of(**MINI)) == {"flag-drained"}

    def test_the_barrier_left_out(self, monkeypatch):
        from k3lab.device import mailbox

        def publish(c, flags, index):
            mailbox.rocdl.s_waitcnt(vmcnt=0)
            mailbox._put_flag(c, flags, index)

        monkeypatch.setattr("k3lab.stages.attnres.mix.kernel.publish_rows", located(publish))
        assert planted(key_of(**MINI)) == {"flag-drained"}

    def test_the_flag_left_out(self, monkeypatch):
        monkeypatch.setattr("k3lab.stages.attnres.mix.kernel.publish_rows", lambda c, flags, index: None)
        assert planted(key_of(**MINI)) == {"flag-drained"}

    def test_the_sleep_left_out(self, monkeypatch):
        """LLVM deletes the polls, or makes them endless."""
        monkeypatch.setattr("flydsl.expr.rocdl.s_sleep", lambda count: None)
        assert "poll-reloads" in planted(key_of(**MINI))

    def test_a_stamp_left_in(self, monkeypatch):
        monkeypatch.setattr("k3lab.kernels.k1.stamp", lambda c, point: clock())
        assert planted(key_of(**MINI)) == {"no-stamps"}

    def test_where_all_multiply_weights_are_issued_before_attention(self, monkeypatch):
        """The lint looks at the products' own poll; attention polls before."""
        order: list[str] = []
        issue, attention = k1.issue, k1.attention
        monkeypatch.setattr(k1, "issue", lambda *args: (order.append("issue"), issue(*args))[1])
        monkeypatch.setattr(k1, "attention", lambda *args: (order.append("attention"), attention(*args))[1])
        assert planted(key_of(**MINI, gemv_all=True)) == set()
        assert order == ["issue", "attention"]

    def test_the_weights_issued_late(self, monkeypatch):
        monkeypatch.setattr("k3lab.kernels.k1.issue", lambda c, p, deal: [[]])
        assert planted(key_of(**MINI)) == {"weights-first"}
