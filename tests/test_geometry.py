"""Geometry: the spec's figures, derived, and the rules that are refused when broken."""

from __future__ import annotations

import pytest

from k3lab.errors import BadInput
from k3lab.geometry import Geometry


def test_k3_at_tp8_is_what_the_model_says():
    g = Geometry.k3()
    assert (g.na, g.blocks, g.heads, g.proj, g.nproj) == (56, 256, 12, 1536, 6288)
    assert (g.conv_channels, g.entry, g.qkv_a, g.q_b) == (4608, 576, 2112, 2304)
    assert (g.tasks(g.nproj), g.tasks(g.qkv_a) + g.tasks(g.proj), g.tasks(g.q_b)) == (393, 228, 144)
    assert (g.tasks(g.hidden), g.owner_cols, g.all_heads) == (448, 896, 96)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_other_parallel_sizes_share_the_heads(tp):
    g = Geometry.k3(tp)
    assert g.heads * tp == 96 and g.nproj % 16 == 0


def test_mini_keeps_the_structure():
    g = Geometry.mini()
    assert (g.na, g.heads, g.tp, g.blocks, g.nproj_pad) == (16, 2, 2, 48, 14)
    ctas = g.blocks - g.na
    per_cta = -(-g.tasks(g.nproj) // ctas)
    assert per_cta == 3 and g.tasks(g.nproj) < per_cta * (ctas - 1)  # three tasks on some CTA, none on another
    assert g.q_lora // 128 % 8 != 0  # a ragged second round of chunks


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden": 2000}, "hidden"),
        ({"hidden": 2048.0}, "hidden"),
        ({"heads": True}, "heads"),
        ({"hidden": 1536}, "attention CTAs"),
        ({"tp": 3}, "tp"),
        ({"heads": 0}, "heads"),
        ({"q_lora": 256}, "q_lora"),
        ({"q_lora": 1792}, "q_lora"),
        ({"kv_lora": 600}, "kv_lora"),
        ({"blocks": 16}, "blocks"),
    ],
)
def test_a_broken_rule_is_one_sentence(change, named):
    good = Geometry.mini().to_dict()
    with pytest.raises(BadInput, match=named):
        Geometry(**{**good, **change})


def test_unknown_names_are_refused():
    with pytest.raises(BadInput, match="expected 'k3' or 'mini'"):
        Geometry.named("k4")
    with pytest.raises(BadInput, match="tp"):
        Geometry.k3(tp=3)
