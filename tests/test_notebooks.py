"""Notebooks are stored clean: no outputs, no counts, a kernel that every machine has."""

from __future__ import annotations

import copy
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
