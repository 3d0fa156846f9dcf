"""The text of twins and kernels, for notebooks that show both: read from the files, so that flydsl is not needed."""

from __future__ import annotations

import ast
from pathlib import Path

from k3lab.errors import BadInput
from k3lab.launches import Launch

ROOT = Path(__file__).parents[2]


def function_text(launch: Launch, stage: str, place: str) -> str:
    """A function with its decorators.

    Args:
        place: a function of the stage's kernel.py, `file:function` of its folder, or `k3lab.module:function`.

    Raises:
        BadInput: when there is no such stage, file or function.
    """
    folder = launch.stage(stage).folder
    file, _, name = place.rpartition(":")
    module = file if file.startswith("k3lab.") else f"{folder}.{file or 'kernel'}"
    path = ROOT / f"{module.replace('.', '/')}.py"
    if not path.is_file():
        where = "k3lab" if module == file else folder.replace(".", "/")
        raise BadInput(f"source of {stage}: expected a file of {where}, got {path.name!r}.")
    text = path.read_text(encoding="utf-8")
    found = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    if name not in found:
        raise BadInput(f"source of {stage}: expected one of {sorted(found)} in {path.name}, got {name!r}.")
    node = found[name]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])
