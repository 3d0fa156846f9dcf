"""The table of published names has no dead link, and README shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3lab.analysis.published import ENTRIES, markdown, resolve, where

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.published[0])
def test_every_counterpart_exists_where_the_table_says(entry):
    assert resolve(entry.here) is not None
    file, line = where(entry.here)
    name = entry.here.rpartition(":")[2].rpartition(".")[2]
    text = (ROOT / file).read_text(encoding="utf-8").splitlines()
    assert any(name in shown for shown in text[line - 1 : line + 3])


def test_a_dead_link_is_an_error():
    with pytest.raises(AttributeError):
        resolve("k3lab.layout:nosuch")


def test_the_readme_holds_the_table():
    assert markdown(lines=False) in (ROOT / "README.md").read_text(encoding="utf-8")
