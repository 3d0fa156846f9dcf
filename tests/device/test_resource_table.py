"""The README's tables of what the kernels take are what the compiler makes of them now."""

from __future__ import annotations

from pathlib import Path

import pytest

from k3lab.cli import compile as command
from k3lab.launches import LAUNCHES

pytest.importorskip("flydsl", reason="needs flydsl to lower the kernels")

README = Path(__file__).parents[2] / "README.md"
END = "<!-- end of the table -->"
DESCRIBED = {"nblocks": 8}
each_launch = pytest.mark.parametrize("launch", LAUNCHES)


def printed(launch: str) -> list[str]:
    lines = README.read_text(encoding="utf-8").splitlines()
    begin = lines.index(f"<!-- k3lab compile {launch} --nblocks 8 --table -->")
    return lines[begin + 1 : lines.index(END, begin)]


@each_launch
def test_one_row_is_current(launch):
    row = command.table_row(LAUNCHES[launch], DESCRIBED, 4)
    assert command._line(row) == printed(launch)[2 + command.TABLE_TOKENS.index(4)]


@pytest.mark.slow
@each_launch
def test_the_table_is_current(launch):
    assert command.resource_table(launch, DESCRIBED) == printed(launch)


@each_launch
def test_no_row_has_spills_or_more_than_the_device_has(launch):
    heads, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in printed(launch))
    for row in rows:
        figures = dict(zip(heads, map(int, row), strict=True))
        assert figures["spills"] == figures["scratch"] == 0 and figures["AGPR"] == 0
        assert figures["VGPR"] <= 256 and figures["LDS"] <= 160 * 1024 and figures["waves/SIMD"] >= 2
