"""The README's table of what K1 takes is what the compiler makes of it now."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3lab.cli import compile as command
from k3lab.launches import get

pytest.importorskip("flydsl", reason="needs flydsl to lower the kernels")

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- k3lab compile k1 --nblocks 8 --table -->", "<!-- end of the table -->"
DESCRIBED = {"nblocks": 8}


def printed() -> list[str]:
    lines = README.read_text(encoding="utf-8").splitlines()
    return lines[lines.index(BEGIN) + 1 : lines.index(END)]


def test_one_row_is_current():
    row = command.table_row(get("k1"), DESCRIBED, 4)
    assert command._line(row) == printed()[2 + command.TABLE_TOKENS.index(4)]


@pytest.mark.slow
def test_the_table_is_current():
    assert command.resource_table("k1", DESCRIBED) == printed()


def test_no_row_has_spills_or_more_than_the_device_has():
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in printed())
    for row in rows:
        figures = dict(zip(heads, map(int, row), strict=True))
        assert figures["spills"] == figures["scratch"] == 0 and figures["AGPR"] == 0
        assert figures["VGPR"] <= 256 and figures["LDS"] <= 160 * 1024 and figures["waves/SIMD"] >= 2
