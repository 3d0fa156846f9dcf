"""The table of published names has no dead link, and README shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from k3lab.analysis.published import ENTRIES, markdown, where
from k3lab.launches import LAUNCHES

ROOT = Path(__file__).parent.parent
LINKS = [here for entry in ENTRIES for here in entry.here]
PUBLISHED = (
    "kda_pre stage_slice stage_gate stage_gates stage_mix mix_src vals_all gemv_loads load_x wait_x stage_gemv",
    "poll_rows_to_lds kda_stage kda_conv kda_gates kda_recur kda_norm step_tag bf4_words ld_bf4",
    "mla_pre gemv_tasks proj_loads stage_proj stage_norm block_sum2 bf_words stage_qb stage_uk even_code fp8_word",
    "put_q put_qg peer_pairs stage_unpack",
    "attn_post two_shot ar_half_pairs peer_at load_core o_loads stage_o stage_reduce reduce_two_shot",
    "sent_on sent_ix sent_item sent_sum rearm_ar slice_loads stage_slice_pre",
)


@pytest.mark.parametrize("here", LINKS)
def test_every_counterpart_exists_where_the_table_says(here):
    file, line = where(here)
    name = here.rpartition(":")[2].rpartition(".")[2]
    shown = (ROOT / file).read_text(encoding="utf-8").splitlines()[line - 1].strip()
    assert shown.startswith((f"def {name}(", f"class {name}(", f"class {name}:", f"{name}: "))


def test_every_published_name_has_one_row():
    named = [name for entry in ENTRIES for name in entry.published]
    assert sorted(named) == sorted(" ".join(PUBLISHED).split()) and len(set(named)) == len(named)


def test_every_stage_is_there_with_its_twin_and_its_kernel():
    rows = [{here.partition(":")[0] for here in entry.here} for entry in ENTRIES]
    for stage in (stage for launch in LAUNCHES.values() for stage in launch.stages):
        assert {f"{stage.folder}.twin", f"{stage.folder}.kernel"} in rows, stage.folder


@pytest.mark.parametrize("dead", ["k3lab.layout:nosuch", "k3lab.nosuch:x", "k3lab.launches.k2a:K2aKey.nosuch"])
def test_a_dead_link_is_an_error(dead):
    with pytest.raises(AttributeError, match="nosuch"):
        where(dead)


def test_it_is_read_without_flydsl():
    code = "import sys; sys.modules['flydsl'] = None; from k3lab.analysis.published import markdown; markdown()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_readme_holds_the_table():
    assert markdown(lines=False) in (ROOT / "README.md").read_text(encoding="utf-8")
