"""Notebooks are stored clean, without outputs, and are one course: one look, figures explained, claims checked."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(path for path in (ROOT / "notebooks").rglob("*.ipynb") if ".ipynb_checkpoints" not in path.parts)


def faults(notebook: Any) -> list[str]:
    """What keeps a notebook from being stored: one sentence each."""
    found = []
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        found.append(f"not a valid notebook: {error.message}")
    if (name := notebook.metadata.get("kernelspec", {}).get("name")) != "python3":
        found.append(f"kernelspec: expected python3, got {name}")
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type == "code" and cell.get("outputs"):
            found.append(f"cell {index} has outputs")
        if cell.cell_type == "code" and cell.get("execution_count") is not None:
            found.append(f"cell {index} has execution count {cell.execution_count}")
    if "widgets" in notebook.metadata:
        found.append("holds widget state")
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_is_stored_clean(path: Path) -> None:
    assert not faults(nbformat.read(path, as_version=nbformat.NO_CONVERT)), "run: make fmt"


@pytest.fixture
def clean() -> Any:
    return nbformat.from_dict(
        {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3"}},
            "cells": [
                {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# Title"},
                {
                    "cell_type": "code",
                    "id": "b",
                    "metadata": {},
                    "source": "1 + 1",
                    "outputs": [],
                    "execution_count": None,
                },
            ],
        }
    )


def test_each_fault_is_found(clean: Any) -> None:
    assert not faults(clean)
    stream = nbformat.from_dict({"output_type": "stream", "name": "stdout", "text": "2"})

    ran, counted, foreign, broken, widgets = (copy.deepcopy(clean) for _ in range(5))
    ran.cells[1].outputs = [stream]
    counted.cells[1].execution_count = 1
    foreign.metadata.kernelspec.name = "my-env"
    del broken.cells[1]["source"]
    widgets.metadata.widgets = {}

    assert faults(ran) == ["cell 1 has outputs"]
    assert faults(counted) == ["cell 1 has execution count 1"]
    assert faults(foreign) == ["kernelspec: expected python3, got my-env"]
    assert any("not a valid notebook" in fault for fault in faults(broken))
    assert faults(widgets) == ["holds widget state"]


# -- as a course -------------------------------------------------------------------------------------------------------

DRAWS = re.compile(r"plt\.show\(\)|^(display\()?(charts|views)\.", re.MULTILINE)
ASSERTS = re.compile(r"^ *assert (?!(True|1)\s*(#.*)?$)", re.MULTILINE)
CAPTION = re.compile(r"\*\*(What to see|How to read it)")
OWN_COLOUR = re.compile(r"""["'](#[0-9A-Fa-f]{3,8}|C\d|tab:\w+)["']|colou?r=["'](0\.\d+)["']""")
OWN_STYLE = re.compile(r"rcParams|plt\.style|tight_layout")


def lacking(notebook: Any) -> list[str]:
    """What a lesson needs and this notebook has not: one sentence each."""
    cells, found = notebook.cells, []
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    if not cells[0].source.startswith("# "):
        found.append("does not begin with a title")
    if not any(ASSERTS.search(text) for text in code):
        found.append("asserts nothing")
    if any("plt.show()" in text for text in code) and not any("style.use()" in text for text in code):
        found.append("draws without the common look: style.use()")
    for index, cell in enumerate(cells):
        if cell.cell_type != "code":
            continue
        if colour := OWN_COLOUR.search(cell.source):
            found.append(f"cell {index}: colour {colour[1] or colour[2]} is not from k3lab.analysis.palette")
        if own := OWN_STYLE.search(cell.source):
            found.append(f"cell {index}: {own[0]} is a style of its own")
        following = next((later.source for later in cells[index + 1 :] if later.cell_type == "markdown"), "")
        if DRAWS.search(cell.source) and not CAPTION.search(following):
            found.append(f"cell {index}: nothing says what to see in its figure")
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_a_lesson(path: Path) -> None:
    assert not lacking(nbformat.read(path, as_version=nbformat.NO_CONVERT))


def test_each_lesson_leads_to_the_next() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{place:02}" for place in range(len(NOTEBOOKS))]
    first = nbformat.read(NOTEBOOKS[0], as_version=nbformat.NO_CONVERT)
    for place, path in enumerate(NOTEBOOKS):
        held = nbformat.read(path, as_version=nbformat.NO_CONVERT)
        texts = [cell.source for cell in held.cells if cell.cell_type == "markdown"]
        assert place == len(NOTEBOOKS) - 1 or f"**{place + 1:02}" in texts[-1], f"{path.name} names no next lesson"
        assert path.stem in first.cells[-1].source or place == 0, f"{path.stem} is not in lesson 00's list"


def test_each_lack_is_found(clean: Any) -> None:
    cells = clean.cells
    cells[1].source = "style.use()\nplt.show()\nassert plt.gcf()"
    cells.append({"cell_type": "markdown", "id": "c", "metadata": {}, "source": "**What to see.** All."})
    held = nbformat.from_dict(clean)
    assert not lacking(held)

    def lacks(old: str, new: str, cell: int = 1) -> list[str]:
        changed = copy.deepcopy(held)
        changed.cells[cell].source = changed.cells[cell].source.replace(old, new)
        return lacking(changed)

    assert lacks("# Title", "Title", cell=0) == ["does not begin with a title"]
    for nothing in ("# assert plt.gcf()", "assert True", "assert 1  # drawn"):
        assert lacks("assert plt.gcf()", nothing) == ["asserts nothing"]
    assert lacks("style.use()", "") == ["draws without the common look: style.use()"]
    assert lacks("style.use()", "style.use(); c = '#0072B2'") == [
        "cell 1: colour #0072B2 is not from k3lab.analysis.palette"
    ]
    assert lacks("style.use()", "style.use(); dict(color='0.5', label='0.1')") == [
        "cell 1: colour 0.5 is not from k3lab.analysis.palette"
    ]
    assert lacks("plt.show()", "plt.tight_layout(); plt.show()") == ["cell 1: tight_layout is a style of its own"]
    for drawn in ("plt.show()", "display(views.wait_map(k1))", "charts.error_by_stage(report)"):
        assert lacks("plt.show()", drawn) == []
        changed = copy.deepcopy(held)
        changed.cells[1].source, changed.cells[2].source = f"style.use()\n{drawn}\nassert plt.gcf()", "So?"
        assert lacking(changed) == ["cell 1: nothing says what to see in its figure"]
