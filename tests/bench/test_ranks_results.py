"""What `cuda_ranks` found, put together from several runs' files."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from benchmarks import cuda_ranks_results as results
from benchmarks.cuda_ranks_items import KILLED, items
from k3lab.errors import BadInput

ABOUT = {"device": "fake", "gpus": 2, "engine": "gpu", "driver": "1", "versions": {"torch": "2"}, "date": "2026-01-01"}
NAMES = [item.name for item in items() if item.kind == KILLED]


def part(folder, name, found, **more):
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({**ABOUT, **more, "items": found}))
    return folder


def timed_row(median):
    gpu = {"median_us": median, "shortest_us": median - 1, "step_us": median + 1, "launches": 9}
    return {"equal": True, "ours": [gpu, gpu], "median_us": median, "floor": {"all_us": 10.0}}


def test_the_last_folders_item_counts_and_what_is_missing_is_named(tmp_path):
    first = part(tmp_path / "a", "killed", {NAMES[0]: {"equal": False}, NAMES[1]: {"equal": True}})
    second = part(tmp_path / "b", "killed", {NAMES[0]: {"equal": True}}, ended="ended by its limit of 9 s")
    killed = results.merged([first, second])["parts"]["killed"]
    assert killed["items"][NAMES[0]]["equal"] and killed["not_run"] == NAMES[2:]
    lines = list(results.counts(results.merged([first, second])))
    assert f"killed: 2 of 2 items as they must be; not run (ended by its limit of 9 s): {'; '.join(NAMES[2:])}" in lines
    timed = part(tmp_path / "c", "timed", {"k2a S4": timed_row(20.0), "k2a S1": {"equal": False}})
    (line,) = (line for line in results.counts(results.merged([timed])) if line.startswith("timed: "))
    assert line.startswith("timed: 1 of 2 items measured; not run")
    assert not results.merged([second, first])["parts"]["killed"]["items"][NAMES[0]]["equal"]


def test_runs_on_different_devices_are_not_mixed(tmp_path):
    folders = [part(tmp_path / "a", "link", {}), part(tmp_path / "b", "killed", {}, device="another")]
    with pytest.raises(BadInput, match="another"):
        results.merged(folders)
    with pytest.raises(BadInput, match="got none"):
        results.merged([tmp_path])


def test_the_table_has_the_slower_gpus_medians_and_leaves_out_what_was_not_measured(tmp_path):
    ways = {"NCCL all-reduce, graph": 5.0, "torch and NCCL": "not measured: no library"}
    found = {
        "k2a S4": timed_row(20.0),
        "k2a S4: torch": {"equal": True, "medians_us": [ways, {**ways, results.TORCH[0]: 6.0}]},
    }
    text = results.markdown(results.merged([part(tmp_path / "a", "timed", found)], ["Mind the gap."]))
    assert "| k2a S4 | 20.0 | 19.0 | 21.0 | 10.0 | 2.0 | 6.0 |" in text
    assert "torch and NCCL |" not in text and "\nMind the gap.\n" in text


def test_files_are_written_together(tmp_path):
    folder = part(tmp_path / "a", "timed", {"k2a S4": timed_row(20.0)})
    done = CliRunner().invoke(results.main, [str(folder), "--to", str(tmp_path / "to"), "--note", "One."])
    assert done.exit_code == 0 and "timed: 1 of 1 items" in done.output
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == ["ranks.json", "ranks.md"]
    assert json.loads((tmp_path / "to" / "ranks.json").read_text())["notes"] == ["One."]
